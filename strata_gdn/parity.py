"""`python -m strata_gdn parity`: every kernel on a device, bit for bit.

Each op of the table (parity_calls.py) is called with every kernel that can serve it: on a GPU what the registry's
switches choose among, on the CPU every instruction set of the machine. Its results, its states and all other memory of
its arguments must have the bits of the plain call on the CPU; fresh results start as NaN, so that an element that is
not written differs. Prompts are also held against float64 and a bound (parity_bound.py). A call whose kernel is not the
one that was asked for fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.utils.deterministic
from torch import Tensor

from . import _devices, parity_bound, reference, registry
from ._table import columns
from .parity_calls import CALLS, GROUPS, MORE_CALLS, TOKENS, Call, Prompt, call, prompts
from .parity_compare import Distance, difference_in_bits, distance

OPS = tuple(dict.fromkeys(name.split()[0] for name in CALLS))
PROMPT = "gated_delta_rule"
CHUNK = 64  # of the float64 reference, whose chunked form is the faster one
ISAS = ("baseline", "avx2", "avx512")

Switches = dict[str, int | str]
# The switches that choose among an op's kernels on a GPU; elsewhere there is one.
GPU_SWITCHES: dict[str, list[Switches]] = {
    op: [{"GDN_KEYHEAD": 0}, {"GDN_KEYHEAD": 1}] for op in ("gated_delta_rule", "gated_delta_rule_")
}


@dataclass
class Row:
    """One call with one kernel."""

    op: str
    case: str
    kernel: str
    config: dict[str, str]
    switches: Switches  # that asked for it
    checks: int = 0
    failures: list[str] = field(default_factory=list)
    distances: dict[str, Distance] = field(default_factory=dict)

    @property
    def configured(self) -> str:
        config = ", ".join(f"{name} {value}" for name, value in self.config.items())
        return f"{self.kernel} ({config})" if config else self.kernel

    def check(self, failure: str) -> None:
        """Counts a check; an empty `failure` is a passed one."""
        self.checks += 1
        if failure:
            self.failures.append(failure)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1; got '{text}'")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="whose kernels (default cpu)")
    parser.add_argument("--op", nargs="+", choices=OPS, metavar="OP", help="only these ops (default: all)")
    parser.add_argument("--tokens", nargs="+", type=_count, metavar="T",
                        help="lengths of the prompts (default: 1 to 4099)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine, versions, command and all rows")
    parser.add_argument("--bench", action="store_true", help="times of the prompt's kernels in turn instead (cuda)")


def run(args: argparse.Namespace) -> int:
    if args.device == "cuda" and not (torch.cuda.is_available() and registry.build().cuda):
        print("strata_gdn: --device cuda needs a GPU and a build with kernels for it", file=sys.stderr)
        return 2
    if args.bench and (args.device == "cpu" or args.op):
        print("strata_gdn: --bench needs --device cuda and takes no --op", file=sys.stderr)
        return 2
    if args.bench:
        from . import parity_bench  # imports the benchmark's peers, which a comparison has no use for

        return parity_bench.run(args)
    device = torch.device(args.device)
    print(f"{_devices.name(device)} ({_devices.arch(device)}), torch {torch.__version__}")
    rows = []
    with poisoned_memory():
        for op in args.op or OPS:
            of_op = list(rows_of(op, device, args.tokens or TOKENS))
            print(f"\n{op}\n{_table(of_op) if of_op else f'  no kernel on {_devices.arch(device)}'}")
            for row in of_op:
                for failure in row.failures:
                    print(f"strata_gdn: {row.op}: {row.case}, {row.configured}: {failure}", file=sys.stderr)
            rows += of_op
    checks, failures = sum(row.checks for row in rows), sum(len(row.failures) for row in rows)
    if args.json:
        record = {"command": _devices.command(args.json), "environment": _devices.describe(device),
                  "checks": checks, "failures": failures, "rows": [asdict(row) for row in rows]}  # fmt: skip
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    print(f"\n{checks} checks, {failures} failures")
    return 1 if failures or not checks else 0


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Uninitialised tensors, the extension's too, are full of NaN."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]


def rows_of(op: str, device: torch.device, tokens: Sequence[int] = TOKENS) -> Iterator[Row]:
    """An op's calls, each with every kernel that can serve it on the device; the last row is about all kernels."""
    unseen = _asked(op, device, h=1, hv=max(GROUPS))  # whatever can serve any shape can serve this one
    if not unseen:
        return
    cases: list[tuple[str, Prompt | None]] = [(n, None) for n in (*CALLS, *MORE_CALLS) if n.split()[0] == op]
    cases += [(str(prompt), prompt) for prompt in prompts(tokens)] if op == PROMPT else []
    for case, prompt in cases:
        torch.manual_seed(zlib.crc32(case.encode()))
        for row in _compare(prompt.call() if prompt else call(case), case, device, prompt is not None):
            unseen = [(d, s) for d, s in unseen if (d.kernel, s) != (row.kernel, row.switches)]
            yield row
    every = Row(op, "every kernel is reached", "", {}, {})
    every.check("" if not unseen else f"no call reached {', '.join(f'{d.kernel} {s}' for d, s in unseen)}")
    yield every


