"""The resources as text: a line a kernel instance, a column an architecture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from strata_gdn._table import columns

from .kernels import Kernel

LEGEND = """\
threads: of a block, x the blocks a multiprocessor that its launch bounds promise
shared:  bytes of a block, static + dynamic
75, ...: on sm_75, ...: registers a thread; /bytes spilled/bytes of local memory where there are any"""


def table(kernels: Sequence[Kernel]) -> str:
    """Kernels whose threads or shared memory differ among architectures have a line for each such variant."""
    archs = list(dict.fromkeys(kernel.arch for kernel in kernels))
    order = {source: number for number, source in enumerate(dict.fromkeys(kernel.source for kernel in kernels))}
    rows = [["kernel", "threads", "shared", *archs]]
    ordered = sorted(kernels, key=lambda kernel: (order[kernel.source], *_variant(kernel)))
    for variant, same in groupby(ordered, key=lambda kernel: (kernel.source, *_variant(kernel))):
        cells = {kernel.arch: _cell(kernel) for kernel in same}
        rows.append([*variant[1:], *(cells.get(arch, "-") for arch in archs)])
    return columns(rows)


def _variant(kernel: Kernel) -> tuple[str, str, str]:
    threads = "any" if kernel.threads is None else f"{kernel.threads} x{kernel.promised_blocks}"
    return kernel.name, threads, f"{kernel.static_bytes}+{kernel.dynamic_bytes}"


def _cell(kernel: Kernel) -> str:
    beyond = f"/{kernel.spill_bytes}/{kernel.stack_bytes}" if kernel.spill_bytes or kernel.stack_bytes else ""
    return f"{kernel.registers}{beyond}"
