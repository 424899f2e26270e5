"""Where the CUDA compiler is, which architectures it is asked for, and what decides the kernels' machine code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import architectures

NAME, KEY = "CUDA", "cuda"  # KEY: of the lists in csrc/sources.json and, in capitals, of the binding's macros
VARIABLE = "GDN_CUDA_ARCHS"
_STATIC_RUNTIME = "libcudart_static.a"

# What decides the kernels' machine code, apart from the architecture. The exact lane fixes every rounding: no
# contraction that the source does not spell out.
MACHINE_CODE_FLAGS = ["-O3", "-std=c++17", "-fmad=false"]
LIBRARIES = ["cudart_static", "rt", "pthread", "dl"]  # that the extension is linked with


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit that can compile and link."""

    home: Path  # holds bin/nvcc
    library: Path  # holds libcudart_static.a

    def _nvcc(self, option: str) -> str:
        return subprocess.run([self.home / "bin" / "nvcc", option], capture_output=True, text=True, check=True).stdout

    def version(self) -> str:
        """The release, "13.0"."""
        text = self._nvcc("--version")
        found = re.search(r"release (\d+\.\d+)", text)
        if not found:
            raise RuntimeError(f"nvcc --version names no release: {text!r}")
        return found.group(1)

    def architectures(self) -> set[str]:
        """What nvcc can compile for: "75", "80", ..."""
        return set(re.findall(r"sm_(\d+)\b", self._nvcc("--list-gpu-code")))


def _first_with(home: Path, patterns: Sequence[str], name: str) -> Path | None:
    folders = (folder for pattern in patterns for folder in sorted(home.glob(pattern)))
    return next((folder for folder in folders if (folder / name).is_file()), None)


def _toolkit_at(home: Path) -> Toolkit | None:
    # nvcc alone proves nothing: on the PATH it may be a wrapper script far from its headers.
    nvcc = _first_with(home, ["bin"], "nvcc")
    headers = _first_with(home, ["include", "targets/*/include"], "cuda_runtime.h")
    library = _first_with(home, ["lib64", "lib", "targets/*/lib", "lib/*-linux-gnu"], _STATIC_RUNTIME)
    return Toolkit(home, library) if nvcc and headers and library else None


def _version_key(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]


def _usual_homes() -> Iterator[Path]:
    nvcc = shutil.which("nvcc")
    if nvcc:
        yield Path(nvcc).resolve().parents[1]
    yield Path("/usr/local/cuda")
    yield from sorted(Path("/usr/local").glob("cuda-*"), key=_version_key, reverse=True)
    yield Path("/opt/cuda")
    for entry in filter(None, sys.path):  # the nvidia-cuda-nvcc wheels
        yield from sorted(Path(entry).glob("nvidia/cu[0-9]*"), key=_version_key, reverse=True)


def find_toolkit() -> Toolkit | None:
    """The toolkit named by CUDA_HOME or CUDA_PATH, else the first usable one in the usual places, else None.

    Raises:
        RuntimeError: CUDA_HOME or CUDA_PATH names a folder that is not a whole toolkit.
    """
    for name in ("CUDA_HOME", "CUDA_PATH"):
        named = os.environ.get(name)
        if named:
            toolkit = _toolkit_at(Path(named))
            if toolkit is None:
                raise RuntimeError(
                    f"{name} must be a CUDA toolkit with bin/nvcc, include/cuda_runtime.h and {_STATIC_RUNTIME}; got "
                    f"{named}. Unset it to search the usual places; {VARIABLE}={architectures.NONE} builds no CUDA "
                    f"kernels"
                )
            return toolkit
    return next(filter(None, map(_toolkit_at, _usual_homes())), None)


def compilable_architectures(toolkit: Toolkit, asked: Sequence[str], value: str | None) -> list[str]:
    """Those of ``asked`` that this nvcc can compile for, ``value`` being GDN_CUDA_ARCHS (architectures.compilable)."""
    known = sorted(toolkit.architectures(), key=int)
    able = [arch for number in known for arch in (number, f"{number}+PTX") if arch == number or arch in asked]
    compiler = f"nvcc {toolkit.version()} in {toolkit.home}"
    return architectures.compilable(VARIABLE, compiler, able, asked, value)


def architecture_flags(archs: Sequence[str]) -> list[str]:
    """nvcc's flags: "90" is machine code for sm_90, "120+PTX" is PTX of compute_120, for cards still to come."""
    flags = []
    for arch in archs:
        number, _, ptx = arch.partition("+")
        flags.append(f"-gencode=arch=compute_{number},code={'compute' if ptx else 'sm'}_{number}")
    return flags
