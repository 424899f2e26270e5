"""An arm of a case: whether a card has its kernels, and that they and no others served it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .. import registry
from .._launches import launches
from .cases import DTYPE, HEAD_DIM, Arm, Case

Made = TypeVar("Made")


class WrongKernelError(RuntimeError):
    """Another kernel served a case than the one that was asked for."""


def left_out(case: Case, arm: Arm, arch: str, sms: int | None) -> str | None:
    """Why the registry would not grant an arm's switches on a card, or None: the arm is to be measured.

    An arm without switches is the table's claim of what serves the case, never left out.
    """
    if not arm.switches:
        return None
    decision = registry.decide(
        case.op, arch=arch, sms=sms, tokens=case.tokens, n=case.sequences, h=case.key_heads, hv=case.value_heads,
        k=HEAD_DIM, v=HEAD_DIM, dtype=DTYPE, env=arm.switches,
    )  # fmt: skip
    if decision.kernel in arm.kernels:
        return None
    reasons = [reason for kernel, reason in decision.rejected if kernel in arm.kernels]
    return "; ".join(reasons) or decision.reason


def served_by(arm: Arm, case: Case, make: Callable[[], Made]) -> Made:
    """What `make()`, whose calls are the case's, returns under the arm's switches.

    Raises:
        WrongKernelError: other kernels than the arm's were launched.
    """
    with registry.overrides(**arm.switches), launches() as served:
        made = make()
    if set(served) != set(arm.kernels):
        asked = ", ".join(f"{name}={value}" for name, value in arm.switches.items()) or "no switches"
        ran = " + ".join(sorted(served)) or "nothing"
        raise WrongKernelError(f"{case}: expected {arm} with {asked}; served: {ran}")
    return made
