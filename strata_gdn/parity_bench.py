"""`python -m strata_gdn parity --device cuda --bench`: the kernels that serve a prompt, in turn.

A sample of each kernel follows a sample of the others, so that whatever else the machine does meets them all; a sample
is one replay of a CUDA graph of one call between two events, after the L2 cache has been overwritten. The cases are the
benchmark's prompts (bench_cases) of one sequence; a time is one of the kernel that was asked for, or there is none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

import torch

from . import _devices, bench_cases, ops, registry
from ._table import columns
from .bench_common import launches
from .bench_cuda import L2_FLUSH_BYTES, SAMPLES, left_out


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


def graph_of(call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # loads what the first call loads
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    return graph


def time_in_turn(graphs: Sequence[torch.cuda.CUDAGraph], samples: int = SAMPLES) -> list[list[float]]:
    """Seconds of `samples` replays of each graph."""
    flush = torch.empty(L2_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    seconds: list[list[float]] = [[] for _ in graphs]
    for _ in range(samples):
        for graph, own in zip(graphs, seconds, strict=True):
            flush.fill_(0)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            own.append(start.elapsed_time(end) * 1e-3)
    return seconds


def time_case(case: bench_cases.Case, device: torch.device) -> tuple[list[Result], list[str]]:
    """The case with every kernel that can serve it, and what went wrong: another kernel ran than the one asked for."""
    torch.manual_seed(0)
    x = bench_cases.recurrence_inputs(case)

    def ours() -> torch.Tensor:
        return ops.gated_delta_rule_(**x)

    with launches() as chosen:
        ours()
    arch, sms = _devices.arch(device), torch.cuda.get_device_properties(device).multi_processor_count
    graphs, failures = {}, []
    for arm in case.arms:
        if left_out(case, arm, arch, sms):
            continue
        with registry.overrides(**arm.switches), launches() as served:
            graph = graph_of(ours)
        if set(served) == set(arm.kernels):
            graphs[" + ".join(served)] = graph
        else:
            failures.append(f"{case}: asked for {' + '.join(arm.kernels)}; served: {served}")
    times = dict(zip(graphs, time_in_turn(list(graphs.values())), strict=True))
    medians = {kernel: median(seconds) for kernel, seconds in times.items()}
    first = next(iter(medians.values()), 1.0)
    results = [
        Result(case.name, case.tokens, kernel, seconds, medians[kernel] / first, kernel in chosen)
        for kernel, seconds in times.items()
    ]
    return results, failures


def run(args: argparse.Namespace) -> int:
    """Times everything, prints the table and writes the JSON; 1 where a kernel ran that was not asked for."""
    device = torch.device("cuda")
    cases = [case for case in bench_cases.prompts() if case.sequences == 1]
    if args.tokens:
        layers = [case for case in cases if case.tokens == bench_cases.PROMPT_TOKENS[0]]
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
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    for failure in failures:
        print(f"strata_gdn: {failure}", file=sys.stderr)
    return 1 if failures else 0
