"""The mathematics of the package in plain float64 torch: short, slow, and what the kernels are tested against.

Numbers in parentheses are equations of docs/math.md. The functions have the names and arguments of the ops, work out of
place, take any floating dtype and return float64. There is no slot pool: state n belongs to sequence n.

Symbols: B batch, N sequences, T tokens, H key heads, HV value heads (a multiple of H), K key dimension, V value
dimension, C convolution channels, W convolution width, L >= W - 1 columns of a convolution window.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

__all__ = [
    "causal_conv1d",
    "causal_conv1d_commit",
    "causal_conv1d_verify",
    "gated_delta_rule",
    "gated_delta_rule_commit",
    "gated_delta_rule_verify",
    "gated_rms_norm",
    "gdn_gates",
    "qk_l2norm",
]


def _sequences(batch: int, tokens: int, cu_seqlens: Tensor | None) -> Iterator[tuple[int, slice]]:
    """Batch row and token range of each sequence."""
    if cu_seqlens is None:
        return ((n, slice(0, tokens)) for n in range(batch))
    bounds = cu_seqlens.tolist()
    return ((0, slice(begin, end)) for begin, end in pairwise(bounds))


def _num_sequences(batch: int, cu_seqlens: Tensor | None) -> int:
    return batch if cu_seqlens is None else len(cu_seqlens) - 1


def _to_value_heads(x: Tensor, value_heads: int, head_map: str) -> Tensor:
    """[..., H, K] to [..., HV, K]: value head h reads key head h // (HV / H) ("grouped") or h % H ("tiled")."""
    heads, h = x.shape[-2], torch.arange(value_heads, device=x.device)
    return x[..., h // (value_heads // heads) if head_map == "grouped" else h % heads, :]


def _kv(state: Tensor, state_layout: str) -> Tensor:
    """A state in layout "kv", [..., K, V], from either layout, and back."""
    return state if state_layout == "kv" else state.transpose(-1, -2)


def _l2norm(x: Tensor, eps: float) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + eps).sqrt()  # (17)


