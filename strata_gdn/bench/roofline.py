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
(norms, decays, the sums over the eight groups) is less than a tenth of that and left out. A tree's tokens are counted
once each, however often a kernel replays their ancestors.

**Chain.** A token's u needs the state that the token before has left: the decay and update of an element, K/8 = 16
fused multiply-adds, three butterfly additions between lanes and the correction, one after another, are about
`CHAIN_CYCLES` on an H200 (docs/kernels/rec_lanes.md). No number of multiprocessors shortens that.

In the chunked form (docs/math.md (6) to (11)) a chunk of C = `CHUNK` tokens has the three products of K V C with the
state, and two of C V with triangles of (C ± 1) C / 2 entries. What a key head has once for all of its value heads (k·k,
q·k) and the inverse M are left out.

The pointwise ops are held against their bytes alone. A verify reads the states and does not write them; of logs, a
commit reads the rows of the accepted tokens. A fused layer has no results in between.

What the card can do is measured in the run: bytes a second by a copy of 256 MiB (read and written), cycles a second by
a kernel that spins for a number of cycles. The rate of FMA-class operations is what the hardware can issue, the SM
clock × multiprocessors × float32 lanes of a multiprocessor; what a float32 matrix product (no TF32) reaches of it is
recorded beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

RECURRENCE_FMA = 4
CHUNK = 32  # tokens
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


def _log_bytes(states: Tensor, key_heads: int, tokens: int) -> int:
    """The float32 k_log, d_log and g_log of so many tokens for states [.., HV, K, V]."""
    *others, value_heads, K, V = states.shape
    return 4 * math.prod(others) * tokens * (key_heads * K + value_heads * (V + 1))


def pointwise(read: Iterable[Tensor], written: Iterable[Tensor]) -> Work:
    return Work(moved(read, written))


def chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Work:
    """`gated_delta_rule_` in the chunked form on one state a sequence in place, o in v's shape and dtype."""
    batch, tokens, value_heads, V = v.shape
    chunks = batch * value_heads * -(-tokens // CHUNK)
    moved_bytes = recurrence(q, k, v, g, beta, state).moved_bytes
    return Work(moved_bytes, chunks * CHUNK * V * (3 * q.shape[-1] + CHUNK))


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


def verify(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Work:
    """`gated_delta_rule_verify` on one state a sequence: arguments as in `recurrence`."""
    plain = recurrence(q, k, v, g, beta, state)
    return replace(plain, moved_bytes=plain.moved_bytes - state.nbytes + _log_bytes(state, k.shape[2], v.shape[1]))


def commit(states: Tensor, key_heads: int, accepted: int) -> Work:
    """`gated_delta_rule_commit_layers_` of so many tokens a sequence.

    Args:
        states: [layers, N, HV, K, V].
    """
    moved_bytes = moved((states,), (states,)) + _log_bytes(states, key_heads, accepted)
    return Work(moved_bytes, fma=REPLAY_FMA * accepted * states.numel())


def commit_verify(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, *, log_tokens: int) -> Work:
    """`gated_delta_rule_commit_verify_` after so many accepted tokens: arguments as in `recurrence`."""
    first, second = commit(state, k.shape[2], log_tokens), verify(q, k, v, g, beta, state)
    return Work(
        first.moved_bytes + second.moved_bytes - state.nbytes, first.fma + second.fma, second.chain_tokens
    )  # the state is read once


def decode_layer(state: Tensor, conv_state: Tensor, z: Tensor, **more: Any) -> Work:
    """`gdn_decode_layer_`, all whose arguments are given by name."""
    read = [x for x in more.values() if isinstance(x, Tensor)]
    tokens = z.shape[1]
    return Work(
        moved_bytes=moved((*read, z, state, conv_state), (z, state, conv_state)),
        fma=RECURRENCE_FMA * tokens * state.numel(),
        chain_tokens=tokens,
    )


def verify_layer(state: Tensor, conv_state: Tensor, z: Tensor, num_key_heads: int, **more: Any) -> Work:
    """`gdn_verify_layer`, all whose arguments are given by name."""
    plain = decode_layer(state, conv_state, z, **more)
    logs = _log_bytes(state, num_key_heads, z.shape[1])
    return replace(plain, moved_bytes=plain.moved_bytes - state.nbytes - conv_state.nbytes + logs)
