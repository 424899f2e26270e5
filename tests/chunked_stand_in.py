"""chunk_fp32's arithmetic in float32 torch, to hold the harness of parity/chunked.py against something on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from strata_gdn import reference

TOKENS = 32


def _chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """(6) to (11), heads first: q, k [HV, C, K], v [HV, C, V], g, beta [HV, C], S [HV, K, V] -> o, S."""
    C = g.shape[1]
    since = g[:, :, None].expand(-1, -1, C).tril(-1).cumsum(1)  # of the tokens between: no difference of two sums
    decay, from_start = since.exp().tril(), g.cumsum(1).exp()[..., None]
    A = (beta[..., None] * decay * (k @ k.mT)).tril(-1)
    M = torch.linalg.solve_triangular(A, torch.eye(C).expand_as(A), upper=False, unitriangular=True)
    D = (M * beta[:, None, :]) @ (v - from_start * (k @ S))
    o = from_start * (q @ S) + (decay * (q @ k.mT)) @ D
    return o, from_start[:, -1:] * S + k.mT @ (decay[:, -1, :, None] * D)


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None, *, scale: float | None = None, qk_l2norm: bool = False, l2_eps: float = 1e-6,
    head_map: str = "grouped", state_layout: str = "kv",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """With the op's arguments and results."""
    batch, tokens, _, K = q.shape
    dtype, HV = v.dtype, v.shape[2]
    q, k, v, beta = (x.float() for x in (q, k, v, beta))
    if qk_l2norm:
        q, k = (x * (1 / (x.square().sum(-1, keepdim=True) + l2_eps).sqrt()) for x in (q, k))
    q = q * (K**-0.5 if scale is None else scale)
    q, k = (reference._to_value_heads(x, HV, head_map) for x in (q, k))
    sequences = reference._num_sequences(batch, cu_seqlens)
    states = torch.zeros(sequences, HV, K, v.shape[-1])
    if initial_state is not None:
        states = reference._kv(initial_state, state_layout).clone(memory_format=torch.contiguous_format)
    o = torch.zeros_like(v)
    for n, (row, span) in enumerate(reference._sequences(batch, tokens, cu_seqlens)):
        for begin in range(span.start, span.stop, TOKENS):
            rows = slice(begin, min(begin + TOKENS, span.stop))
            of_chunk, states[n] = _chunk(*(x[row, rows].transpose(0, 1) for x in (q, k, v, g, beta)), states[n])
            o[row, rows] = of_chunk.transpose(0, 1)
    return o.to(dtype), reference._kv(states, state_layout).contiguous()


def gated_delta_rule_(
    *, state: Tensor, state_indices: Tensor, has_initial_state: Tensor | None = None, **arguments: Any
) -> Tensor:
    """In place on a pool of states."""
    slots = state_indices.long()
    states = state[slots.clamp(min=0)]
    if has_initial_state is not None:
        states[~has_initial_state] = 0.0
    o, final = gated_delta_rule(**arguments, initial_state=states)
    bounds = arguments.get("cu_seqlens")
    for n, slot in enumerate(slots.tolist()):
        if slot >= 0:
            state[slot] = final[n]
        elif bounds is None:
            o[n] = 0.0
        else:
            o[:, bounds[n] : bounds[n + 1]] = 0.0
    return o