def _compare(made: Call, case: str, device: torch.device, against_float64: bool) -> Iterator[Row]:
    asked = _asked(made.op, device, **_shape(made.arguments))
    expected = made.copy()
    results = expected.run()
    exact = _float64(made) if against_float64 else {}
    for decision, switches in asked:
        row = Row(made.op, case.removeprefix(made.op).strip(), decision.kernel, decision.config, switches)
        there = made.copy(device.type)
        with registry.overrides(**switches):
            registry.reset_served()
            actual = there.run()
            served = registry.served()
        row.check("" if served == {decision.kernel: 1} else f"asked for {decision.kernel}; served: {served}")
        for i, (result, want) in enumerate(zip(actual, results, strict=True)):
            row.check(_named(f"result {i}", difference_in_bits(result, want)))
        for (name, memory), (_, want) in zip(there.buffers(), expected.buffers(), strict=True):
            row.check(_named(f"memory of {name}", difference_in_bits(memory, want)))
        for (name, (want, bound)), result in zip(exact.items(), actual, strict=False):
            found = row.distances[name] = distance(result, want, bound)
            row.check("" if found.within else f"{name} is {found.used:.3g} bounds from float64 at {list(found.at)}")
        yield row


def _named(what: str, difference: str) -> str:
    return difference and f"{what}: {difference}"


def _float64(made: Call) -> dict[str, tuple[Tensor, Tensor]]:
    """A prompt's results in float64, each with the bound of its difference."""
    o, final_state = reference.gated_delta_rule(**made.arguments, chunk_size=CHUNK)
    o_bound, state_bound = parity_bound.prompt(made.arguments, o)
    return {"o": (o, o_bound), "state": (final_state, state_bound)}


def _asked(op: str, device: torch.device, **shape: int) -> list[tuple[registry.Decision, Switches]]:
    """What can serve a call, each kernel and configuration once, with the switches that ask for it."""
    where: dict[str, Any] = {"arch": _devices.arch(device)}
    choices = GPU_SWITCHES.get(op, [{}])
    if device.type == "cpu":
        with registry.overrides(GDN_CPU_ISA=None):
            where["arch"] = registry.cpu_arch()
        isas = ISAS[: ISAS.index(where["arch"].removeprefix("cpu-")) + 1]
        choices = [{"GDN_CPU_ISA": isa} for isa in isas]
    else:
        where["sms"] = torch.cuda.get_device_properties(device).multi_processor_count
    asked: list[tuple[registry.Decision, Switches]] = []
    for switches in choices:
        decision = registry.decide(op, **where, **shape, env=switches)
        if decision and (decision.kernel, decision.config) not in [(d.kernel, d.config) for d, _ in asked]:
            asked.append((decision, switches))
    return asked


def _shape(arguments: dict[str, Any]) -> dict[str, int]:
    """What a decision on a recurrence goes by; of another op nothing."""
    if "q" not in arguments or "v" not in arguments:
        return {}
    (batch, tokens, H, K), (HV, V) = arguments["q"].shape, arguments["v"].shape[2:]
    bounds = arguments.get("cu_seqlens")
    n = batch if bounds is None else len(bounds) - 1
    return {"n": n, "tokens": tokens if bounds is None else -(-tokens // max(n, 1)), "h": H, "hv": HV, "k": K, "v": V}


def _table(rows: list[Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row.distances))
    headings = [heading for name in names for heading in (f"{name} - float64", "of bound", "at")]
    lines = [("case", "kernel", "checks", "failed", *headings)]
    for row in rows:
        config = ", ".join(f"{name} {value}" for name, value in row.config.items())
        cells = [
            row.case,
            f"{row.kernel} ({config})" if config else row.kernel,
            str(row.checks),
            str(len(row.failures)),
        ]
        for found in row.distances.values():
            cells += [f"{found.largest:.1e}", f"{found.used:.1%}", ",".join(map(str, found.at))]
        lines.append((*cells, *[""] * (len(lines[0]) - len(cells))))
    return columns(lines, indent=2)
