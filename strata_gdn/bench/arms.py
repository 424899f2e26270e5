"""A case with all its arms and peers in turn; and that an arm's kernels and no others served it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from .. import _devices, registry
from .._launches import kernels, launches
from . import roofline
from .case import DTYPE, HEAD_DIM, Arm, Case

Made = TypeVar("Made")


class WrongKernelError(RuntimeError):
    """Another kernel served a case than the one that was asked for."""


class Clock(Protocol):
    """Takes calls down and times what it took down, a sample of each after one of the others."""

    def record(self, call: Callable[[], object]) -> Any: ...

    def time(self, recorded: Sequence[Any]) -> list[list[float]]:
        """Seconds of each sample."""
        ...


@dataclass(frozen=True)
class ArmTime:
    arm: Arm
    config: dict[str, str]
    seconds: list[float]  # of one call, a sample each
    chosen: bool  # what the registry takes by itself


@dataclass(frozen=True)
class CaseTimes:
    work: roofline.Work
    arms: list[ArmTime]
    peers: dict[str, list[float]]  # seconds of one call by name, a sample each
    left_out: list[tuple[Arm, str]]  # with the registry's reason
    failed: list[str]


def decision(case: Case, arch: str, sms: int | None, switches: Mapping[str, int]) -> registry.Decision:
    """The registry's for the case under these switches, on top of the environment's."""
    with registry.overrides(**switches):
        return registry.decide(
            case.op, arch=arch, sms=sms, tokens=case.tokens, n=case.sequences, h=case.key_heads, hv=case.value_heads,
            k=HEAD_DIM, v=HEAD_DIM, dtype=DTYPE, tree=case.tree,
            precision=case.precision,
        )  # fmt: skip


def left_out(case: Case, arm: Arm, arch: str, sms: int | None) -> str | None:
    """Why the registry would not grant an arm's switches on a card, or None: the arm is to be measured.

    An arm without switches is the table's claim of what serves the case, never left out.
    """
    if not arm.switches:
        return None
    decided = decision(case, arch, sms, arm.switches)
    if kernels(decided.kernel) == arm.kernels:
        return None
    reasons = [reason for kernel, reason in decided.rejected if kernels(kernel) == arm.kernels]
    return "; ".join(reasons) or decided.reason


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


def time_case(case: Case, device: torch.device, sms: int | None, clock: Clock, *, peers: bool = True) -> CaseTimes:
    """The case on a device with every arm that it has the kernels for, and with its peers if they are wanted."""
    arch, calls = _devices.arch(device), case.calls(device)
    beside = calls.peers if peers else ()
    with launches() as by_itself:
        calls.ours()
    arms, skipped, failed, recorded = [], [], [], [clock.record(peer.call) for peer in beside]
    for arm in case.arms:
        if reason := left_out(case, arm, arch, sms):
            skipped.append((arm, reason))
            continue
        try:
            recorded.append(served_by(arm, case, lambda: clock.record(calls.ours)))
            arms.append(arm)
        except WrongKernelError as error:
            failed.append(str(error))
    seconds = [[sample / case.repeats for sample in samples] for samples in clock.time(recorded)]
    usual = decision(case, arch, sms, {}).config
    times = []
    for arm, samples in zip(arms, seconds[len(beside) :], strict=True):
        config = decision(case, arch, sms, arm.switches).config
        times.append(ArmTime(arm, config, samples, set(arm.kernels) == set(by_itself) and config == usual))
    named = {peer.name: samples for peer, samples in zip(beside, seconds, strict=False)}
    return CaseTimes(calls.work, times, named, skipped, failed)
