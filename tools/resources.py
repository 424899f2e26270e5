"""What every CUDA kernel uses on every architecture, and which ceilings are broken: docs/resources.md.

    python tools/resources.py [--arch sm_86 sm_90] [--json FILE]

The exit status is 1 where a ceiling is broken, and 2 without a CUDA toolkit.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from gpu_resources import ceilings, compiler, table


def main() -> int:
    toolkit = compiler.cuda_toolkit.find_toolkit()
    if toolkit is None:
        print("resources: no CUDA toolkit found; CUDA_HOME names one", file=sys.stderr)
        return 2
    known = [f"sm_{arch}" for arch in compiler.architectures(toolkit)]
    parser = argparse.ArgumentParser(description="What every CUDA kernel uses, and which ceilings are broken.")
    parser.add_argument(
        "--arch", nargs="+", choices=known, default=known, metavar="ARCH", help=f"of {', '.join(known)}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to FILE too")
    arguments = parser.parse_args()
    kernels = compiler.resources(toolkit, [arch.removeprefix("sm_") for arch in arguments.arch])
    print(f"nvcc {toolkit.version()}\n{table.LEGEND}\n\n{table.table(kernels)}\n")
    if arguments.json:
        record = {"nvcc": toolkit.version(), "kernels": [dataclasses.asdict(kernel) for kernel in kernels]}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    broken = ceilings.broken(toolkit, ceilings.launched(kernels))
    print("\n".join([*broken, f"{len(kernels)} kernels, {len(broken)} broken ceilings"]))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
