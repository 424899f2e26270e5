"""`python -m strata_gdn parity --device cuda --bench`: the kernels that serve a prompt, in turn.

A sample of each kernel follows a sample of the others, so that whatever else the machine does meets them all. What a
sample is and the cases are the benchmark's (bench/graphs.py, bench/cases.py: its prompts of one sequence); a time is
one of the kernel that was asked for, or there is none.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass, field, replace
from statistics import median

import torch

from .. import _devices, ops
from .._launches import launches
from .._table import columns
from ..bench.arms import WrongKernelError, left_out, served_by
from ..bench.cases import PROMPT_TOKENS, Case, prompts, recurrence_inputs
from ..bench.graphs import graph_of, time_in_turn
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


def time_case(case: Case, device: torch.device) -> tuple[list[Result], list[str]]:
    """The case with every kernel that can serve it, and what went wrong: another kernel ran than the one asked for."""
    torch.manual_seed(0)
    x = recurrence_inputs(case)

    def ours() -> torch.Tensor:
        return ops.gated_delta_rule_(**x)

    with launches() as by_itself:
        ours()
    arms, graphs, failures = [], [], []
    for arm in case.arms:
        if left_out(case, arm, _devices.arch(device), sms(device)):
            continue
        try:
            graphs.append(served_by(arm, case, lambda: graph_of(ours)))
            arms.append(arm)
        except WrongKernelError as error:
            failures.append(str(error))
    results: list[Result] = []
    for arm, seconds in zip(arms, time_in_turn(graphs), strict=True):
        first = results[0].median if results else median(seconds)
        chosen = set(arm.kernels) == set(by_itself)
        results.append(Result(case.name, case.tokens, str(arm), seconds, median(seconds) / first, chosen))
    return results, failures


def run(args: argparse.Namespace) -> int:
    """Times everything, prints the table and writes the JSON.

    Returns 1 where a kernel ran that was not asked for or nothing could be timed, else 0.
    """
    device = torch.device("cuda")
    cases = [case for case in prompts() if case.sequences == 1]
    if args.tokens:
        layers = [case for case in cases if case.tokens == PROMPT_TOKENS[0]]
        cases = [replace(layer, tokens=tokens) for layer in layers for tokens in args.tokens]
    results: list[Result] = []
    failures: list[str] = []
    with torch.inference_mode():
        for case in cases:
            timed, wrong = time_case(case, device)
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
