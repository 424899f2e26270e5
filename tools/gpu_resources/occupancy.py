"""How many blocks of a kernel a multiprocessor holds: occupancy.cpp with the limits of the architectures."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .compiler import BUILD, Toolkit, alone, nvcc
from .kernels import Kernel

BLOCK_THREADS = 1024
_KB = 1024


@dataclass(frozen=True)
class Multiprocessor:
    """What the blocks of a multiprocessor divide among them beyond its 65536 registers."""

    threads: int
    shared_bytes: int
    block_shared_bytes: int  # the most that one block may opt in to
    reserved_bytes: int  # of each block's, kept by the driver


# "Technical Specifications per Compute Capability" of NVIDIA's programming guide.
MULTIPROCESSORS = {
    "75": Multiprocessor(1024, 64 * _KB, 64 * _KB, 0),
    "80": Multiprocessor(2048, 164 * _KB, 163 * _KB, 1 * _KB),
    "86": Multiprocessor(1536, 100 * _KB, 99 * _KB, 1 * _KB),
    "89": Multiprocessor(1536, 100 * _KB, 99 * _KB, 1 * _KB),
    "90": Multiprocessor(2048, 228 * _KB, 227 * _KB, 1 * _KB),
    "100": Multiprocessor(2048, 228 * _KB, 227 * _KB, 1 * _KB),
    "120": Multiprocessor(1536, 100 * _KB, 99 * _KB, 1 * _KB),
}


@dataclass(frozen=True)
class Blocks:
    """How many blocks of a kernel fit a multiprocessor, by one limit each and by all of them."""

    registers: int
    shared_memory: int
    threads: int
    resident: int


def blocks(toolkit: Toolkit, kernels: Sequence[Kernel]) -> list[Blocks]:
    """Of each kernel, which has launch bounds.

    Raises:
        KeyError: an architecture that MULTIPROCESSORS lacks.
        subprocess.CalledProcessError: the toolkit does not know an architecture.
    """
    lines = []
    for kernel in kernels:
        limits = MULTIPROCESSORS[kernel.arch]
        # fmt: off
        numbers = (
            *divmod(int(kernel.arch), 10),
            limits.threads, limits.shared_bytes, limits.block_shared_bytes, limits.reserved_bytes,
            kernel.registers, kernel.threads, kernel.static_bytes, kernel.dynamic_bytes, kernel.barriers,
        )
        # fmt: on
        lines.append(" ".join(map(str, numbers)))
    done = subprocess.run([_calculator(toolkit)], input="\n".join(lines), stdout=subprocess.PIPE, text=True, check=True)
    return [Blocks(*map(int, line.split())) for line in done.stdout.splitlines()]


@functools.cache
def _calculator(toolkit: Toolkit) -> Path:
    program = BUILD / f"occupancy-{toolkit.version()}.out"
    source = Path(__file__).with_suffix(".cpp")
    with alone(program):
        if not program.is_file() or program.stat().st_mtime < source.stat().st_mtime:
            nvcc(toolkit, ["-cudart=none", "-o", str(program), str(source)])
    return program
