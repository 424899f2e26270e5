"""`python -m strata_gdn bench`: the ops' times beside those of others in the same run, and the plot of a record.

Each device has its module, cpu and cuda, imported only when it is asked for: their peers are optional packages. This
one reads the options and refuses what cannot work before anything is measured.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from .common import MissingExtra, UsageError, require_writable

DEVICES = ("cpu", "cuda")
# The options that only one device's benchmark goes by.
ONLY_FOR = {"tokens": "cpu", "threads": "cpu", "plot": "cuda"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="where to run (default cpu)")
    parser.add_argument("--case", action="append", metavar="TEXT",
                        help="only the cases whose name contains this, repeatable (default: all)")  # fmt: skip
    parser.add_argument("--samples", type=int,
                        help="samples of a case; the CPU's steps take 20 times as many (default: 7 on a CPU, "
                        "30 on a GPU, which is the fewest there)")  # fmt: skip
    parser.add_argument("--tokens", type=int, help="tokens of a prompt, on a CPU (default 2048)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's choice)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine, versions, command and all samples")
    parser.add_argument("--plot", type=Path, metavar="FILE.png",
                        help="draw the prompts' time against tokens (needs the extra `bench`)")  # fmt: skip
    parser.add_argument("--from", type=Path, metavar="FILE.json", dest="record",
                        help="measure nothing: --plot draws this record, on any machine")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    try:
        _check(args)
        if args.record:
            return _plot(args)
        return import_module(f".{args.device}", __name__).run(args)
    except (UsageError, MissingExtra) as error:
        print(f"strata_gdn: {error}", file=sys.stderr)
        return 2


def _check(args: argparse.Namespace) -> None:
    for name in ("tokens", "samples", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} must be at least 1; got {value}")
    require_writable(args.json, args.plot)
    if args.record:
        if not args.plot:
            raise UsageError("--from draws a record: it needs --plot FILE.png")
        return
    for name, device in ONLY_FOR.items():
        if getattr(args, name) is not None and args.device != device:
            raise UsageError(f"--{name} is for --device {device}; got --device {args.device}")


def _plot(args: argparse.Namespace) -> int:
    from . import plot, record  # matplotlib is optional

    plot.draw(record.read(args.record), args.plot)
    return 0
