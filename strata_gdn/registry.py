"""Which kernel serves a call, and why.

`decide` looks a decision up for any architecture, on any machine; `served` counts the launches that really happened.
Switches come from the environment (`GDN_*`, read on the first op or decision; `reload` reads them again) and, for a
scope, from `overrides`. A user's setting wins over an architecture's default, whatever its value. docs/registry.md has
the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from . import _C

__all__ = [
    "Build",
    "Decision",
    "Kernel",
    "Switch",
    "build",
    "cpu_arch",
    "decide",
    "effective",
    "kernels",
    "overrides",
    "reload",
    "reset_served",
    "served",
    "switches",
    "switches_read",
]


@dataclass(frozen=True)
class Decision:
    """What runs, or, with an empty `kernel` (the decision is then false), why nothing does.

    Attributes:
        kernel: the registry id, which is also the kernel's file name; where a call is several kernels one after
            another, their ids in that order: "commit, verify_tree".
        config: what the kernel is launched with: on the CPU `{"isa": "avx512" | "avx2" | "baseline"}`; for the CUDA
            kernels on states `columns`, the value columns a block, and `heads`, the value heads a thread of a prompt's
            recurrence or a block of a decode step or of chunk_fp32 has;
            `"pipelined": "0"` only where GDN_PIPELINE=0 made it so, or chunk_fp32 has no second stage of shared memory,
            and `"batched": "0"` only where GDN_COMMIT_SPLIT=0 did.
        reason: a sentence.
        rejected: (kernel, reason) of each candidate that came before the chosen one.
    """

    kernel: str
    config: dict[str, str]
    reason: str
    rejected: tuple[tuple[str, str], ...]

    def __bool__(self) -> bool:
        return bool(self.kernel)


class Switch(NamedTuple):
    """One switch and its value; `value` is None where nobody has set it and it has no default."""

    name: str
    allowed: str
    kind: str  # "runtime" or "build time"
    meaning: str
    value: str | None
    source: str  # "environment", "override", "arch default" or "built-in"


class Kernel(NamedTuple):
    """One row of the table of kernels."""

    kernel: str
    op: str
    architectures: str  # "cpu", "sm_75 or newer"
    lane: str  # "exact", "fp32" or "fast"
    measured: str  # the file that put the row there, or "only kernel"


class Build(NamedTuple):
    """What was compiled into the extension beside the CPU kernels."""

    cuda: bool
    cuda_archs: tuple[str, ...]  # "80" for sm_80, "120+PTX"
    hip: bool
    hip_archs: tuple[str, ...]  # "gfx1100"


def _text(name: str, value: int | str | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(int(value))  # True is 1
    raise ValueError(f"{name} must be an int, a str or None; got {value!r}")


def _assignments(switches: Mapping[str, int | str | None]) -> list[tuple[str, str | None]]:
    return [(name, _text(name, value)) for name, value in switches.items()]


def _environment(env: Mapping[str, int | str] | None) -> list[tuple[str, str | None]] | None:
    if env is None:
        return None
    return _assignments({name: value for name, value in env.items() if name.startswith("GDN_")})


def decide(
    op: str,
    *,
    arch: str,
    sms: int | None = None,
    dtype: str = "bfloat16",
    tokens: int = 1,
    n: int = 1,
    h: int = 16,
    hv: int = 48,
    k: int = 128,
    v: int = 128,
    width: int = 4,
    precision: str = "auto",
    tree: bool = False,
    env: Mapping[str, int | str] | None = None,
) -> Decision:
    """The registry's decision for a call, without making it and without the device.

    It is the decision of a build that has the kernels of `arch`, whether this build does or not.

    Args:
        op: the name of an op of `torch.ops.strata_gdn`.
        arch: "sm_90", "gfx1151", "cpu-avx512", "cpu-avx2", "cpu-baseline"; "cpu" is this machine's.
        sms: SMs or CUs of the device; None where unknown.
        dtype: of q, k and v or of x: "float32", "bfloat16" or "float16" (a torch.dtype will do).
        tokens: T a sequence.
        n: sequences.
        h: key heads.
        hv: value heads, a multiple of `h`.
        k: the key dimension K.
        v: the value dimension V.
        width: taps W of the convolution inside the fused layers; no other op's kernel goes by it.
        precision: "auto", "exact", "fp32" or "fast".
        tree: a verify with parents; other ops have no trees.
        env: exactly these switches, instead of the environment and the overrides in force.

    Raises:
        ValueError: an unknown op, architecture or switch (the message has the nearest known name), or a value that is
            not allowed (it has the allowed ones).
    """
    positive = {"h": h, "hv": hv, "k": k, "v": v, "width": width} | ({} if sms is None else {"sms": sms})
    for least, arguments in ((1, positive), (0, {"tokens": tokens, "n": n})):
        for name, value in arguments.items():
            if value < least:
                raise ValueError(f"decide: {name} must be at least {least}; got {value}")
    if hv % h:
        raise ValueError(f"decide: hv must be a multiple of h={h}; got {hv}")
    kernel, config, reason, rejected = _C.decide(
        op, arch, sms or 0, str(dtype).removeprefix("torch."), tokens, n, h, hv, k, v, width, precision, tree,
        _environment(env),
    )  # fmt: skip
    return Decision(kernel, config, reason, tuple(rejected))


def switches() -> tuple[Switch, ...]:
    """Every switch with the value in force on this thread, architectures' defaults apart (see `effective`)."""
    return tuple(Switch(*row) for row in _C.switches(None, None))


