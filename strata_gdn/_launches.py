"""Which kernels really ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from . import registry


def kernels(served: str) -> tuple[str, ...]:
    """The kernels, in order, behind a row of the registry: "commit, verify_tree" is one after the other."""
    return tuple(served.split(", ")) if served else ()


@contextmanager
def launches() -> Iterator[dict[str, int]]:
    """Counts the launches of each kernel inside the block; the dict is filled when the block ends.

    An op that several kernels serve counts for each of them.
    """
    before = registry.served()
    counts: dict[str, int] = {}
    yield counts
    for served, count in registry.served().items():
        if count > before.get(served, 0):
            for kernel in kernels(served):
                counts[kernel] = counts.get(kernel, 0) + count - before.get(served, 0)
