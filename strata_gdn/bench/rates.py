"""What a GPU can do, measured in the run: the rates that roofline derives limits from."""

from __future__ import annotations

from statistics import median

import torch

from .. import _devices
from . import roofline
from .graphs import SAMPLES, Timer, between_events, time_graph

COPY_BYTES = 256 << 20
MATMUL_SIZE = 8192
SPIN_CYCLES = 4_000_000


def measure_rates(device: torch.device, timer: Timer = time_graph) -> roofline.Rates:
    """What this card can do, now."""
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_seconds = median(timer(lambda: target.copy_(source)))
    a, b = (torch.randn(MATMUL_SIZE, MATMUL_SIZE, device=device) for _ in range(2))
    c = torch.empty_like(a)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        matmul_seconds = median(timer(lambda: torch.mm(a, b, out=c)))
    finally:
        torch.set_float32_matmul_precision(precision)
    return roofline.Rates(
        copy_bytes_per_second=2 * COPY_BYTES / copy_seconds,
        clock_hz=_clock_hz(),
        multiprocessors=torch.cuda.get_device_properties(device).multi_processor_count,
        lanes=roofline.lanes(_devices.arch(device)),
        matmul_fma_per_second=MATMUL_SIZE**3 / matmul_seconds,
    )


def _clock_hz() -> float:
    """The multiprocessors' clock: how much longer a kernel takes that spins for more cycles."""

    def spin(cycles: int) -> float:
        return between_events(lambda: torch.cuda._sleep(cycles))

    spin(SPIN_CYCLES)
    return median(SPIN_CYCLES / (spin(2 * SPIN_CYCLES) - spin(SPIN_CYCLES)) for _ in range(SAMPLES))