def effective(arch: str, *, env: Mapping[str, int | str] | None = None) -> tuple[Switch, ...]:
    """Every switch on an architecture: the user's setting, else the architecture's default, else the built-in value.

    Args:
        arch: as in `decide`.
        env: exactly these switches, instead of the environment and the overrides in force.
    """
    return tuple(Switch(*row) for row in _C.switches(arch, _environment(env)))


def switches_read(op: str, arch: str, *, env: Mapping[str, int | str] | None = None) -> tuple[str, ...]:
    """The names of the switches that the kernels of `op` on `arch` go by."""
    return tuple(_C.switches_read(op, arch, _environment(env)))


@contextmanager
def overrides(**switches: int | str | None) -> Iterator[None]:
    """Switches for a scope of this thread, on top of the environment and of outer scopes.

    `with overrides(GDN_CHUNKED=1):`

    None makes a switch as if nobody had set it. Other threads are not affected.

    Raises:
        ValueError: an unknown switch, a value that is not allowed, or a switch that is read when the package is built.
            Nothing has changed then.
    """
    scope = _C.push_overrides(_assignments(switches))
    try:
        yield
    finally:
        _C.pop_overrides(scope)


def reload() -> None:
    """Reads the environment again.

    Raises:
        ValueError: it has a value that is not allowed. What was in force before stays in force.
    """
    _C.reload()


def served() -> dict[str, int]:
    """Launches of each kernel in this process since the last `reset_served`; kernels without any are left out."""
    return _C.served()


def reset_served() -> None:
    """Sets every count of `served` to zero."""
    _C.reset_served()


def cpu_arch() -> str:
    """This machine's CPU as an architecture, under GDN_CPU_ISA: "cpu-avx512", "cpu-avx2" or "cpu-baseline".

    Raises:
        ValueError: GDN_CPU_ISA asks for an instruction set that this CPU lacks.
    """
    return _C.cpu_arch()


def kernels() -> tuple[Kernel, ...]:
    """The table of kernels, in the order in which they are tried."""
    return tuple(Kernel(*row) for row in _C.kernels())


def build() -> Build:
    """The devices and architectures that this build has kernels for."""
    cuda, cuda_archs, hip, hip_archs = _C.build_info()
    return Build(cuda, tuple(filter(None, cuda_archs.split(";"))), hip, tuple(filter(None, hip_archs.split(";"))))
