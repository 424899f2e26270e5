"""`python -m strata_gdn bench --device cuda`: the ops on a GPU, with fla beside them where it is installed.

A line is the median of all samples (graphs). The recurrences are timed with every kernel that can serve them, the
pointwise ops beside a copy that moves as many bytes (cases). A line is a time of the kernel that was asked for: if
another one ran, the line is an error and the benchmark fails (arms). Each is held against what the card could do
(rates, roofline). docs/bench.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .. import _devices
from .._launches import launches
from . import peers, roofline
from .arms import WrongKernelError, left_out, served_by
from .cases import CASES, CONV_WIDTH, DTYPE, HEAD_DIM, Arm, Case
from .common import UsageError, require_gpu, select
from .graphs import SAMPLES, Call, Timer, time_graph
from .rates import measure_rates
from .record import write
from .report import Result, report


def measure(case: Case, arms: list[Arm], rates: roofline.Rates, timer: Timer) -> Iterator[Result | WrongKernelError]:
    """The case with each of `arms`: a result, or the error of an arm that other kernels served."""
    torch.manual_seed(0)
    calls = case.make(case)
    peer_samples = [sample / case.repeats for sample in timer(calls.peer.call)] if calls.peer else []
    with launches() as chosen:
        calls.ours()
    for arm in arms:
        try:
            samples = served_by(arm, case, lambda: timer(calls.ours))
        except WrongKernelError as error:
            yield error
            continue
        yield Result(
            case=case.name,
            tokens=case.tokens,
            sequences=case.sequences,
            kernel=str(arm),
            seconds=[sample / case.repeats for sample in samples],
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
        raise UsageError(f"--samples must be at least {SAMPLES} on a GPU; got {samples}")
    cases = select(CASES, args.case)
    if args.plot:
        from . import plot  # matplotlib is optional: missed now, not after the measurements
    require_gpu()

    def timer(call: Call) -> list[float]:
        return time_graph(call, samples)

    device = torch.device("cuda")
    rates = measure_rates(device, timer)
    record = new_record(_devices.command(args.json, args.plot), device, rates)
    results = time_cases(cases, record, rates, _devices.arch(device), timer, args.json)
    print(report(results, record))
    if args.plot:
        plot.draw(record, args.plot)
    for failure in record["failed"]:
        print(f"strata_gdn: {failure}", file=sys.stderr)
    return 1 if record["failed"] else 0


def new_record(command: list[str], device: torch.device, rates: roofline.Rates) -> dict[str, Any]:
    """A record (record.py) without results."""
    return {
        "command": command,
        "environment": _devices.describe(device) | {"fla": peers.fla_version()},
        "shape": {
            "K": HEAD_DIM,
            "V": HEAD_DIM,
            "W": CONV_WIDTH,
            "dtype": str(DTYPE).removeprefix("torch."),
        },
        "rates": rates.as_record(),
        "results": [],
        "left_out": [],
        "failed": [],
        "quoted": peers.quoted(),
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
                record["left_out"].append({"case": str(case), "kernel": str(arm), "reason": reason})
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
            write(record, file)
    return results
