"""What the benchmark's parts share: their errors, which cases are asked for, and which kernels really ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from . import registry


class BenchError(ValueError):
    """A wrong option or a wrong record: one line for the user, not a traceback."""


class MissingExtra(ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


NamedCase = TypeVar("NamedCase", bound=Named)


def select(cases: Sequence[NamedCase], wanted: Sequence[str] | None) -> list[NamedCase]:
    """The cases whose name contains one of the `wanted` texts, in the table's order; all of them for None.

    Raises:
        BenchError: a text that is in no case's name; the message lists the names.
    """
    if not wanted:
        return list(cases)
    names = dict.fromkeys(case.name for case in cases)
    for text in wanted:
        if not any(text in name for name in names):
            raise BenchError(f"--case '{text}' is in no case's name; the cases are: {', '.join(names)}")
    return [case for case in cases if any(text in case.name for text in wanted)]


@contextmanager
def launches() -> Iterator[dict[str, int]]:
    """Counts the launches of each kernel inside the block; the dict is filled when the block ends."""
    before = registry.served()
    counts: dict[str, int] = {}
    yield counts
    after = registry.served()
    counts.update({kernel: n - before.get(kernel, 0) for kernel, n in after.items() if n > before.get(kernel, 0)})
