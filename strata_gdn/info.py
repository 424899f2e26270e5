"""`python -m strata_gdn info`: version, build, devices, switches and kernels."""

from __future__ import annotations

import argparse
import sys

import torch

import strata_gdn
from strata_gdn import _devices, registry
from strata_gdn._table import columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`info` takes none."""


def _build() -> str:
    build = registry.build()
    parts = ["CPU"]
    if build.cuda:
        parts.append(f"CUDA for {', '.join(f'sm_{arch}' for arch in build.cuda_archs)}")
    if build.hip:
        parts.append(f"ROCm for {', '.join(build.hip_archs)}")
    return " and ".join(parts) if len(parts) > 1 else "CPU only"


def _gpus() -> list[str]:
    if not torch.cuda.is_available():
        return []
    units = "WGPs" if torch.version.hip else "SMs"  # of two CUs each: HIP counts so on RDNA
    names = []
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        count = torch.cuda.get_device_properties(device).multi_processor_count
        names.append(f"{_devices.name(device)}, {_devices.arch(device)}, {count} {units}")
    return names


def _switch_row(switch: registry.Switch) -> tuple[str, ...]:
    value = "unset" if switch.value is None else switch.value
    kind = "" if switch.kind == "runtime" else f" ({switch.kind})"
    return switch.name, value, switch.source, switch.allowed, switch.meaning + kind


def run(args: argparse.Namespace) -> int:
    try:
        switches = registry.switches()
        cpu = registry.cpu_arch()
    except ValueError as error:
        print(f"strata_gdn: {error}", file=sys.stderr)
        return 2
    rows = [
        ("version", strata_gdn.__version__),
        ("build", _build()),
        ("torch", torch.__version__),
        ("device", f"CPU, {cpu}, {torch.get_num_threads()} threads"),
        *(("device", gpu) for gpu in _gpus()),
    ]
    print(columns(rows))
    print("\nswitches")
    print(columns([("name", "value", "source", "allowed", "meaning"), *map(_switch_row, switches)], indent=2))
    print("\nkernels")
    kernels = [(k.kernel, k.op, k.architectures, k.lane) for k in registry.kernels()]
    print(columns([("kernel", "op", "architectures", "lane"), *kernels], indent=2))
    return 0
