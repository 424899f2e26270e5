"""Compiles CUDA sources as the package is built, but for their kernels' resources only, and keeps what it found."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from filelock import FileLock

from .kernels import Kernel, read_kernels, template_name

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
BUILD = ROOT / "build" / "resources"
SOURCES = json.loads((CSRC / "sources.json").read_text())
sys.path.insert(0, str(ROOT / "tools" / "build_backend"))

import cuda_toolkit  # noqa: E402
from cuda_toolkit import Toolkit  # noqa: E402

_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
_SHARED_BYTES = re.compile(r"\bshared_bytes_(\d+) = (\d+);")


def architectures(toolkit: Toolkit) -> list[str]:
    """Those of csrc/sources.json that have machine code and that this nvcc knows: "75", "80", ..."""
    listed = [arch for arch in SOURCES["cuda_archs"] if "+" not in arch]
    return cuda_toolkit.compilable_architectures(toolkit, listed, None)


def resources(toolkit: Toolkit, archs: Sequence[str]) -> list[Kernel]:
    """Every CUDA kernel of csrc/sources.json on every one of the architectures.

    Several compilers run at once. A result is kept in build/resources until a file or the compiler changes.

    Raises:
        RuntimeError: a source does not compile, or nothing says how much dynamic shared memory a kernel asks for.
    """
    jobs = list(itertools.product([*SOURCES["gpu"], *SOURCES["cuda"]], archs))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda job: _kept(toolkit, *job), jobs)
        return [kernel for kernels in found for kernel in kernels]


def compile_source(toolkit: Toolkit, source: str, arch: str) -> list[Kernel]:
    """The kernels of one source, compiled now. ``source`` is relative to csrc/, or an absolute path."""
    with tempfile.TemporaryDirectory() as folder:
        machine_code = Path(folder) / f"{Path(source).stem}.cubin"
        options = ["-cubin", "--resource-usage", "--keep", "--keep-dir", folder, "-o", str(machine_code)]
        report = nvcc(toolkit, [*cuda_toolkit.architecture_flags([arch]), *options, str(CSRC / source)])
        ptx = machine_code.with_suffix(".ptx").read_text()
    return read_kernels(
        source, arch, ptx, report, lambda signatures: _dynamic_shared_bytes(toolkit, source, tuple(signatures))
    )


def key(toolkit: Toolkit, source: str) -> str:
    """Everything that decides what compiling a source finds, as one word."""
    digest = hashlib.sha256(f"{_compiler_version(toolkit)} {cuda_toolkit.MACHINE_CODE_FLAGS}".encode())
    for path in [Path(__file__), Path(__file__).with_name("kernels.py"), *_included(source)]:
        digest.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def nvcc(toolkit: Toolkit, arguments: Sequence[str]) -> str:
    """What nvcc prints, run with the flags that decide the machine code.

    Raises:
        RuntimeError: it failed; the message has the command and what it printed.
    """
    command = [str(toolkit.home / "bin" / "nvcc"), *cuda_toolkit.MACHINE_CODE_FLAGS, f"-I{CSRC}", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout}")
    return done.stdout


def _kept(toolkit: Toolkit, source: str, arch: str) -> list[Kernel]:
    kept = BUILD / f"{Path(source).stem}-sm_{arch}.json"
    current = key(toolkit, source)
    with alone(kept):
        if kept.is_file():
            record = json.loads(kept.read_text())
            if record["key"] == current:
                return [Kernel(**fields) for fields in record["kernels"]]
        kernels = compile_source(toolkit, source, arch)
        written = kept.with_suffix(".new")
        written.write_text(json.dumps({"key": current, "kernels": [dataclasses.asdict(kernel) for kernel in kernels]}))
        written.replace(kept)
        return kernels


def alone(path: Path) -> FileLock:
    """A lock for making ``path`` in BUILD: another process waits, and then finds it made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_suffix(".lock"))


@functools.cache
def _compiler_version(toolkit: Toolkit) -> str:
    return nvcc(toolkit, ["--version"])


def _included(source: str) -> list[Path]:
    """A source and, before it, every header of csrc/ that it includes, directly or not."""
    found: dict[str, None] = {}
    waiting = [source]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = None
            waiting += _INCLUDE.findall((CSRC / name).read_text())
    return [CSRC / name for name in reversed(found)]


@functools.cache
def _dynamic_shared_bytes(toolkit: Toolkit, source: str, signatures: tuple[str, ...]) -> list[int]:
    """What the launchers of these kernels ask for.

    Only the launcher knows, so a kernel ``x_kernel<Arguments>`` has a constant ``x_shared_bytes<Arguments>`` in its
    namespace, which its launcher uses; compiled into a variable's first value it can be read from the PTX.
    """
    if not signatures:
        return []
    headers, constants = {}, []
    for kernel, arguments in map(template_name, signatures):
        constant = kernel.removesuffix("_kernel") + "_shared_bytes"
        name = constant.rpartition(":")[2]
        defined_in = next((path for path in _included(source) if re.search(rf"\b{name} =", path.read_text())), None)
        if defined_in is None:
            raise RuntimeError(
                f"{source}: {kernel} uses dynamic shared memory; its launcher must take the size from a constant {name}"
            )
        headers[defined_in] = f'#include "{defined_in}"\n'
        constants.append(f"__device__ int shared_bytes_{len(constants)} = {constant}{arguments};\n")
    with tempfile.TemporaryDirectory() as folder:
        program, ptx = Path(folder) / "shared_bytes.cu", Path(folder) / "shared_bytes.ptx"
        program.write_text("".join([*headers.values(), 'extern "C" {\n', *constants, "}\n"]))
        nvcc(toolkit, ["-ptx", "-o", str(ptx), str(program)])
        values = {int(number): int(value) for number, value in _SHARED_BYTES.findall(ptx.read_text())}
    return [values[number] for number in range(len(constants))]
