"""The compilers: kernels as device code for an architecture, the engine, and the ops' host side. No ROCm is needed.

What was compiled is kept in build/rdna under a name made of everything it was made from.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CSRC = ROOT / "csrc"
ENGINE = HERE / "engine"
HOST = HERE / "host"
INCLUDE = HERE / "include"
KEPT = ROOT / "build" / "rdna"
sys.path.insert(0, str(ROOT / "tools" / "build_backend"))

import rocm_toolkit  # noqa: E402

ARCHES = ("gfx1030", "gfx1100", "gfx1151", "gfx1200", "gfx1201")

CLANG = "clang++-22"
OBJDUMP = "llvm-objdump-22"
PROGRAMS = (CLANG, OBJDUMP, "ld.lld-22")
MODULES = {"elftools": "pyelftools", "msgpack": "msgpack"}

SOURCES = json.loads((CSRC / "sources.json").read_text())
KERNELS = tuple(CSRC / name for name in [*SOURCES["gpu"], *SOURCES["hip"]] if name != "cuda/runtime.cu")

HIP = ("-x", "hip", "-nogpuinc", "-nogpulib", "-fms-extensions", "-std=c++17", "-D__HIPCC__", f"-I{INCLUDE}",
       f"-I{CSRC}", *rocm_toolkit.NUMERICS)  # fmt: skip
DEVICE = (*HIP, "--cuda-device-only", "--no-gpu-bundle-output", "-O3")
# The host side has no device code of its own: its kernels are looked up by their names.
HOST_SIDE = (*HIP, "--cuda-host-only", "-fuse-cuid=none", "--offload-arch=gfx1100", "-O1", "-fPIC")
DEVICE_FOLDERS = (CSRC / "core", CSRC / "cuda", CSRC / "hip", INCLUDE)
HEADERS = {".h", ".cuh", ".inl"}
ENGINE_FLAGS = ("-std=c++20", "-O2", "-march=native", "-ffp-contract=off", "-fPIC", "-pthread", "-Wall", "-Wextra",
                f"-I{INCLUDE}", f"-I{ENGINE}")  # fmt: skip


class CompileError(RuntimeError):
    """The command and what the compiler said."""


def missing() -> str:
    """What is not installed, in words; empty where everything is."""
    programs = [name for name in PROGRAMS if shutil.which(name) is None]
    modules = [package for module, package in MODULES.items() if importlib.util.find_spec(module) is None]
    return ", ".join([*programs, *modules])


def run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompileError(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def code_object(source: Path, arch: str) -> Path:
    """A source's kernels for an architecture, as an ELF file."""
    return _compiled(source, f"{source.stem}_{arch}.co", [*DEVICE, f"--offload-arch={arch}"], DEVICE_FOLDERS)


def all_code_objects(arch: str) -> list[Path]:
    """Every kernel of the package for an architecture."""
    return _in_parallel(lambda source: code_object(source, arch), KERNELS)


def disassembly(code: Path, symbol: str) -> str:
    return run([OBJDUMP, "-d", f"--disassemble-symbols={symbol}", str(code)])


def engine_library() -> Path:
    """engine/ as a shared library."""
    flags = [*ENGINE_FLAGS, "-c"]
    folders = [ENGINE, INCLUDE]
    objects = _in_parallel(
        lambda source: _compiled(source, f"engine_{source.stem}.o", flags, folders, _processor()),
        sorted(ENGINE.glob("*.cpp")),
    )
    return _linked("engine.so", objects, ["-pthread"])


def ops_library() -> Path:
    """The ops of the package with the runner as their device, as a shared library for torch (ops.py)."""
    import torch
    from torch.utils import cpp_extension

    includes = [f"-isystem{path}" for path in cpp_extension.include_paths()]
    # torch's own C++ interface, which the allocator needs, and the stable one that the package is built with. The ops
    # have a namespace of their own.
    torch_flags = ["-std=c++20", "-O1", "-fPIC", "-c", f"-I{ENGINE}", *includes]
    stable_flags = ["-std=c++17", "-O1", "-fPIC", "-c", f"-I{CSRC}", *includes, "-DGDN_WITH_GPU", "-DGDN_WITH_HIP",
                    "-DTORCH_TARGET_VERSION=0x020a000000000000", "-Dstrata_gdn=strata_gdn_rdna",
                    "-ffp-contract=off"]  # fmt: skip
    replaced = [CSRC / "module.cpp", CSRC / "api" / "launch.cpp"]
    stable = [CSRC / name for group in ("bind", "core", "cpu") for name in SOURCES[group]]
    flags = {source: stable_flags for source in stable if source not in replaced}
    flags |= {HOST / "launch.cpp": stable_flags, HOST / "allocator.cpp": torch_flags}
    flags |= {source: [*HOST_SIDE, "-c"] for source in KERNELS}
    folders = {source: [CSRC, INCLUDE] for source in flags} | {HOST / "allocator.cpp": [ENGINE]}
    objects = _in_parallel(
        lambda source: _compiled(
            source, f"{source.parent.name}_{source.stem}.o", flags[source], folders[source], torch.__version__
        ),
        flags,
    )
    libraries = [f"-L{path}" for path in cpp_extension.library_paths()]
    engine = engine_library()
    # Without an identity of a compilation every object defines the same marker of one.
    libraries.append("-Wl,-z,muldefs")
    return _linked("ops.so", objects, [str(engine), *libraries, "-ltorch", "-ltorch_cpu", "-lc10"])


def _compiled(source: Path, name: str, flags: Sequence[str], folders: Sequence[Path], *more: str) -> Path:
    """`folders`: where the headers are that it may include."""
    command = [CLANG, *flags, str(source)]
    content = hashlib.sha256(source.read_bytes()).hexdigest()
    return _kept(name, [*command, content, *map(_headers, folders), *more], lambda path: [*command, "-o", str(path)])


def _linked(name: str, objects: Sequence[Path], flags: Sequence[str]) -> Path:
    command = [CLANG, "-shared", *map(str, objects), *flags]
    return _kept(name, command, lambda path: [*command, "-o", str(path)])


def _kept(name: str, made_from: Sequence[str], command: Callable[[Path], Sequence[str]]) -> Path:
    """The file that the command writes, made once for what it is made from and the compiler's version."""
    digest = hashlib.sha256("\0".join([version(), *made_from]).encode())
    path = KEPT / f"{digest.hexdigest()[:16]}_{name}"
    if path.exists():
        return path
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of another process
        if not path.exists():
            unfinished = path.with_suffix(f".{os.getpid()}")
            run(command(unfinished))
            unfinished.replace(path)
    return path


def _in_parallel(f: Callable[[Path], Path], inputs: Iterable[Path]) -> list[Path]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(f, inputs))


@functools.cache
def version() -> str:
    return run([CLANG, "--version"])


@functools.cache
def _processor() -> str:
    """What -march=native stands for."""
    return run([CLANG, "-march=native", "-E", "-dM", "-xc", "/dev/null"])


@functools.cache
def _headers(folder: Path) -> str:
    """A digest of the headers in a folder."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in HEADERS):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
