"""What is called on every device and instruction set: a table of calls for each op. More prompts: prompts.py.

An op with a new kernel needs nothing here: whoever goes through the table asks the registry what serves it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .call import Call
from .inputs import (
    BF16,
    F16,
    F32,
    Heads,
    convolution,
    cu_seqlens,
    index,
    layer,
    logs,
    padded_path,
    path_to,
    recurrence,
    shifted,
    state_pool,
    tree,
    window_pool,
)

SMALL = Heads(2, 4, 64, 64)


def _slots(batch: int) -> dict[str, Tensor]:
    """Each sequence has a slot of its own, in no order."""
    return {"state_indices": index(*torch.randperm(batch).tolist())}


def _options(layout: str = "kv", **more: Any) -> dict[str, Any]:
    return {"state_layout": layout, "head_map": {"kv": "grouped", "vk": "tiled"}[layout], **more}


def _prompt(heads: Heads, lengths: Sequence[int], dtype: torch.dtype, layout: str, **options: Any) -> dict[str, Any]:
    return {
        **recurrence(heads, 1, sum(lengths), dtype),
        "initial_state": state_pool(heads, len(lengths), layout),
        "cu_seqlens": cu_seqlens(*lengths),
        **_options(layout, **options),
    }


def in_place(heads: Heads, batch: int, tokens: int, dtype: torch.dtype, layout: str, **options: Any) -> dict[str, Any]:
    slots = batch + 2
    indices = torch.randperm(slots)[:batch]
    indices[0] = -1
    return {
        **recurrence(heads, batch, tokens, dtype),
        "state": state_pool(heads, slots, layout),
        "state_indices": index(*indices.tolist()),
        "has_initial_state": torch.arange(batch) % 3 != 2,
        **_options(layout, **options),
    }


def _packed(heads: Heads, lengths: Sequence[int], dtype: torch.dtype, layout: str, **options: Any) -> dict[str, Any]:
    arguments = _prompt(heads, lengths, dtype, layout, **options)
    state = arguments.pop("initial_state")
    return {
        **arguments,
        "state": state,
        **_slots(len(lengths)),
        "has_initial_state": torch.arange(len(lengths)) % 2 == 0,
    }


def verify(heads: Heads, batch: int, tokens: int, dtype: torch.dtype, layout: str, branches: bool) -> dict[str, Any]:
    return {
        **recurrence(heads, batch, tokens, dtype),
        "state": state_pool(heads, batch, layout),
        **_slots(batch),
        "parents": tree(batch, tokens) if branches else None,
        **_options(layout, qk_l2norm=True),
    }


def window_choice(batch: int, tokens: int, branches: bool) -> dict[str, Tensor | None]:
    """accepted [N] (0 and T among them) and path [N, T] (branches of random trees, and one of all rows), or None."""
    between = torch.randint(tokens + 1, (max(batch - 2, 0),)).tolist()
    accepted = [0, *between, tokens][-batch:] if batch else []
    if not branches:
        return {"accepted": index(*accepted), "path": None}
    trees = tree(batch, tokens)
    paths = [path_to(trees[n], int(torch.randint(tokens, ()))) for n in range(batch - 1)]
    paths.append(torch.randperm(tokens).tolist())
    return {
        "accepted": index(*(min(count, len(path)) for count, path in zip(accepted, paths, strict=True))),
        "path": index(*(padded_path(path, tokens) for path in paths)),
    }


def commit(heads: Heads, batch: int, tokens: int, layout: str, branches: bool) -> dict[str, Any]:
    return {
        "state": state_pool(heads, batch, layout),
        **logs(heads, batch, tokens),
        **window_choice(batch, tokens, branches),
        **_slots(batch),
        **_options(layout),
    }


def commit_layers(layers: int, heads: Heads, batch: int, tokens: int, layout: str, branches: bool) -> dict[str, Any]:
    calls = [commit(heads, batch, tokens, layout, branches) for _ in range(layers)]
    lists = {name + "s": [call.pop(name) for call in calls] for name in ("state", "k_log", "d_log", "g_log")}
    return lists | calls[0]


def commit_verify(heads: Heads, batch: int, before: int, tokens: int, dtype: torch.dtype, layout: str, branches: bool):
    return commit(heads, batch, before, layout, branches) | verify(heads, batch, tokens, dtype, layout, branches)


def convolve(channels: int, width: int, window: int, lengths: list[int], dtype: torch.dtype, state_dtype: torch.dtype):
    return {
        **convolution(channels, width, 1, sum(lengths), dtype),
        "state": window_pool(channels, len(lengths) + 1, window, state_dtype),
        "state_indices": index(*(torch.randperm(len(lengths) + 1)[: len(lengths)]).tolist()),
        "cu_seqlens": cu_seqlens(*lengths),
        "has_initial_state": torch.arange(len(lengths)) % 2 == 0,
    }


def _conv_prompt(channels: int, width: int, window: int, lengths: list[int], dtype: torch.dtype, state: torch.dtype):
    return {
        **convolution(channels, width, 1, sum(lengths), dtype),
        "initial_state": window_pool(channels, len(lengths), window, state),
        "cu_seqlens": cu_seqlens(*lengths),
    }


def conv_verify(channels: int, width: int, window: int, batch: int, tokens: int, dtype: torch.dtype, branches: bool):
    return {
        **convolution(channels, width, batch, tokens, dtype),
        "state": window_pool(channels, batch, window, dtype),
        "parents": tree(batch, tokens) if branches else None,
    }


def _conv_commit(channels: int, window: int, batch: int, tokens: int, dtype: torch.dtype, state_dtype: torch.dtype):
    return {
        "state": window_pool(channels, batch, window, state_dtype),
        "x": torch.randn(batch, tokens, channels).to(dtype),
        **window_choice(batch, tokens, branches=True),
    }


def _conv_commit_layers(layers: int, **sizes: Any) -> dict[str, Any]:
    calls = [_conv_commit(**sizes) for _ in range(layers)]
    return {name + "s": [call.pop(name) for call in calls] for name in ("state", "x")} | calls[0]


def gates(rows: int, HV: int, dtype: torch.dtype, **options: Any) -> dict[str, Any]:
    a, b = (torch.randn(2, rows, 2 * HV).to(dtype)[..., ::2] for _ in range(2))
    return {"a": a, "b": b, "A_log": torch.rand(HV).mul(16).log(), "dt_bias": torch.randn(HV).to(dtype), **options}


def norm(rows: int, V: int, inputs: torch.dtype, **options: Any) -> dict[str, Any]:
    o, z = torch.randn(rows, 2, V), torch.randn(rows, 2, V + 1)[..., :V]
    return {"o": o.to(inputs), "z": z.to(inputs), "weight": torch.randn(V).to(inputs), **options}


def l2norm(K: int, dtype: torch.dtype) -> dict[str, Any]:
    return {"q": torch.randn(3, 5, 2, K).to(dtype), "k": torch.randn(2, 7, K + 1)[..., :K].to(dtype), "eps": 1e-5}


def odd(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments, every floating-point tensor one element off where an allocation starts."""

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(x) for x in value]
        return shifted(value) if isinstance(value, Tensor) and value.is_floating_point() else value

    return {name: moved(value) for name, value in arguments.items()}