def _tokens(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, qk_l2norm: bool, l2_eps: float, head_map: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The inputs in float64, q and k normalised if asked and on value heads."""
    q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
    if qk_l2norm:
        q, k = _l2norm(q, l2_eps), _l2norm(k, l2_eps)
    q, k = (_to_value_heads(x, v.shape[-2], head_map) for x in (q, k))
    return q, k, v, g, beta


def _correction(S: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """δ [HV, V] of one token from the state before it, [HV, K, V]."""
    u = torch.einsum("hkv,hk->hv", S, k)  # (2)
    return beta[:, None] * (v - g.exp()[:, None] * u)  # (1), (3)


def _update(S: Tensor, k: Tensor, d: Tensor, g: Tensor) -> Tensor:
    return g.exp()[:, None, None] * S + k[:, :, None] * d[:, None, :]  # (4)


def _output(S: Tensor, q: Tensor, scale: float) -> Tensor:
    return scale * torch.einsum("hkv,hk->hv", S, q)  # (5)


def _recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """One sequence, token by token: q, k [T, HV, K], v [T, HV, V], g, beta [T, HV], S [HV, K, V] -> o, S."""
    o = torch.empty_like(v)
    for t in range(len(v)):
        d = _correction(S, k[t], v[t], g[t], beta[t])
        S = _update(S, k[t], d, g[t])
        o[t] = _output(S, q[t], scale)
    return o, S


def _chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """One chunk at once, heads first: q, k [HV, C, K], v [HV, C, V], g, beta [HV, C], S [HV, K, V] -> o, S."""
    gamma = g.cumsum(-1)  # (6)
    difference = gamma[:, :, None] - gamma[:, None, :]
    later = torch.ones(difference.shape[-2:], dtype=torch.bool, device=g.device).triu(1)
    decay = difference.masked_fill(later, -torch.inf).exp()  # (7) masked before exp: nothing positive is exponentiated
    A = (beta[:, :, None] * decay * (k @ k.mT)).tril(-1)  # (8)
    right = beta[:, :, None] * (v - gamma.exp()[:, :, None] * (k @ S))
    D = torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True)  # (9) (I + A) D = right
    o = scale * (gamma.exp()[:, :, None] * (q @ S) + (decay * (q @ k.mT)) @ D)  # (10)
    to_end = (gamma[:, -1:] - gamma).exp()
    S = gamma[:, -1, None, None].exp() * S + (to_end[:, :, None] * k).mT @ D  # (11)
    return o, S


def _chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor, scale: float, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """_recurrent in chunks."""
    o = torch.empty_like(v)
    for begin in range(0, len(v), chunk_size):
        rows = slice(begin, begin + chunk_size)
        chunk_o, S = _chunk(*(x[rows].transpose(0, 1) for x in (q, k, v, g, beta)), S, scale)
        o[rows] = chunk_o.transpose(0, 1)
    return o, S


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    scale: float | None = None,
    qk_l2norm: bool = False,
    l2_eps: float = 1e-6,
    head_map: str = "grouped",
    state_layout: str = "kv",
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The gated delta rule, (1) to (5), token by token; with `chunk_size` in the chunked form, (6) to (11).

    Args:
        q, k: [B, T, H, K].  v: [B, T, HV, V].  g (log decay, <= 0; finite if chunked), beta: [B, T, HV].
        initial_state: [N, HV, K, V], or [N, HV, V, K] with state_layout "vk"; None: zeros.
        cu_seqlens: [N + 1]; with B = 1, sequence n is rows cu_seqlens[n] .. cu_seqlens[n + 1]. None: N = B.

    Returns:
        o [B, T, HV, V] (zero in rows of no sequence) and final_state in initial_state's layout.
    """
    batch, tokens, _, key_dim = q.shape
    value_heads, value_dim = v.shape[-2:]
    scale = key_dim**-0.5 if scale is None else scale
    if initial_state is None:
        shape = (_num_sequences(batch, cu_seqlens), value_heads, key_dim, value_dim)
        states = torch.zeros(shape, dtype=torch.float64, device=q.device)
    else:
        states = _kv(initial_state, state_layout).double().clone()
    inputs = _tokens(q, k, v, g, beta, qk_l2norm, l2_eps, head_map)
    o = torch.zeros(v.shape, dtype=torch.float64, device=v.device)
    for n, (row, span) in enumerate(_sequences(batch, tokens, cu_seqlens)):
        sequence = [x[row, span] for x in inputs]
        if chunk_size is None:
            o[row, span], states[n] = _recurrent(*sequence, states[n], scale)
        else:
            o[row, span], states[n] = _chunked(*sequence, states[n], scale, chunk_size)
    return o, _kv(states, state_layout).contiguous()


def _parent(parents: Tensor | None, n: int, t: int) -> int:
    """The token before t, -1 for the committed state. A parent outside [-1, t) counts as -1."""
    if parents is None:
        return t - 1
    parent = int(parents[n, t])
    return parent if 0 <= parent < t else -1


def _accepted_rows(accepted: Tensor, path: Tensor | None, n: int, tokens: int) -> list[int]:
    """Rows of a window to replay: `accepted` clamped to [0, T]; a path entry outside [0, T) ends the path."""
    rows = []
    for j in range(min(int(accepted[n]), tokens)):
        row = j if path is None else int(path[n, j])
        if not 0 <= row < tokens:
            break
        rows.append(row)
    return rows


def gated_delta_rule_verify(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    parents: Tensor | None = None,
    *,
    scale: float | None = None,
    qk_l2norm: bool = False,
    l2_eps: float = 1e-6,
    head_map: str = "grouped",
    state_layout: str = "kv",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """T draft tokens a sequence, each from its parent's state (12).

    Args:
        q, k: [N, T, H, K].  v: [N, T, HV, V].  g, beta: [N, T, HV].
        state: [N, HV, K, V] ("vk": [N, HV, V, K]), only read.
        parents: [N, T], the token that t follows, -1 = the state. None: a chain, t - 1.

    Returns:
        o [N, T, HV, V] and what `gated_delta_rule_commit` replays: the keys as used [N, T, H, K], the corrections
        [N, T, HV, V] and g [N, T, HV].
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k_log = _l2norm(k.double(), l2_eps) if qk_l2norm else k.double()
    q, k, v, g, beta = _tokens(q, k, v, g, beta, qk_l2norm, l2_eps, head_map)
    committed = _kv(state, state_layout).double()
    o, d_log = torch.zeros_like(v), torch.zeros_like(v)
    for n in range(v.shape[0]):
        after = [committed[n]] * (v.shape[1] + 1)  # the state after token t; index -1 is the committed one
        for t in range(v.shape[1]):
            before = after[_parent(parents, n, t)]
            d_log[n, t] = _correction(before, k[n, t], v[n, t], g[n, t], beta[n, t])
            after[t] = _update(before, k[n, t], d_log[n, t], g[n, t])
            o[n, t] = _output(after[t], q[n, t], scale)
    return o, k_log, d_log, g


def gated_delta_rule_commit(
    state: Tensor,
    k_log: Tensor,
    d_log: Tensor,
    g_log: Tensor,
    accepted: Tensor,
    path: Tensor | None = None,
    *,
    head_map: str = "grouped",
    state_layout: str = "kv",
) -> Tensor:
    """The state after the accepted tokens of a verified window (13).

    Args:
        state: [N, HV, K, V] ("vk": [N, HV, V, K]).
        k_log, d_log, g_log: the logs of `gated_delta_rule_verify`.
        accepted: [N], how many tokens.
        path: [N, T], their rows in order; None: 0, 1, 2, ...

    Returns:
        The new states, in state's layout.
    """
    states = _kv(state, state_layout).double().clone()
    keys = _to_value_heads(k_log.double(), d_log.shape[-2], head_map)
    for n in range(len(states)):
        for t in _accepted_rows(accepted, path, n, d_log.shape[1]):
            states[n] = _update(states[n], keys[n, t], d_log[n, t].double(), g_log[n, t].double())
    return _kv(states, state_layout).contiguous()


def _slide(window: Tensor, column: Tensor) -> Tensor:
    """[C, L] with the oldest column dropped and the new one, [C], last."""
    return torch.cat([window, column[:, None]], dim=1)[:, 1:]


def _conv_token(window: Tensor, column: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """y [C] of one token from the window before it, [C, L]."""
    taps = torch.cat([window, column[:, None]], dim=1)[:, window.shape[1] + 1 - weight.shape[1] :]
    y = (weight.double() * taps).sum(1) + (0.0 if bias is None else bias.double())  # (14)
    return y * y.sigmoid() if activation == "silu" else y


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    activation: str = "silu",
) -> tuple[Tensor, Tensor]:
    """The causal depthwise convolution (14), activation "silu" or "none".

    Args:
        x: [B, T, C].  weight: [C, W], the last column meets the newest token.  bias: [C].
        initial_state: [N, C, L], the columns before the first token, newest last; None: W - 1 columns of zeros.
        cu_seqlens: [N + 1], as in `gated_delta_rule`.

    Returns:
        y [B, T, C] (zero in rows of no sequence) and final_state, the window after the last token.
    """
    batch, tokens, channels = x.shape
    if initial_state is None:
        shape = (_num_sequences(batch, cu_seqlens), channels, weight.shape[1] - 1)
        windows = torch.zeros(shape, dtype=torch.float64, device=x.device)
    else:
        windows = initial_state.double().clone()
    y = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for n, (row, span) in enumerate(_sequences(batch, tokens, cu_seqlens)):
        for t in range(span.start, span.stop):
            column = x[row, t].double()
            y[row, t] = _conv_token(windows[n], column, weight, bias, activation)
            windows[n] = _slide(windows[n], column)
    return y, windows


def causal_conv1d_verify(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    parents: Tensor | None = None,
    *,
    activation: str = "silu",
) -> Tensor:
    """The convolution of T draft tokens a sequence along their branches: x [N, T, C], state [N, C, L] -> y [N, T, C].

    weight, bias and activation as in `causal_conv1d`, parents as in `gated_delta_rule_verify`.
    """
    y = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for n in range(x.shape[0]):
        after = [state[n].double()] * (x.shape[1] + 1)  # the window after token t; index -1 is the committed one
        for t in range(x.shape[1]):
            before = after[_parent(parents, n, t)]
            y[n, t] = _conv_token(before, x[n, t].double(), weight, bias, activation)
            after[t] = _slide(before, x[n, t].double())
    return y


def causal_conv1d_commit(state: Tensor, x: Tensor, accepted: Tensor, path: Tensor | None = None) -> Tensor:
    """The windows [N, C, L] after the accepted rows of x [N, T, C]; accepted, path as in `gated_delta_rule_commit`."""
    windows = state.double().clone()
    for n in range(len(windows)):
        for t in _accepted_rows(accepted, path, n, x.shape[1]):
            windows[n] = _slide(windows[n], x[n, t].double())
    return windows


def qk_l2norm(q: Tensor, k: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """q and k, [..., K], each divided by its length (17)."""
    return _l2norm(q.double(), eps), _l2norm(k.double(), eps)


def gdn_gates(
    a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor, *, allow_neg_eigval: bool = False
) -> tuple[Tensor, Tensor]:
    """g (15) and beta (16), both [..., HV], of a, b [..., HV] and A_log, dt_bias [HV]."""
    softplus = torch.nn.functional.softplus(a.double() + dt_bias.double(), threshold=20.0)
    g = torch.where(softplus == 0.0, 0.0, -A_log.double().exp() * softplus)
    beta = b.double().sigmoid() * (2.0 if allow_neg_eigval else 1.0)
    return g, beta


def gated_rms_norm(o: Tensor, z: Tensor, weight: Tensor, *, eps: float = 1e-6, activation: str = "silu") -> Tensor:
    """(18): o [..., V] over its root mean square, times weight [V], times SiLU(z) or sigmoid(z), z like o."""
    o, z = o.double(), z.double()
    gate = z.sigmoid() if activation == "sigmoid" else z * z.sigmoid()
    return o / (o.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double() * gate
