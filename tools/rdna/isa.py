"""What the compiler made of the kernels on RDNA, file by file: registers, spills, LDS, barriers, exchanges of lanes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from strata_gdn._table import columns

from . import toolchain
from .code_object import CodeObject, Kernel

LEGEND = """\
vector, scalar: the most registers of a kernel of the file; +: registers spilled to memory, of scalar ones to lanes
scratch:        the most bytes of a lane
LDS:            the most static bytes of a work-group
barriers:       in all kernels of the file: for LDS alone / of those, with a wait for other memory beside them / for all
                memory
exchanges:      through LDS's network + by DPP"""

MEMORY_WAIT = re.compile(r"s_waitcnt\b.*vmcnt|s_waitcnt_vscnt|s_wait_(?:load|store)cnt")
# Behind a barrier for all memory the caches are dropped.
CACHES_DROPPED = re.compile(r"buffer_gl[01]_inv|global_inv")
SIGNAL, WAIT = "s_barrier_signal", "s_barrier_wait"  # gfx12's halves; arithmetic may be between them
BARRIER = re.compile(rf"s_barrier$|{SIGNAL}")
BLOCK_END = re.compile(r"s_c?branch|s_barrier")
BESIDE = 4  # instructions


@dataclass(frozen=True)
class Facts:
    """Of a kernel on an architecture."""

    source: str
    arch: str
    name: str
    vector_registers: int
    scalar_registers: int
    vector_spills: int
    scalar_spills: int
    scratch_bytes: int
    shared_bytes: int
    barriers: Counter[str]  # by kind()
    lds_exchanges: int
    dpp: int


def facts(arch: str) -> list[Facts]:
    """Of every kernel of the package on an architecture."""
    objects = zip(toolchain.KERNELS, toolchain.all_code_objects(arch), strict=True)
    kernels = [(source, kernel) for source, path in objects for kernel in CodeObject(path).kernels.values()]
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda k: _facts(*k), kernels))


def _facts(source: Path, kernel: Kernel) -> Facts:
    instructions = list(_instructions(kernel.disassembly()))
    barriers = Counter(kind(instructions, i) for i, text in enumerate(instructions) if BARRIER.match(text))
    metadata = kernel.metadata
    return Facts(
        source=source.stem,
        arch=kernel.arch,
        name=kernel.name,
        vector_registers=metadata[".vgpr_count"],
        scalar_registers=metadata[".sgpr_count"],
        vector_spills=metadata[".vgpr_spill_count"],
        scalar_spills=metadata[".sgpr_spill_count"],
        scratch_bytes=kernel.private_bytes,
        shared_bytes=kernel.shared_bytes,
        barriers=barriers,
        lds_exchanges=sum(bool(re.match(r"ds_(?:b?permute|swizzle)", text)) for text in instructions),
        dpp=sum("_dpp" in text.split()[0] for text in instructions),
    )


def _instructions(disassembly: str) -> Iterator[str]:
    for line in disassembly.splitlines():
        if line.startswith("\t") and "//" in line:
            yield line.split("//")[0].strip()


def kind(instructions: Sequence[str], barrier: int) -> str:
    """ "full", "lds", or "waiting" for one that is for LDS but has a wait for other memory in front of it."""
    passed = barrier
    if instructions[barrier].startswith(SIGNAL):
        passed = next(i for i in range(barrier, len(instructions)) if instructions[i].startswith(WAIT))
    if any(CACHES_DROPPED.match(text) for text in instructions[passed + 1 : passed + 1 + BESIDE]):
        return "full"
    for text in reversed(instructions[max(0, barrier - BESIDE) : barrier]):
        if BLOCK_END.match(text):
            break
        if MEMORY_WAIT.match(text):
            return "waiting"
    return "lds"


def table(found: Sequence[Facts]) -> str:
    """A line a file and architecture; architectures that do not differ share one."""
    rows = [["file", "architecture", "vector", "scalar", "scratch", "LDS", "barriers", "exchanges"]]
    for source, kernels in groupby(found, key=lambda f: f.source):
        cells: dict[tuple[str, ...], list[str]] = {}
        for arch, same in groupby(kernels, key=lambda f: f.arch):
            cells.setdefault(_cells(list(same)), []).append(arch)
        rows += [[source, " ".join(arches), *values] for values, arches in cells.items()]
    return columns(rows)


def _cells(kernels: Sequence[Facts]) -> tuple[str, ...]:
    def most(name: str) -> int:
        return max(getattr(f, name) for f in kernels)

    def total(name: str) -> int:
        return sum(getattr(f, name) for f in kernels)

    def with_spills(registers: str, spills: str) -> str:
        return f"{most(registers)}+{most(spills)}" if most(spills) else f"{most(registers)}"

    barriers = sum((f.barriers for f in kernels), Counter())
    return (
        with_spills("vector_registers", "vector_spills"),
        with_spills("scalar_registers", "scalar_spills"),
        f"{most('scratch_bytes')}",
        f"{most('shared_bytes')}",
        "/".join(str(n) for n in (barriers["lds"] + barriers["waiting"], barriers["waiting"], barriers["full"])),
        f"{total('lds_exchanges')}+{total('dpp')}",
    )
