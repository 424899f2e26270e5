"""Every op in the exact order of docs/contract.md, from the scalar loops of tests/cpp/exact_order_c.cpp.

The functions have the names and arguments of the ops. Here: which rows, heads and slots the loops get, widening and
rounding, and what the contract says of wrong index values. In-place functions write the state they are given.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
FUNCTIONS = ("exp", "log1p", "sigmoid", "silu", "softplus")  # in the order of gdn_order_function

P, N64, I32, F32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
SIGNATURES = {
    "gdn_order_recurrence": [P, P, P, P, P, P, N64, N64, N64, F32, I32, F32, P, P, P, P],
    "gdn_order_commit": [P, P, P, P, P, N64, N64, N64, N64],
    "gdn_order_conv": [P, P, P, P, N64, N64, N64, N64, I32, P, I32, P],
    "gdn_order_conv_commit": [P, P, P, N64, N64, N64, N64],
    "gdn_order_l2norm": [P, N64, N64, F32, P],
    "gdn_order_gates": [P, P, P, P, N64, N64, I32, P, P],
    "gdn_order_norm": [P, P, P, N64, N64, F32, I32, P],
    "gdn_order_function": [I32, P, N64, P],
}


@functools.cache
def _library() -> ctypes.CDLL:
    """The loops, compiled once a process."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "exact_order.so"
        subprocess.run(
            [
                os.environ.get("CXX", "g++"), "-O2", "-std=c++17", "-fPIC", "-shared", "-ffp-contract=off",
                "-I", str(ROOT / "csrc"), str(ROOT / "tests" / "cpp" / "exact_order_c.cpp"), "-o", str(output),
            ],
            check=True,
        )  # fmt: skip
        library = ctypes.CDLL(str(output))  # stays loaded without its file
    for name, signature in SIGNATURES.items():
        getattr(library, name).argtypes = signature
        getattr(library, name).restype = None
    return library


def _run(name: str, *arguments: Tensor | int | float | None) -> None:
    for argument in arguments:
        if isinstance(argument, Tensor):
            assert argument.is_contiguous()
            assert argument.dtype in (torch.float32, torch.int64)
    getattr(_library(), name)(*(a.data_ptr() if isinstance(a, Tensor) else a for a in arguments))


def _wide(x: Tensor | None) -> Tensor | None:
    """Contiguous float32."""
    return None if x is None else x.float().contiguous()


def _ints(x: Tensor) -> Tensor:
    return x.long().contiguous()


def function(name: str, x: Tensor) -> Tensor:
    """One of FUNCTIONS of float32 elements."""
    y = torch.empty_like(x)
    _run("gdn_order_function", FUNCTIONS.index(name), x, x.numel(), y)
    return y


# Rows, slots, heads


def _sequences(batch: int, tokens: int, cu_seqlens: Tensor | None) -> Iterator[tuple[int, int, slice]]:
    """(n, batch row, tokens); bounds are clamped into [the one before, T]."""
    if cu_seqlens is None:
        for n in range(batch):
            yield n, n, slice(0, tokens)
        return
    bounds, previous = [], 0
    for bound in cu_seqlens.tolist():
        previous = min(max(bound, previous), tokens)
        bounds.append(previous)
    for n in range(len(bounds) - 1):
        yield n, 0, slice(bounds[n], bounds[n + 1])


def _slot(state_indices: Tensor | None, n: int, slots: int) -> int:
    """-1: skip."""
    slot = n if state_indices is None else int(state_indices[n])
    return slot if 0 <= slot < slots else -1


def _starts_fresh(has_initial_state: Tensor | None, n: int) -> bool:
    return has_initial_state is not None and not bool(has_initial_state[n])


