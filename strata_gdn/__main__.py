"""`python -m strata_gdn <command>`.

A command is a module with `add_arguments(parser)` and `run(args) -> int`, the exit status. Only the one that
is asked for is imported.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = {
    "info": "version, build, devices, switches and kernels",
    "explain": "which kernel serves a call and why, on any architecture, without the device",
    "bench": "times beside those of the reference implementations, in one run",
    "parity": "every kernel of a device against the plain CPU result bit for bit, and against float64",
    "demo": "a small random-weight Qwen3-Next with these ops, compared with Transformers' own",
}


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(prog="python -m strata_gdn")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if argv[:1] == [name]:
            module = import_module(f"strata_gdn.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    args = parser.parse_args(argv)
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
