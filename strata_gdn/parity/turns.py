"""`python -m strata_gdn parity --device cuda --bench`: the kernels that serve a prompt, in turn.

A sample of each kernel follows a sample of the others, so that whatever else the machine does meets them all. What a
sample is and the cases are the benchmark's (bench/arms.py, bench/graphs.py, bench/prompts.py: its prompts of one
sequence), for few tokens with the decode kernel among the kernels; a time is one of the kernel that was asked for, or
there is none.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median

import torch

from .. import _devices
from .._table import columns
from ..bench.arms import Clock, time_case
from ..bench.case import Case
from ..bench.graphs import GraphClock
from ..bench.prompts import RECURRENCES, STEP, TOKENS, prompts
from ..bench.record import write
from .kernels import sms


@dataclass
class Result:
    case: str
    tokens: int
    kernel: str
    seconds: list[float] = field(repr=False)
    ratio: float  # of its median to the first kernel's
    chosen: bool  # what the registry takes by itself

    @property
    def median(self) -> float:
        return median(self.seconds)


def cases_of(tokens: Sequence[int] | None) -> list[Case]:
    """The benchmark's prompts of one sequence, or its layers with other lengths."""
    cases = [replace(case, arms=(*RECURRENCES, STEP)) for case in prompts() if case.sequences == 1]
    if not tokens:
        return cases
    layers = [case for case in cases if case.tokens == TOKENS[0]]
    return [replace(layer, tokens=length) for layer in layers for length in tokens]


def results_of(case: Case, device: torch.device, clock: Clock) -> tuple[list[Result], list[str]]:
    """The case with every kernel that can serve it, and what went wrong: another kernel ran than the one asked for."""
    times = time_case(case, device, sms(device), clock, peers=False)
    medians = [median(time.seconds) for time in times.arms]
    results = [
        Result(case.name, case.tokens, str(time.arm), time.seconds, own / medians[0], time.chosen)
        for time, own in zip(times.arms, medians, strict=True)
    ]
    return results, times.failed


def run(args: argparse.Namespace) -> int:
    """Times everything, prints the table and writes the JSON.

    Returns 1 where a kernel ran that was not asked for or nothing could be timed, else 0.
    """
    device = torch.device("cuda")
    results: list[Result] = []
    failures: list[str] = []
    with torch.inference_mode():
        for case in cases_of(args.tokens):
            timed, wrong = results_of(case, device, GraphClock())
            results += timed
            failures += wrong
    environment = _devices.describe(device)
    rows = [("case", "tokens", "kernel", "us", "us a token", "ratio", "chosen")]
    rows += [
        (r.case, str(r.tokens), r.kernel, f"{r.median * 1e6:.1f}", f"{r.median * 1e6 / r.tokens:.4f}",
         f"{r.ratio:.3f}", "yes" if r.chosen else "")
        for r in results
    ]  # fmt: skip
    print(f"{environment['device']}, torch {environment['torch']}; medians of graph replays in turn, flushed L2")
    print(columns(rows))
    if args.json:
        record = {"command": _devices.command(args.json), "environment": environment, "failed": failures,
                  "results": [asdict(r) | {"median_seconds": r.median} for r in results]}  # fmt: skip
        write(record, args.json)
    for failure in failures:
        print(f"strata_gdn: {failure}", file=sys.stderr)
    return 1 if failures or not results else 0
