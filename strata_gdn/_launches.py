"""Which kernels really ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from . import registry


@contextmanager
def launches() -> Iterator[dict[str, int]]:
    """Counts the launches of each kernel inside the block; the dict is filled when the block ends."""
    before = registry.served()
    counts: dict[str, int] = {}
    yield counts
    after = registry.served()
    counts.update({kernel: n - before.get(kernel, 0) for kernel, n in after.items() if n > before.get(kernel, 0)})
