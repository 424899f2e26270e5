"""What the ops return, without computing it: shapes, dtypes and strides for torch.compile and torch.export.

Outputs are contiguous. Sizes may be symbolic, so nothing here compares or converts them. Argument checks stay with
the real
kernels: a fake one is asked for results only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor


def _sequences(batch: Tensor, cu_seqlens: Tensor | None) -> int:
    """N."""
    return batch.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1


def _float32(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.float32)


def _logs(like: Tensor, N: int, T: int, H: int, HV: int, K: int, V: int) -> tuple[Tensor, Tensor, Tensor]:
    """k_log, d_log, g_log."""
    return _float32(like, N, T, H, K), _float32(like, N, T, HV, V), _float32(like, N, T, HV)


def _gated_delta_rule(
    q, k, v, g, beta, initial_state=None, cu_seqlens=None, *, state_layout="kv", **options
) -> tuple[Tensor, Tensor]:
    N, HV, K, V = _sequences(q, cu_seqlens), v.shape[2], q.shape[3], v.shape[3]
    state_shape = (N, HV, K, V) if state_layout == "kv" else (N, HV, V, K)
    return q.new_empty(v.shape), _float32(q, *state_shape)


def _gated_delta_rule_(q, k, v, *rest, **options) -> Tensor:
    return q.new_empty(v.shape)


def _gated_delta_rule_verify(q, k, v, *rest, **options) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    N, T, H, K = q.shape
    return q.new_empty(v.shape), *_logs(q, N, T, H, v.shape[2], K, v.shape[3])


def _gated_delta_rule_commit_verify_(
    state, k_log, d_log, g_log, accepted, q, k, v, *rest, **options
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _gated_delta_rule_verify(q, k, v)


def _nothing(*args, **options) -> None:
    return None


def _causal_conv1d(x, weight, bias=None, initial_state=None, cu_seqlens=None, **options) -> tuple[Tensor, Tensor]:
    window = weight.shape[1] - 1 if initial_state is None else initial_state.shape[2]
    dtype = x.dtype if initial_state is None else initial_state.dtype
    return x.new_empty(x.shape), x.new_empty((_sequences(x, cu_seqlens), x.shape[2], window), dtype=dtype)


def _same_as_first(x, *rest, **options) -> Tensor:
    return x.new_empty(x.shape)


def _qk_l2norm(q, k, eps=1e-6) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape)


def _gdn_gates(a, b, *rest, **options) -> tuple[Tensor, Tensor]:
    return _float32(a, *a.shape), _float32(b, *b.shape)


def _gated_rms_norm(o, z, weight, *, dtype=None, **options) -> Tensor:
    return o.new_empty(o.shape, dtype=o.dtype if dtype is None else dtype)


def _gdn_decode_layer_(qkv, z, *rest, **options) -> Tensor:
    return qkv.new_empty(z.shape)


def _gdn_verify_layer(
    qkv,
    z,
    a,
    b,
    conv_weight,
    conv_bias,
    A_log,
    dt_bias,
    norm_weight,
    conv_state,
    state,
    *rest,
    num_key_heads,
    state_layout="kv",
    **options,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    N, T, HV, V = z.shape
    K = state.shape[2] if state_layout == "kv" else state.shape[3]
    return qkv.new_empty(z.shape), *_logs(qkv, N, T, num_key_heads, HV, K, V)


_FAKES = {
    "gated_delta_rule": _gated_delta_rule,
    "gated_delta_rule_": _gated_delta_rule_,
    "gated_delta_rule_verify": _gated_delta_rule_verify,
    "gated_delta_rule_commit_": _nothing,
    "gated_delta_rule_commit_layers_": _nothing,
    "gated_delta_rule_commit_verify_": _gated_delta_rule_commit_verify_,
    "causal_conv1d": _causal_conv1d,
    "causal_conv1d_": _same_as_first,
    "causal_conv1d_verify": _same_as_first,
    "causal_conv1d_commit_": _nothing,
    "causal_conv1d_commit_layers_": _nothing,
    "qk_l2norm": _qk_l2norm,
    "gdn_gates": _gdn_gates,
    "gated_rms_norm": _gated_rms_norm,
    "gdn_decode_layer_": _gdn_decode_layer_,
    "gdn_verify_layer": _gdn_verify_layer,
}


def _on_one_device(op: str, fake: Callable) -> Callable:
    """A call with real and meta tensors also comes here; its results would be memory that nobody wrote."""
    names = [argument.name for argument in getattr(torch.ops.strata_gdn, op).default._schema.arguments]

    @functools.wraps(fake)
    def checked(*args, **options):
        first = ""
        for name, value in [*zip(names, args, strict=False), *options.items()]:
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if not isinstance(tensor, Tensor):
                    continue
                if not first:
                    first, device = name, tensor.device
                elif tensor.device != device:
                    raise ValueError(f"{op}: {name} must be on {device} like {first}; got {tensor.device}")
        return fake(*args, **options)

    return checked


def register() -> None:
    """Registers a fake implementation for every op. Once a process, after the extension has defined the ops."""
    for name, fake in _FAKES.items():
        torch.library.register_fake(f"strata_gdn::{name}", _on_one_device(name, fake))
