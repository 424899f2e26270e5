"""Which GPU architectures a build is for: GDN_CUDA_ARCHS and GDN_HIP_ARCHS, read in one way."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

NONE = "none"  # the value that builds no kernels for a vendor


def requested(variable: str, known: Sequence[str], value: str | None) -> list[str]:
    """The architectures that an environment variable asks for, in the order of ``known``.

    Args:
        variable: its name.
        known: the architectures of csrc/sources.json, e.g. ``["90", "120", "120+PTX"]``.
        value: some of them, separated by ``;``, ``,`` or spaces; ``"none"``; None or empty means all.

    Raises:
        ValueError: an architecture that is not in ``known``.
    """
    asked = [arch for arch in re.split(r"[;,\s]+", value or "") if arch]
    if not asked:
        return list(known)
    if asked == [NONE]:
        return []
    for arch in asked:
        if arch not in known:
            raise ValueError(
                f"{variable}: unknown architecture {arch!r}; expected {NONE!r} or some of {', '.join(known)}, "
                f"separated by ';'"
            )
    return [arch for arch in known if arch in asked]


def compilable(
    variable: str, compiler: str, able: Collection[str], asked: Sequence[str], value: str | None
) -> list[str]:
    """Those of ``asked`` that a compiler knows.

    An old compiler drops the newest cards from the default list; from a list that the user gave nothing is dropped.

    Args:
        variable: the environment variable's name, ``value`` its value.
        compiler: which one it is, in words.
        able: the architectures that it knows, in the order in which an error lists them.

    Raises:
        RuntimeError: it cannot compile for an architecture named in ``value``, or for none of ``asked``.
    """
    missing = [arch for arch in asked if arch not in able]
    if missing and (value or len(missing) == len(asked)):
        raise RuntimeError(
            f"{variable}: {compiler} cannot compile for {', '.join(missing)}; it knows {', '.join(able) or 'none'}"
        )
    return [arch for arch in asked if arch not in missing]