def contiguous(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments, every tensor contiguous: a layer's usual rows and windows, which GPUs have a form for."""
    return {name: x.contiguous() if isinstance(x, Tensor) else x for name, x in arguments.items()}


# Scalars that are not the defaults.
SCALED = {"scale": 0.5, "qk_l2norm": True, "l2_eps": 1e-5}
LAYER_SCALED = {
    "scale": 0.5, "l2_eps": 1e-5, "norm_eps": 1e-5, "allow_neg_eigval": True, "norm_activation": "sigmoid",
}  # fmt: skip

# One line a call: the name starts with the op's. Small enough that every test can run all of them; together they use
# every argument of every op.
CALLS: dict[str, Callable[[], dict[str, Any]]] = {
    "gated_delta_rule f32 kv": lambda: _prompt(SMALL, [17, 0, 5], F32, "kv"),
    "gated_delta_rule bf16 vk": lambda: _prompt(SMALL, [9, 1], BF16, "vk", **SCALED),
    "gated_delta_rule zeros": lambda: (
        recurrence(Heads(1, 3, 128, 64), 2, 12, F16, gates="slow") | {"precision": "exact"}
    ),
    "gated_delta_rule_ f32 vk": lambda: in_place(SMALL, 3, 6, F32, "vk"),
    "gated_delta_rule_ bf16 step": lambda: in_place(Heads(1, 2, 128, 128), 3, 1, BF16, "kv", qk_l2norm=True),
    "gated_delta_rule_ packed": lambda: _packed(SMALL, [7, 1, 4], F16, "kv", **SCALED, precision="exact"),
    "gated_delta_rule_verify chain": lambda: verify(SMALL, 2, 9, BF16, "kv", False),
    "gated_delta_rule_verify tree": lambda: verify(SMALL, 2, 9, F32, "vk", True) | SCALED,
    "gated_delta_rule_commit_ chain": lambda: commit(SMALL, 3, 6, "kv", False),
    "gated_delta_rule_commit_ path": lambda: commit(SMALL, 3, 6, "vk", True),
    "gated_delta_rule_commit_layers_ chain": lambda: commit_layers(3, SMALL, 2, 4, "kv", False),
    "gated_delta_rule_commit_layers_ path": lambda: commit_layers(2, SMALL, 2, 4, "vk", True),
    "gated_delta_rule_commit_verify_ chain": lambda: commit_verify(SMALL, 2, 3, 5, F16, "kv", False),
    "gated_delta_rule_commit_verify_ tree": lambda: commit_verify(SMALL, 2, 5, 4, BF16, "vk", True) | SCALED,
    "causal_conv1d f32": lambda: convolution(70, 4, 2, 40),
    "causal_conv1d bf16 none": lambda: convolution(130, 3, 2, 9, BF16, bias=False) | {"activation": "none"},
    "causal_conv1d packed": lambda: _conv_prompt(70, 4, 5, [9, 0, 4], F16, F32),
    "causal_conv1d_ bf16": lambda: convolve(70, 4, 3, [9, 0, 1], BF16, BF16),
    "causal_conv1d_ long f32 window": lambda: (
        convolve(70, 2, 6, [4, 0, 8], F16, F32) | {"activation": "none"}
    ),
    "causal_conv1d_verify chain": lambda: conv_verify(70, 4, 3, 2, 7, BF16, False),
    "causal_conv1d_verify tree": lambda: (
        conv_verify(70, 4, 5, 2, 9, F32, True) | _slots(2) | {"activation": "none"}
    ),
    "causal_conv1d_commit_ bf16": lambda: _conv_commit(70, 3, 3, 6, BF16, BF16) | _slots(3),
    "causal_conv1d_commit_layers_ f32 window": lambda: (
        _conv_commit_layers(3, channels=70, window=3, batch=2, tokens=5, dtype=F16, state_dtype=F32) | _slots(2)
    ),
    "causal_conv1d_commit_layers_ wide": lambda: _conv_commit_layers(
        3, channels=700, window=4, batch=2, tokens=3, dtype=BF16, state_dtype=BF16
    ),
    "qk_l2norm f32": lambda: l2norm(64, F32),
    "qk_l2norm many rows": lambda: {name: torch.randn(40, 5, 3, 64) for name in "qk"},
    "qk_l2norm bf16": lambda: l2norm(256, BF16),
    "qk_l2norm mixed": lambda: l2norm(64, BF16) | {"k": torch.randn(3, 2, 64).to(F16)},
    "gdn_gates f32": lambda: gates(5, 6, F32),
    "gdn_gates bf16": lambda: gates(3, 70, BF16, allow_neg_eigval=True),
    "gdn_gates mixed": lambda: gates(5, 6, F32) | {"b": torch.randn(2, 5, 6).to(BF16)},
    "gdn_gates many rows": lambda: gates(700, 32, F32),
    "gated_rms_norm many rows": lambda: norm(300, 64, F32),
    "gated_rms_norm f32": lambda: norm(5, 64, F32),
    "gated_rms_norm bf16": lambda: norm(3, 256, BF16, activation="sigmoid", dtype=F16, eps=1e-5),
    "gated_rms_norm mixed": lambda: norm(5, 64, F32) | {"z": torch.randn(5, 2, 64).to(BF16)},
    "gdn_decode_layer_ bf16": lambda: layer(SMALL, 2, 3, slots=3) | {"state_indices": index(2, 0)},
    "gdn_decode_layer_ f32 vk": lambda: layer(SMALL, 2, 1, F32, slots=2, layout="vk") | _options("vk") | LAYER_SCALED,
    "gdn_verify_layer chain": lambda: layer(SMALL, 2, 8, F16, slots=2, bias=False),
    "gdn_verify_layer tree": lambda: (
        layer(SMALL, 2, 5, slots=2, layout="vk") | _options("vk", **LAYER_SCALED) | _slots(2) | {"parents": tree(2, 5)}
    ),
}  # fmt: skip


# Values that arithmetic treats in a way of its own.
SPECIAL = (torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, 20.0, 89.0, -104.0)


def _sprinkled(arguments: dict[str, Any], *names: str) -> dict[str, Any]:
    """One element of sixteen of the named tensors is a special value."""
    for name in names:
        x = arguments[name]
        special = torch.tensor(SPECIAL)[torch.randint(len(SPECIAL), x.shape)].to(x.dtype)
        x.copy_(torch.where(torch.rand(x.shape) < 1 / 16, special, x))
    return arguments


def _nan_in_a_head(keys: int, values: int) -> dict[str, Any]:
    arguments = recurrence(Heads(2, 6, keys, values), 2, 21, F32)
    arguments["v"][0, 3, 1, 5] = torch.nan
    arguments["g"][1, 7, 4] = torch.inf
    return arguments


def _gaps(dtype: torch.dtype, layout: str) -> dict[str, Any]:
    """Bounds with a step back, an empty sequence and rows that no sequence covers; slots out of range."""
    heads = Heads(2, 6, 128, 64)
    return {
        **recurrence(heads, 1, 60, dtype),
        "state": state_pool(heads, 6, layout),
        "state_indices": index(3, -1, 0, 9, 2),
        "cu_seqlens": index(4, 21, 21, 30, 22, 50),
        "has_initial_state": torch.tensor([True, True, False, True, False]),
        **_options(layout),
    }


def _many_drafts(dtype: torch.dtype, layout: str, branches: bool) -> dict[str, Any]:
    return verify(Heads(2, 6, 128, 128), 2, 128, dtype, layout, branches)


# More of the same, larger or with special values.
MORE_CALLS: dict[str, Callable[[], dict[str, Any]]] = {
    "gated_delta_rule nan in a head": lambda: _nan_in_a_head(128, 64),
    "gated_delta_rule nan in a head, K=64": lambda: _nan_in_a_head(64, 128),
    "gated_delta_rule_ gaps": lambda: _gaps(F32, "kv"),
    "gated_delta_rule_ gaps bf16 vk": lambda: _gaps(BF16, "vk"),
    "gated_delta_rule_ pieces": lambda: in_place(Heads(2, 8, 128, 128), 4, 19, F16, "vk", qk_l2norm=True),
    "gated_delta_rule_ odd addresses": lambda: odd(in_place(Heads(2, 4, 128, 64), 2, 9, BF16, "kv")),
    "gated_delta_rule_ odd addresses vk": lambda: odd(in_place(Heads(1, 2, 64, 64), 2, 3, F32, "vk")),
    "gated_delta_rule_verify odd addresses": lambda: odd(verify(Heads(1, 2, 256, 64), 2, 9, F16, "kv", True)),
    "gated_delta_rule_commit_layers_ odd addresses": lambda: odd(
        commit_layers(2, Heads(2, 4, 128, 64), 2, 4, "vk", False)
    ),
    "gated_delta_rule_verify 128 in a chain": lambda: _many_drafts(BF16, "kv", False),
    "gated_delta_rule_verify 128 in a tree": lambda: _many_drafts(F16, "vk", True),
    "gated_delta_rule_commit_ wide": lambda: commit(Heads(2, 6, 128, 128), 3, 16, "kv", True),
    "gated_delta_rule_commit_layers_ wide": lambda: commit_layers(5, Heads(2, 6, 128, 128), 2, 8, "vk", True),
    "gated_delta_rule_commit_verify_ wide": lambda: commit_verify(
        Heads(2, 6, 128, 128), 2, 8, 16, BF16, "kv", True
    ),
    "causal_conv1d long": lambda: convolution(70, 4, 2, 4099, BF16),
    "causal_conv1d a layer's channels": lambda: convolution(10240, 4, 1, 33, F16),
    "causal_conv1d special values": lambda: _sprinkled(convolution(66, 4, 2, 129), "x", "weight", "bias"),
    "causal_conv1d_ long": lambda: convolve(130, 4, 3, [1000, 1, 257], F16, F16),
    "causal_conv1d_ wide window": lambda: convolve(257, 9, 9, [31, 2, 33], F32, F32),
    "causal_conv1d_verify 128 in a tree": lambda: conv_verify(130, 4, 3, 3, 128, F16, True),
    "causal_conv1d_commit_ wide": lambda: _conv_commit(1030, 5, 4, 33, F32, F32),
    "qk_l2norm f16 special values": lambda: _sprinkled(l2norm(128, F16), "q", "k"),
    "qk_l2norm a layer's heads": lambda: {n: torch.randn(2, 257, 16, 128).to(BF16) for n in "qk"},
    "gdn_gates special values": lambda: _sprinkled(gates(129, 48, F32), "a", "b", "A_log", "dt_bias"),
    "gdn_gates f16 special values": lambda: _sprinkled(gates(129, 48, F16), "a", "b"),
    "gated_rms_norm special values": lambda: _sprinkled(norm(33, 128, F32), "o", "z", "weight"),
    "gated_rms_norm f16": lambda: norm(257, 128, F16, eps=1e-5),
    "gdn_decode_layer_ a layer's heads": lambda: layer(Heads(16, 48, 128, 128), 2, 2, slots=2),
    "gdn_verify_layer a layer's heads": lambda: layer(Heads(16, 32, 128, 128), 2, 8, F16, slots=2),
    "gdn_decode_layer_ contiguous": lambda: contiguous(layer(Heads(16, 48, 128, 128), 2, 1, slots=3) | _slots(2)),
    "gdn_decode_layer_ contiguous, tokens": lambda: contiguous(layer(SMALL, 3, 5, F16, slots=3) | _slots(3)),
    "gdn_verify_layer contiguous": lambda: contiguous(layer(Heads(16, 48, 128, 128), 2, 4, slots=2) | _slots(2)),
    "gdn_verify_layer contiguous, a tree": lambda: contiguous(layer(SMALL, 3, 8, slots=3) | {"parents": tree(3, 8)}),
}  # fmt: skip


def call(name: str) -> Call:
    """A fresh call of CALLS or MORE_CALLS."""
    return Call(name.split()[0], (CALLS | MORE_CALLS)[name]())
