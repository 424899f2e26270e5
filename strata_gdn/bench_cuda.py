"""`python -m strata_gdn bench --device cuda`: the ops on a GPU, with fla beside them where it is installed.

A sample is one replay of a CUDA graph between two events, after the L2 cache has been overwritten; a line is the
median of all samples. The recurrences are timed with every kernel that can serve them, the pointwise ops beside a copy
that moves as many bytes (bench_cases). A line is a time of the kernel that was asked for: if another one ran, the line
is an error and the benchmark fails. Each is held against what the card could do (bench_roofline). docs/bench.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from . import _devices, bench_cases, bench_peers, bench_record, registry
from . import bench_roofline as roofline
from ._table import columns
from .bench_cases import Arm, Case
from .bench_common import BenchError, launches, select

SAMPLES = 30  # the fewest
L2_FLUSH_BYTES = 256 << 20
COPY_BYTES = 1 << 30
MATMUL_SIZE = 8192
SPIN_CYCLES = 4_000_000

Call = Callable[[], object]
Timer = Callable[[Call], list[float]]


class WrongKernelError(RuntimeError):
    """Another kernel served a case than the one that was asked for."""


@dataclass(frozen=True)
class Result:
    """One line: a case served by one kernel."""

    case: str
    tokens: int
    sequences: int
    kernel: str
    seconds: list[float] = field(repr=False)  # one a sample
    chosen: bool  # the registry takes this kernel by itself
    moved_bytes: int
    fma: int
    limits: dict[str, float]  # seconds
    peer: str | None
    peer_samples: list[float] = field(repr=False)  # seconds

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def peer_seconds(self) -> float | None:
        return median(self.peer_samples) if self.peer else None

    @property
    def limit(self) -> tuple[str, float]:
        """The binding limit, and the part of it that was reached."""
        name, seconds = roofline.binding(self.limits)
        return name, seconds / self.median

    def as_record(self) -> dict[str, Any]:
        limit, reached = self.limit
        return asdict(self) | {
            "median_seconds": self.median,
            "peer_seconds": self.peer_seconds,
            "limit": limit,
            "limit_reached": reached,
        }


# Timing


def time_graph(call: Call, samples: int = SAMPLES) -> list[float]:
    """Seconds of each of `samples` replays of a CUDA graph of `call`, every one after the L2 cache was overwritten."""
    (seconds,) = time_in_turn([graph_of(call)], samples)
    return seconds


def graph_of(call: Call) -> torch.cuda.CUDAGraph:
    """A CUDA graph of a call that has been made before, and replayed once."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # loads modules and compiles what a peer compiles
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    return graph


