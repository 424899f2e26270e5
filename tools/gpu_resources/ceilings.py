"""What no kernel may exceed. This is code: re-accepting the table of resources lifts none of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from strata_gdn import registry

from .compiler import Toolkit
from .kernels import Kernel
from .occupancy import BLOCK_THREADS, MULTIPROCESSORS, Blocks, blocks

SPILL_BYTES = 0
STACK_BYTES = 0


def launched(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Without the kernels that the registry gives to no call: of architectures that are older than its rows with their
    file's name ask for, and of a K whose blocks need more shared memory than the architecture has."""
    first_arch: dict[str, int] = {}
    for row in registry.kernels():
        found = re.fullmatch(r"sm_(\d+) or newer", row.architectures)
        for name in row.kernel.split(", ") if found else ():
            first_arch[name] = min(int(found[1]), first_arch.get(name, int(found[1])))
    return [
        kernel
        for kernel in kernels
        if int(kernel.arch) >= first_arch.get(Path(kernel.source).stem, 0) and not _refused(kernel)
    ]


def _refused(kernel: Kernel) -> bool:
    chunked = re.fullmatch(r"chunk_(?:prep|scan)_kernel<(\d+).*", kernel.name)
    if chunked is None:
        return False
    return not registry.decide(
        "gated_delta_rule", arch=f"sm_{kernel.arch}", k=int(chunked[1]), precision="fp32", env={}
    )


def broken(toolkit: Toolkit, kernels: Sequence[Kernel]) -> list[str]:
    """A sentence for each ceiling that a kernel breaks, which names the kernel, its architecture and both numbers."""
    bounded = [kernel for kernel in kernels if kernel.threads is not None]
    fits = dict(zip(bounded, blocks(toolkit, bounded), strict=True))
    return [
        f"{kernel.name} on sm_{kernel.arch}: {what}" for kernel in kernels for what in _broken(kernel, fits.get(kernel))
    ]


def _broken(kernel: Kernel, fit: Blocks | None) -> list[str]:
    limits = MULTIPROCESSORS[kernel.arch]
    found = []
    if kernel.spill_bytes > SPILL_BYTES:
        found.append(f"spills {kernel.spill_bytes} bytes; {SPILL_BYTES} are allowed")
    if kernel.stack_bytes > STACK_BYTES:
        found.append(f"has {kernel.stack_bytes} bytes of local memory a thread; {STACK_BYTES} are allowed")
    if kernel.shared_bytes > limits.block_shared_bytes:
        found.append(f"has {kernel.shared_bytes} bytes of shared memory a block; {limits.block_shared_bytes} are there")
    if fit is None:
        return [*found, "has no launch bounds: how many threads a block has is not known"]
    if kernel.threads > BLOCK_THREADS:
        found.append(f"has {kernel.threads} threads a block; {BLOCK_THREADS} are the most")
    # More blocks than the threads of a multiprocessor allow cannot be meant.
    promised = max(1, min(kernel.promised_blocks, fit.threads))
    if fit.registers < promised:
        found.append(
            f"has registers for {fit.registers} blocks a multiprocessor ({kernel.registers} a thread, {kernel.threads} "
            f"threads a block); {promised} are promised"
        )
    return found
