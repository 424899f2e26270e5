"""Stands in for hipcc and for the C++ compiler while tests/test_rocm_build.py builds the package.

    python stand_in.py NAME ARGUMENTS...

Every call is a line of the file in STAND_IN_LOG: the name and the arguments, as JSON. The outputs are empty files, or,
with STAND_IN_COMPILES=1, made without optimization: hipcc's by clang, the host side alone, without ROCm.
STAND_IN_UNKNOWN has architectures, separated by spaces, that this hipcc does not know.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

INCLUDE = Path(__file__).resolve().parents[2] / "tools" / "rdna" / "include"
# As hipcc calls it, but for -nogpuinc and what follows: the host side without ROCm, its kernels found by name.
CLANG = ["clang++-22", "-x", "hip", "-nogpuinc", "-nogpulib", f"-I{INCLUDE}", "-D__HIPCC__", "-fms-extensions",
         "--cuda-host-only", "-fuse-cuid=none"]  # fmt: skip
# Without an identity of a compilation every object of clang's defines the same marker of one.
MARKERS = "-Wl,-z,muldefs"
UNOPTIMIZED = "-O0"


def written(arguments: list[str]) -> list[Path]:
    """What a call is asked to write."""
    return [Path(arguments[i + 1]) for i, argument in enumerate(arguments) if argument in ("-o", "-MF")]


def main(name: str, arguments: list[str]) -> int:
    with open(os.environ["STAND_IN_LOG"], "a") as log:
        log.write(json.dumps([name, *arguments]) + "\n")
    if "--version" in arguments:
        print("HIP version: 7.0.51831-a3e329ad8" if name == "hipcc" else "c++ 13.2.0")
    elif "-dumpfullversion" in arguments:
        print("13.2.0")
    elif "-fsyntax-only" in arguments:
        unknown = os.environ.get("STAND_IN_UNKNOWN", "").split()
        return int(any(f"--offload-arch={arch}" in arguments for arch in unknown))
    elif os.environ.get("STAND_IN_COMPILES") == "1":
        compiler = CLANG if name == "hipcc" else ["c++"]
        last = UNOPTIMIZED if "-c" in arguments else MARKERS
        return subprocess.run([*compiler, *arguments, last], check=False).returncode
    else:
        for path in written(arguments):
            path.write_bytes(b"")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
