"""What a call has to move and to compute, what the card can do, and which of the two binds.

**Bytes.** An op reads every input and writes every output at least once; a state in place is read and written. Index
tensors, a few bytes a sequence, are left out.

**FMA-class operations.** A float32 multiply, add or fused multiply-add: each takes one issue slot of one lane. For
every element of the state and every token the exact order (docs/contract.md) has

    u      = Σ S·k           one fma
    k·δ                      one multiply, rounded by itself
    S      = fma(α, S, k·δ)  one fma
    o      = Σ S·q           one fma

so `RECURRENCE_FMA` = 4; a replay from logs has neither u nor o: `REPLAY_FMA` = 2. What belongs to a row or a column
(norms, decays, the sums over the eight groups) is less than a tenth of that and left out.

**Chain.** A token's u needs the state that the token before has left: the decay and update of an element, K/8 = 16
fused multiply-adds, three butterfly additions between lanes and the correction, one after another, are about
`CHAIN_CYCLES` on an H200 (docs/kernels/rec_lanes.md). No number of multiprocessors shortens that.

The pointwise ops are held against their bytes alone.

What the card can do is measured in the run: bytes a second by a copy of 1 GiB (read and written), cycles a second by
a kernel that spins for a number of cycles. The rate of FMA-class operations is what the hardware can issue, the SM
clock × multiprocessors × float32 lanes of a multiprocessor; what a float32 matrix product (no TF32) reaches of it is
recorded beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from torch import Tensor

RECURRENCE_FMA = 4
REPLAY_FMA = 2
CHAIN_CYCLES = 170

LANES = 128  # float32 lanes of a multiprocessor ...
LANES_OF = {"sm_75": 64, "sm_80": 64}  # ... and of those that have fewer


@dataclass(frozen=True)
class Work:
    """The least that a call can do."""

    moved_bytes: int
    fma: int = 0  # FMA-class operations
    chain_tokens: int = 0  # tokens that follow one another


@dataclass(frozen=True)
class Rates:
    """What a card can do."""

    copy_bytes_per_second: float
    clock_hz: float
    multiprocessors: int
    lanes: int  # float32 lanes of a multiprocessor
    matmul_fma_per_second: float  # reached by a float32 matrix product; no limit is derived from it

    @property
    def fma_per_second(self) -> float:
        return self.clock_hz * self.multiprocessors * self.lanes

    def limits(self, work: Work) -> dict[str, float]:
        """The seconds that each limit alone allows; those that a call does not meet are left out."""
        limits = {
            "memory": work.moved_bytes / self.copy_bytes_per_second,
            "fma": work.fma / self.fma_per_second,
            "chain": work.chain_tokens * CHAIN_CYCLES / self.clock_hz,
        }
        return {name: seconds for name, seconds in limits.items() if seconds}

    def as_record(self) -> dict[str, float | int]:
        return asdict(self) | {"fma_per_second": self.fma_per_second}


def binding(limits: dict[str, float]) -> tuple[str, float]:
    """The limit that allows least: its name and seconds."""
    return max(limits.items(), key=lambda item: item[1])


def lanes(arch: str) -> int:
    """Float32 lanes of a multiprocessor, by the architecture's name in the registry."""
    return LANES_OF.get(arch, LANES)


def moved(read: Iterable[Tensor], written: Iterable[Tensor]) -> int:
    """Bytes of the tensors read and of those written; one that is updated in place is in both."""
    return sum(x.nbytes for x in (*read, *written))


def pointwise(read: Iterable[Tensor], written: Iterable[Tensor]) -> Work:
    return Work(moved(read, written))


def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Work:
    """`gated_delta_rule_` on one state a sequence in place, o in v's shape and dtype.

    Args:
        q, k: [N, T, H, K].
        v: [N, T, HV, V].
        g, beta: [N, T, HV].
        state: [N, HV, K, V] or [N, HV, V, K].
    """
    tokens = v.shape[1]
    return Work(
        moved_bytes=moved((q, k, v, g, beta, state), (v, state)),
        fma=RECURRENCE_FMA * tokens * state.numel(),
        chain_tokens=tokens,
    )
