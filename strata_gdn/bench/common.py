"""What the commands that measure share: errors, what they require, and which cases are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from .. import registry


class UsageError(ValueError):
    """A wrong option or a wrong record: one line for the user, not a traceback."""


class MissingExtra(ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


def require_writable(*files: Path | None) -> None:
    """Before a run that ends with writing these files: each is opened, and left as it was.

    Raises:
        UsageError: a file cannot be written.
    """
    for file in filter(None, files):
        there = file.exists()
        try:
            file.open("ab").close()
        except FileNotFoundError as error:
            raise UsageError(f"no folder to write {file} to") from error
        except OSError as error:
            raise UsageError(f"cannot write {file}: {error.strerror}") from error
        if not there:
            file.resolve().unlink()


def require_gpu() -> None:
    """Before a run on a GPU.

    Raises:
        UsageError: there is none, or this build has no kernels for it.
    """
    if not (torch.cuda.is_available() and registry.build().cuda):
        raise UsageError("--device cuda needs a GPU that torch sees and a build with kernels for it")


class Named(Protocol):
    @property
    def name(self) -> str: ...


NamedCase = TypeVar("NamedCase", bound=Named)


def select(cases: Sequence[NamedCase], wanted: Sequence[str] | None) -> list[NamedCase]:
    """The cases whose name contains one of the `wanted` texts, in the table's order; all of them for None.

    Raises:
        UsageError: a text that is in no case's name; the message lists the names.
    """
    if not wanted:
        return list(cases)
    names = dict.fromkeys(case.name for case in cases)
    for text in wanted:
        if not any(text in name for name in names):
            raise UsageError(f"--case '{text}' is in no case's name; the cases are: {', '.join(names)}")
    return [case for case in cases if any(text in case.name for text in wanted)]
