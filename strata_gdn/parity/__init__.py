"""`python -m strata_gdn parity`: every kernel on a device, bit for bit.

Each call of the tables (calls.py, prompts.py) is made with every kernel that can serve it (kernels.py): on a GPU what
the registry's switches choose among, on the CPU every instruction set of the machine. Its results, its states and all
other memory of its arguments must have the bits of the plain call on the CPU; fresh results start as NaN, so that an
element that is not written differs. Prompts are also held against float64 and a bound (bound.py). A call whose kernel
is not the one that was asked for fails (check.py).

With `--precision fp32` the chunked form instead, which has other bits: against the exact lane, and against float64 and
a bound of its own (chunked.py).
`--logits` holds a whole model's next token against the exact one's (logit_check.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from .. import _devices
from .._table import columns
from ..bench.common import UsageError, require_gpu, require_writable
from ..bench.record import write
from . import chunked
from .calls import CALLS
from .check import PROMPT, Row, poisoned_memory, rows_of
from .prompts import TOKENS

OPS = tuple(dict.fromkeys(name.split()[0] for name in CALLS))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1; got '{text}'")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="whose kernels (default cpu)")
    parser.add_argument("--op", nargs="+", choices=OPS, metavar="OP", help="only these ops (default: all)")
    parser.add_argument("--precision", choices=["exact", "fp32"], default="exact",
                        help="fp32: prompts in the chunked form, against the exact lane and float64")  # fmt: skip
    parser.add_argument("--tokens", nargs="+", type=_count, metavar="T",
                        help="lengths of the prompts (default: to 4099; fp32: 32768; --logits: 8192)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine, versions, command and all rows")
    parser.add_argument("--bench", action="store_true", help="times of the prompt's kernels in turn instead (cuda)")
    parser.add_argument("--logits", action="store_true", help="a small model's next token by each lane instead")


def _check(args: argparse.Namespace) -> None:
    if args.device == "cuda":
        require_gpu()
    if args.bench and (args.device == "cpu" or args.op):
        raise UsageError("--bench needs --device cuda and takes no --op")
    if args.precision == "fp32" and (args.bench or args.op or args.logits):
        raise UsageError("--precision fp32 takes none of --bench, --logits and --op")
    if args.logits and (args.bench or args.op):
        raise UsageError("--logits takes neither --bench nor --op")
    require_writable(args.json)


def run(args: argparse.Namespace) -> int:
    try:
        _check(args)
    except UsageError as error:
        print(f"strata_gdn: {error}", file=sys.stderr)
        return 2
    if args.bench:
        from . import turns  # imports the benchmark's cases and peers, which a comparison has no use for

        return turns.run(args)
    if args.logits:
        try:
            from . import logit_check  # imports Transformers, an optional package
        except ImportError as error:
            print(f"strata_gdn: {error}", file=sys.stderr)
            return 2
        return logit_check.run(args)
    device = torch.device(args.device)
    print(f"{_devices.name(device)} ({_devices.arch(device)}), torch {torch.__version__}")
    rows = []
    if args.precision == "fp32":
        parts = {f"{PROMPT}, fp32": chunked.rows_of(device, args.tokens or chunked.TOKENS)}
    else:
        parts = {op: rows_of(op, device, args.tokens or TOKENS) for op in args.op or OPS}
    with poisoned_memory():
        for title, made in parts.items():
            of_op = list(made)
            print(f"\n{title}\n{_table(of_op) if of_op else f'  no kernel on {_devices.arch(device)}'}")
            for row in of_op:
                for failure in row.failures:
                    print(f"strata_gdn: {row.op}: {row.case}, {row.configured}: {failure}", file=sys.stderr)
            rows += of_op
    checks, failures = sum(row.checks for row in rows), sum(len(row.failures) for row in rows)
    if args.json:
        record = {"command": _devices.command(args.json), "environment": _devices.describe(device),
                  "checks": checks, "failures": failures, "rows": [asdict(row) for row in rows]}  # fmt: skip
        write(record, args.json)
    print(f"\n{checks} checks, {failures} failures")
    return 1 if failures or not checks else 0


def _table(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row.distances))
    minuends = [name if " - " in name else f"{name} - float64" for name in names]
    headings = [heading for name in minuends for heading in (name, "of bound", "at")]
    lines = [("case", "kernel", "checks", "failed", *headings)]
    for row in rows:
        cells = [row.case, row.configured, str(row.checks), str(len(row.failures))]
        for found in row.distances.values():
            cells += [f"{found.largest:.1e}", f"{found.used:.1%}", ",".join(map(str, found.at))]
        lines.append((*cells, *[""] * (len(lines[0]) - len(cells))))
    return columns(lines, indent=2)
