"""Where the ROCm compiler is, which architectures it is asked for, and what decides the kernels' machine code."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import architectures

NAME, KEY = "ROCm", "hip"  # KEY: of the lists in csrc/sources.json and, in capitals, of the binding's macros
VARIABLE = "GDN_HIP_ARCHS"
_PARTS = ("bin/hipcc", "include/hip/hip_runtime.h", "lib/libamdhip64.so")

# What decides the kernels' machine code, apart from the architecture. The exact lane fixes every rounding: no
# contraction that the source does not spell out. The other three are clang's defaults, which a flag of the user's
# (HIPCC_COMPILE_FLAGS_APPEND) should not take away unseen.
NUMERICS = (
    "-ffp-contract=off",
    "-fno-fast-math",
    "-fhip-fp32-correctly-rounded-divide-sqrt",
    "-fno-gpu-flush-denormals-to-zero",
)
MACHINE_CODE_FLAGS = ["-O3", "-std=c++17", *NUMERICS]
LIBRARIES = ["amdhip64", "dl"]  # that the extension is linked with


@dataclass(frozen=True)
class Toolkit:
    """A ROCm installation that can compile and link."""

    home: Path

    @property
    def library(self) -> Path:
        """Holds libamdhip64.so."""
        return self.home / "lib"

    def _hipcc(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.home / "bin" / "hipcc", *arguments], capture_output=True, text=True, check=False)

    def version(self) -> str:
        """The HIP version, "7.0.51831"."""
        done = self._hipcc("--version")
        found = re.search(r"HIP version: (\d+(?:\.\d+)*)", done.stdout)
        if not found:
            raise RuntimeError(f"hipcc --version names no version of HIP: {done.stdout + done.stderr!r}")
        return found.group(1)

    def compiles_for(self, arch: str) -> bool:
        """Whether hipcc knows the architecture. It has no list of those that it knows: an empty source is tried."""
        empty = ["-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib", "-fsyntax-only", os.devnull]
        return self._hipcc(f"--offload-arch={arch}", *empty).returncode == 0


def find_toolkit(home: str | None) -> Toolkit | None:
    """The installation in ``home``, where torch's BuildExtension takes hipcc from; None where it cannot compile.

    Raises:
        RuntimeError: ROCM_HOME or ROCM_PATH names a folder that is not a whole installation.
    """
    found = Path(home) if home else None
    if found and all((found / part).is_file() for part in _PARTS):
        return Toolkit(found)
    named = next((name for name in ("ROCM_HOME", "ROCM_PATH") if os.environ.get(name)), None)
    if named:
        raise RuntimeError(
            f"{named} must be a ROCm installation with {', '.join(_PARTS)}; got {os.environ[named]}. Unset it to "
            f"search the usual places; {VARIABLE}={architectures.NONE} builds no ROCm kernels"
        )
    return None


def compilable_architectures(toolkit: Toolkit, asked: Sequence[str], value: str | None) -> list[str]:
    """Those of ``asked`` that this hipcc can compile for, ``value`` being GDN_HIP_ARCHS (architectures.compilable)."""
    able = [arch for arch in asked if toolkit.compiles_for(arch)]
    compiler = f"hipcc {toolkit.version()} in {toolkit.home}"
    return architectures.compilable(VARIABLE, compiler, able, asked, value)


def architecture_flags(archs: Sequence[str]) -> list[str]:
    """hipcc's flags: machine code for each."""
    return [f"--offload-arch={arch}" for arch in archs]