def time_in_turn(graphs: Sequence[torch.cuda.CUDAGraph], samples: int = SAMPLES) -> list[list[float]]:
    """Seconds of `samples` replays of each graph, one of each after the other, the L2 cache overwritten before each."""
    flush = torch.empty(L2_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    seconds: list[list[float]] = [[] for _ in graphs]
    for _ in range(samples):
        for graph, own in zip(graphs, seconds, strict=True):
            flush.fill_(0)
            own.append(_between_events(graph.replay))
    return seconds


def _between_events(call: Call) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3


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
        return _between_events(lambda: torch.cuda._sleep(cycles))

    spin(SPIN_CYCLES)
    return median(SPIN_CYCLES / (spin(2 * SPIN_CYCLES) - spin(SPIN_CYCLES)) for _ in range(SAMPLES))


# One case


def left_out(case: Case, arm: Arm, arch: str, sms: int | None) -> str | None:
    """Why the registry would not grant an arm's switches on a card, or None: the arm is to be measured.

    An arm without switches is the table's claim of what serves the case, never left out.
    """
    if not arm.switches:
        return None
    decision = registry.decide(
        case.op, arch=arch, sms=sms, tokens=case.tokens, n=case.sequences, h=case.key_heads, hv=case.value_heads,
        k=bench_cases.HEAD_DIM, v=bench_cases.HEAD_DIM, dtype=bench_cases.DTYPE, env=arm.switches,
    )  # fmt: skip
    if decision.kernel in arm.kernels:
        return None
    reasons = [reason for kernel, reason in decision.rejected if kernel in arm.kernels]
    return "; ".join(reasons) or decision.reason


def time_arm(case: Case, arm: Arm, call: Call, timer: Timer) -> list[float]:
    """Seconds a call, of exactly the arm's kernels.

    Raises:
        WrongKernelError: other kernels were launched.
    """
    with registry.overrides(**arm.switches), launches() as served:
        seconds = timer(call)
    if set(served) != set(arm.kernels):
        asked = ", ".join(f"{name}={value}" for name, value in arm.switches.items()) or "no switches"
        ran = " + ".join(sorted(served)) or "nothing"
        raise WrongKernelError(f"{case}: expected {' + '.join(arm.kernels)} with {asked}; served: {ran}")
    return [sample / case.repeats for sample in seconds]


def measure(case: Case, arms: list[Arm], rates: roofline.Rates, timer: Timer) -> Iterator[Result | WrongKernelError]:
    """The case with each of `arms`: a result, or the error of an arm that other kernels served."""
    torch.manual_seed(0)
    calls = case.make(case)
    peer_samples = [sample / case.repeats for sample in timer(calls.peer.call)] if calls.peer else []
    with launches() as chosen:
        calls.ours()
    for arm in arms:
        try:
            seconds = time_arm(case, arm, calls.ours, timer)
        except WrongKernelError as error:
            yield error
            continue
        yield Result(
            case=case.name,
            tokens=case.tokens,
            sequences=case.sequences,
            kernel=" + ".join(arm.kernels),
            seconds=seconds,
            chosen=set(arm.kernels) == set(chosen),
            moved_bytes=calls.work.moved_bytes,
            fma=calls.work.fma,
            limits=rates.limits(calls.work),
            peer=calls.peer.name if calls.peer else None,
            peer_samples=peer_samples,
        )


# The run


def run(args: argparse.Namespace) -> int:
    """Times the cases, prints the tables, writes the JSON after each case and the plot at the end.

    Returns 1 where a kernel ran that was not asked for, else 0.
    """
    samples = args.samples or SAMPLES
    if samples < SAMPLES:
        raise BenchError(f"--samples must be at least {SAMPLES} on a GPU; got {samples}")
    cases = select(bench_cases.CASES, args.case)
    if args.plot:
        from . import bench_plot  # matplotlib is optional: missed now, not after the measurements
    if not (torch.cuda.is_available() and registry.build().cuda):
        raise BenchError("--device cuda needs a GPU that torch sees and a build with kernels for it")

    def timer(call: Call) -> list[float]:
        return time_graph(call, samples)

    device = torch.device("cuda")
    rates = measure_rates(device, timer)
    record = new_record(_devices.command(args.json, args.plot), device, rates)
    results = time_cases(cases, record, rates, _devices.arch(device), timer, args.json)
    print(report(results, record))
    if args.plot:
        bench_plot.draw(record, args.plot)
    for failure in record["failed"]:
        print(f"strata_gdn: {failure}", file=sys.stderr)
    return 1 if record["failed"] else 0


def new_record(command: list[str], device: torch.device, rates: roofline.Rates) -> dict[str, Any]:
    """A record (bench_record) without results."""
    return {
        "command": command,
        "environment": _devices.describe(device) | {"fla": bench_peers.fla_version()},
        "shape": {
            "K": bench_cases.HEAD_DIM,
            "V": bench_cases.HEAD_DIM,
            "W": bench_cases.CONV_WIDTH,
            "dtype": str(bench_cases.DTYPE).removeprefix("torch."),
        },
        "rates": rates.as_record(),
        "results": [],
        "left_out": [],
        "failed": [],
        "quoted": bench_peers.quoted(),
        "complete": False,
    }


def time_cases(
    cases: list[Case], record: dict[str, Any], rates: roofline.Rates, arch: str, timer: Timer, file: Path | None
) -> list[Result]:
    """Times the cases on a card of this architecture, fills the record and writes it to the file after each case."""
    results = []
    for case in cases:
        arms = []
        for arm in case.arms:
            if reason := left_out(case, arm, arch, rates.multiprocessors):
                record["left_out"].append({"case": str(case), "kernel": " + ".join(arm.kernels), "reason": reason})
            else:
                arms.append(arm)
        for outcome in measure(case, arms, rates, timer):
            if isinstance(outcome, WrongKernelError):
                record["failed"].append(str(outcome))
            else:
                results.append(outcome)
                record["results"].append(outcome.as_record())
        record["complete"] = case is cases[-1]
        if file:
            bench_record.write(record, file)
    return results


# What is printed


def report(results: list[Result], record: Mapping[str, Any]) -> str:
    """The tables: what was measured, what was left out, and, apart from both, what is quoted."""
    environment, rates = record["environment"], record["rates"]
    parts = [
        f"{environment['device']}, torch {environment['torch']}, fla {environment['fla']}\n"
        f"copy {rates['copy_bytes_per_second'] / 1e12:.2f} TB/s; {rates['multiprocessors']} multiprocessors x "
        f"{rates['lanes']} lanes x {rates['clock_hz'] / 1e9:.2f} GHz = {rates['fma_per_second'] / 1e12:.1f} TFMA/s, of "
        f"which a float32 matrix product reaches {rates['matmul_fma_per_second'] / rates['fma_per_second']:.0%}\n"
        "us: medians of graph replays, flushed L2; limit: the part of the binding limit that was reached"
    ]
    if results:
        parts.append(_table(results))
    if record["left_out"]:
        parts.append("\n".join(f"{x['case']}: no {x['kernel']}: {x['reason']}" for x in record["left_out"]))
    if bench_peers.fla() is None:
        parts.append(bench_peers.FLA_INSTALL)
    elif quotes := _quotes(results):
        parts.append(quotes)
    return "\n\n".join(parts)


def _table(results: list[Result]) -> str:
    rows = [
        ("case", "tokens", "sequences", "kernel", "us", "us/token", "peer", "peer us", "times peer", "limit", "chosen")
    ]
    for r in results:
        peer, peer_us, ratio = "-", "-", "-"
        if r.peer and r.peer_seconds:
            peer, peer_us, ratio = r.peer, f"{r.peer_seconds * 1e6:.1f}", f"{r.median / r.peer_seconds:.2f}"
        limit, reached = r.limit
        rows.append((
            r.case, str(r.tokens), str(r.sequences), r.kernel, f"{r.median * 1e6:.1f}",
            f"{r.median * 1e6 / r.tokens:.4f}", peer, peer_us, ratio, f"{reached:.0%} of {limit}",
            "yes" if r.chosen else "",
        ))  # fmt: skip
    return columns(rows)


def _quotes(results: list[Result]) -> str:
    """Where the best peer that is not installed would stand: its ratio to fla elsewhere, times fla's time here."""
    fla_us = {(r.case, r.tokens): r.peer_seconds * 1e6 for r in results if r.peer == "fla" and r.sequences == 1}
    rows = [
        (q.case, str(q.tokens), q.peer, f"{q.ratio:.2f}", f"{fla_us[q.case, q.tokens] * q.ratio:.1f}")
        for q in bench_peers.QUOTES
        if (q.case, q.tokens) in fla_us
    ]
    if not rows:
        return ""
    head = ("case", "tokens", "best peer", "times fla, quoted", "us if so here")
    return f"QUOTED, not measured in this run; from {bench_peers.QUOTED_FROM}\n{columns([head, *rows])}"
