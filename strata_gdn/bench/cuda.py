"""`python -m strata_gdn bench --device cuda`: the ops on a GPU, with fla beside them where it is installed.

A line is the median of all samples (graphs). The recurrences are timed with every kernel that can serve them, the
pointwise ops beside a copy that moves as many bytes, decode beside a multiply over the same states (cases). A line is a
time of the kernel that was asked for: if another one ran, the line is an error and the benchmark fails (arms). Each is
held against what the card could do (rates, roofline) and against the marks that it is to reach. docs/bench.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from .. import _devices
from . import peers, roofline
from .arms import CaseTimes, Clock, time_case
from .case import CONV_WIDTH, DTYPE, HEAD_DIM, Case
from .cases import CASES
from .common import UsageError, require_gpu, select
from .graphs import SAMPLES, GraphClock, time_graph
from .rates import measure_rates
from .record import write
from .report import Result, report


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

    device = torch.device("cuda")
    rates = measure_rates(device, lambda call: time_graph(call, samples))
    record = new_record(_devices.command(args.json, args.plot), device, rates)
    results = time_cases(cases, record, rates, device, GraphClock(samples), args.json)
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
    cases: list[Case],
    record: dict[str, Any],
    rates: roofline.Rates,
    device: torch.device,
    clock: Clock,
    file: Path | None,
) -> list[Result]:
    """Times the cases on a device, fills the record and writes it to the file after each case."""
    results = []
    for case in cases:
        times = time_case(case, device, rates.multiprocessors, clock)
        results += (of_case := results_of(case, times, rates))
        record["results"] += [result.as_record() for result in of_case]
        record["left_out"] += [
            {"case": str(case), "kernel": str(arm), "reason": reason} for arm, reason in times.left_out
        ]
        record["failed"] += times.failed
        record["complete"] = case is cases[-1]
        if file:
            write(record, file)
    return results


def results_of(case: Case, times: CaseTimes, rates: roofline.Rates) -> list[Result]:
    return [
        Result(
            case=case.name,
            tokens=case.tokens,
            sequences=case.sequences,
            kernel=str(time.arm),
            switches=dict(time.arm.switches),
            config=time.config,
            seconds=time.seconds,
            chosen=time.chosen,
            moved_bytes=times.work.moved_bytes,
            fma=times.work.fma,
            limits=rates.limits(times.work),
            peers=times.peers,
            marks=case.marks,
        )
        for time in times.arms
    ]