def _key_head(h: int, key_heads: int, value_heads: int, head_map: str) -> int:
    return {"grouped": h // (value_heads // key_heads), "tiled": h % key_heads}[head_map]


def _kv(state: Tensor, state_layout: str) -> Tensor:
    return {"kv": state, "vk": state.mT}[state_layout]


def _scale(scale: float | None, key_dim: int) -> float:
    return key_dim**-0.5 if scale is None else scale


# The recurrence


def gated_delta_rule_(
    q, k, v, g, beta, state, state_indices=None, cu_seqlens=None, has_initial_state=None, *, scale=None,
    qk_l2norm=False, l2_eps=1e-6, head_map="grouped", state_layout="kv", precision="exact",
):  # fmt: skip
    (batch, tokens, H, K), (HV, V) = q.shape, v.shape[2:]
    o = torch.zeros(v.shape, dtype=q.dtype)
    pool = _kv(state, state_layout)
    for n, row, span in _sequences(batch, tokens, cu_seqlens):
        slot = _slot(state_indices, n, len(state))
        if slot < 0:
            continue
        for h in range(HV):
            kh = _key_head(h, H, HV, head_map)
            S = torch.zeros(K, V) if _starts_fresh(has_initial_state, n) else pool[slot, h].clone().contiguous()
            out = torch.empty(span.stop - span.start, V)
            _run(
                "gdn_order_recurrence", _wide(q[row, span, kh]), _wide(k[row, span, kh]), _wide(v[row, span, h]),
                _wide(g[row, span, h]), _wide(beta[row, span, h]), S, len(out), K, V, _scale(scale, K), qk_l2norm,
                l2_eps, None, out, None, None,
            )  # fmt: skip
            o[row, span, h] = out.to(o.dtype)
            pool[slot, h] = S
    return o


def gated_delta_rule(q, k, v, g, beta, initial_state=None, cu_seqlens=None, *, state_layout="kv", **options):
    (HV, V), K = v.shape[2:], q.shape[3]
    if initial_state is None:
        sequences = len(q) if cu_seqlens is None else len(cu_seqlens) - 1
        state = torch.zeros(sequences, HV, *((K, V) if state_layout == "kv" else (V, K)))
    else:
        state = initial_state.clone(memory_format=torch.contiguous_format)
    o = gated_delta_rule_(q, k, v, g, beta, state, None, cu_seqlens, state_layout=state_layout, **options)
    return o, state


def gated_delta_rule_verify(
    q, k, v, g, beta, state, state_indices=None, parents=None, *, scale=None, qk_l2norm=False, l2_eps=1e-6,
    head_map="grouped", state_layout="kv",
):  # fmt: skip
    (sequences, tokens, H, K), (HV, V) = q.shape, v.shape[2:]
    o = torch.zeros(v.shape, dtype=q.dtype)
    k_log, d_log, g_log = torch.zeros(k.shape), torch.zeros(v.shape), torch.zeros(g.shape)
    pool = _kv(state, state_layout)
    for n in range(sequences):
        slot = _slot(state_indices, n, len(state))
        if slot < 0:
            continue
        chain = torch.arange(-1, tokens - 1)
        for h in range(HV):
            kh = _key_head(h, H, HV, head_map)
            out, keys, corrections = torch.empty(tokens, V), torch.empty(tokens, K), torch.empty(tokens, V)
            _run(
                "gdn_order_recurrence", _wide(q[n, :, kh]), _wide(k[n, :, kh]), _wide(v[n, :, h]), _wide(g[n, :, h]),
                _wide(beta[n, :, h]), pool[slot, h].clone().contiguous(), tokens, K, V, _scale(scale, K), qk_l2norm,
                l2_eps, chain if parents is None else _ints(parents[n]), out, keys, corrections,
            )  # fmt: skip
            o[n, :, h] = out.to(o.dtype)
            k_log[n, :, kh], d_log[n, :, h], g_log[n, :, h] = keys, corrections, g[n, :, h]
    return o, k_log, d_log, g_log


def gated_delta_rule_commit_(
    state, k_log, d_log, g_log, accepted, state_indices=None, path=None, *, head_map="grouped", state_layout="kv"
):
    (sequences, tokens, H, K), (HV, V) = k_log.shape, d_log.shape[2:]
    pool = _kv(state, state_layout)
    for n in range(sequences):
        slot = _slot(state_indices, n, len(state))
        if slot < 0:
            continue
        for h in range(HV):
            S = pool[slot, h].clone().contiguous()
            _run(
                "gdn_order_commit", S, _wide(k_log[n, :, _key_head(h, H, HV, head_map)]), _wide(d_log[n, :, h]),
                _wide(g_log[n, :, h]), None if path is None else _ints(path[n]), int(accepted[n]), tokens, K, V,
            )  # fmt: skip
            pool[slot, h] = S


def gated_delta_rule_commit_layers_(states, k_logs, d_logs, g_logs, accepted, **window):
    for state, k_log, d_log, g_log in zip(states, k_logs, d_logs, g_logs, strict=True):
        gated_delta_rule_commit_(state, k_log, d_log, g_log, accepted, **window)


def gated_delta_rule_commit_verify_(
    state, k_log, d_log, g_log, accepted, q, k, v, g, beta, state_indices=None, path=None, parents=None, *,
    head_map="grouped", state_layout="kv", **options,
):  # fmt: skip
    layout = {"head_map": head_map, "state_layout": state_layout}
    gated_delta_rule_commit_(state, k_log, d_log, g_log, accepted, state_indices, path, **layout)
    return gated_delta_rule_verify(q, k, v, g, beta, state, state_indices, parents, **layout, **options)


# The convolution


def causal_conv1d_(
    x, weight, bias, state, state_indices=None, cu_seqlens=None, has_initial_state=None, *, activation="silu"
):
    y = torch.zeros(x.shape, dtype=x.dtype)
    for n, row, span in _sequences(len(x), x.shape[1], cu_seqlens):
        slot = _slot(state_indices, n, len(state))
        if slot < 0:
            continue
        rows, window = _wide(x[row, span]), state[slot].float().contiguous().clone()
        if _starts_fresh(has_initial_state, n):
            window.zero_()
        y[row, span] = _convolve(rows, weight, bias, window, activation, None, update_window=True).to(x.dtype)
        state[slot] = window.to(state.dtype)
    return y


def _convolve(rows, weight, bias, window, activation, parents, *, update_window):
    y = torch.empty_like(rows)
    (tokens, channels), width = rows.shape, weight.shape[1]
    silu = {"silu": 1, "none": 0}[activation]
    _run(
        "gdn_order_conv", rows, _wide(weight), _wide(bias), window, tokens, channels, width, window.shape[1], silu,
        parents, update_window, y,
    )  # fmt: skip
    return y


def causal_conv1d(x, weight, bias=None, initial_state=None, cu_seqlens=None, *, activation="silu"):
    if initial_state is None:
        sequences = len(x) if cu_seqlens is None else len(cu_seqlens) - 1
        state = torch.zeros(sequences, x.shape[2], weight.shape[1] - 1, dtype=x.dtype)
    else:
        state = initial_state.clone(memory_format=torch.contiguous_format)
    return causal_conv1d_(x, weight, bias, state, None, cu_seqlens, activation=activation), state


def causal_conv1d_verify(x, weight, bias, state, state_indices=None, parents=None, *, activation="silu"):
    y = torch.zeros(x.shape, dtype=x.dtype)
    for n in range(len(x)):
        slot = _slot(state_indices, n, len(state))
        if slot < 0:
            continue
        branches = None if parents is None else _ints(parents[n])
        window = state[slot].float().contiguous()
        y[n] = _convolve(_wide(x[n]), weight, bias, window, activation, branches, update_window=False).to(x.dtype)
    return y


def causal_conv1d_commit_(state, x, accepted, state_indices=None, path=None):
    for n in range(len(x)):
        slot = _slot(state_indices, n, len(state))
        if slot < 0:
            continue
        window = state[slot].float().contiguous().clone()
        rows = None if path is None else _ints(path[n])
        _run("gdn_order_conv_commit", _wide(x[n]), window, rows, int(accepted[n]), *x.shape[1:], window.shape[1])
        state[slot] = window.to(state.dtype)


def causal_conv1d_commit_layers_(states, xs, accepted, **window):
    for state, x in zip(states, xs, strict=True):
        causal_conv1d_commit_(state, x, accepted, **window)


# Pointwise


def qk_l2norm(q, k, eps=1e-6):
    def one(x):
        wide, y = _wide(x), torch.empty(x.shape)
        _run("gdn_order_l2norm", wide, x[..., 0].numel(), x.shape[-1], eps, y)
        return y.to(x.dtype)

    return one(q), one(k)


def gdn_gates(a, b, A_log, dt_bias, *, allow_neg_eigval=False):
    g, beta = torch.empty(a.shape), torch.empty(a.shape)
    _run(
        "gdn_order_gates", _wide(a), _wide(b), _wide(A_log), _wide(dt_bias), a[..., 0].numel(), a.shape[-1],
        allow_neg_eigval, g, beta,
    )  # fmt: skip
    return g, beta


def gated_rms_norm(o, z, weight, *, eps=1e-6, activation="silu", dtype=None):
    y = torch.empty(o.shape)
    sigmoid = {"silu": 0, "sigmoid": 1}[activation]
    _run("gdn_order_norm", _wide(o), _wide(z), _wide(weight), o[..., 0].numel(), o.shape[-1], eps, sigmoid, y)
    return y.to(dtype or o.dtype)


# The layers


def _layer(
    convolve, recur, qkv, z, a, b, A_log, dt_bias, norm_weight, num_key_heads, norm_eps, allow_neg_eigval,
    norm_activation,
):  # fmt: skip
    HV, V = z.shape[2:]
    K = (qkv.shape[2] - HV * V) // (2 * num_key_heads)
    mixed = convolve(qkv)
    q, k, v = mixed.split([num_key_heads * K, num_key_heads * K, HV * V], -1)
    g, beta = gdn_gates(a, b, A_log, dt_bias, allow_neg_eigval=allow_neg_eigval)
    o, *logs = recur(q.unflatten(-1, (-1, K)), k.unflatten(-1, (-1, K)), v.unflatten(-1, (-1, V)), g, beta)
    return gated_rms_norm(o, z, norm_weight, eps=norm_eps, activation=norm_activation), *logs


def gdn_decode_layer_(
    qkv, z, a, b, conv_weight, conv_bias, A_log, dt_bias, norm_weight, conv_state, state, state_indices=None, *,
    num_key_heads, norm_eps=1e-6, allow_neg_eigval=False, norm_activation="silu", **options,
):  # fmt: skip
    (y,) = _layer(
        lambda x: causal_conv1d_(x, conv_weight, conv_bias, conv_state, state_indices),
        lambda *inputs: (gated_delta_rule_(*inputs, state, state_indices, qk_l2norm=True, **options),),
        qkv, z, a, b, A_log, dt_bias, norm_weight, num_key_heads, norm_eps, allow_neg_eigval, norm_activation,
    )  # fmt: skip
    return y


def gdn_verify_layer(
    qkv, z, a, b, conv_weight, conv_bias, A_log, dt_bias, norm_weight, conv_state, state, state_indices=None,
    parents=None, *, num_key_heads, norm_eps=1e-6, allow_neg_eigval=False, norm_activation="silu", **options,
):  # fmt: skip
    return _layer(
        lambda x: causal_conv1d_verify(x, conv_weight, conv_bias, conv_state, state_indices, parents),
        lambda *inputs: gated_delta_rule_verify(*inputs, state, state_indices, parents, qk_l2norm=True, **options),
        qkv, z, a, b, A_log, dt_bias, norm_weight, num_key_heads, norm_eps, allow_neg_eigval, norm_activation,
    )  # fmt: skip
