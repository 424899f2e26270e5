"""A small right call of every op, for tests that change one thing in it."""

from __future__ import annotations

import torch
from cases import BF16, F32, Heads, recurrence, state_pool
from cases import layer as random_layer
from cases import logs as random_logs
from torch import Tensor

from strata_gdn import ops

HEADS = Heads(H=2, HV=4, K=64, V=128)
H, HV, K, V = HEADS
N, T, W, S = 2, 3, 4, 3
C = HEADS.channels


def f32(*shape: int) -> Tensor:
    return torch.randn(shape)


def bf16(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def i64(*values) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def heads(B: int = N, tokens: int = T) -> dict[str, Tensor]:
    return {name: x.contiguous() for name, x in recurrence(HEADS, B, tokens, BF16, beta_dtype=F32).items()}


def logs() -> dict[str, Tensor]:
    return random_logs(HEADS, N, T)


def state() -> Tensor:
    return state_pool(HEADS, S, gap=False)


def layer() -> dict[str, Tensor]:
    return {**random_layer(HEADS, N, T, BF16, width=W, slots=S), "state_indices": i64(2, 0)}


def _layers() -> dict:
    entries = [{"state": state(), **logs()} for _ in range(2)]
    return {f"{name}s": [entry[name] for entry in entries] for name in entries[0]}


_WINDOW = {"accepted": i64(2, 0), "state_indices": i64(2, 0), "path": i64([0, 2, 1], [0, 1, 2])}
_TREE = {"state_indices": i64(2, 0), "parents": i64([-1, 0, 0], [-1, 0, 1])}
_CALLS = {
    "gated_delta_rule": lambda: {**heads(), "initial_state": f32(N, HV, K, V)},
    "gated_delta_rule_": lambda: {
        **heads(B=1),
        "state": state(),
        "state_indices": i64(2, 0),
        "cu_seqlens": i64(0, 1, T),
        "has_initial_state": torch.tensor([True, False]),
    },
    "gated_delta_rule_verify": lambda: {**heads(), "state": state(), **_TREE},
    "gated_delta_rule_commit_": lambda: {"state": state(), **logs(), **_WINDOW},
    "gated_delta_rule_commit_layers_": lambda: {**_layers(), **_WINDOW},
    "gated_delta_rule_commit_verify_": lambda: {"state": state(), **logs(), **_WINDOW, **heads(), **_TREE},
    "causal_conv1d": lambda: {"x": bf16(N, T, C), "weight": f32(C, W), "bias": f32(C), "initial_state": f32(N, C, W)},
    "causal_conv1d_": lambda: {
        "x": bf16(1, T, C),
        "weight": f32(C, W),
        "bias": f32(C),
        "state": bf16(S, C, W - 1),
        "state_indices": i64(2, 0),
        "cu_seqlens": i64(0, 1, T),
        "has_initial_state": torch.tensor([True, False]),
    },
    "causal_conv1d_verify": lambda: {
        "x": bf16(N, T, C),
        "weight": f32(C, W),
        "bias": None,
        "state": bf16(S, C, W),
        **_TREE,
    },
    "causal_conv1d_commit_": lambda: {"state": bf16(S, C, W), "x": bf16(N, T, C), **_WINDOW},
    "causal_conv1d_commit_layers_": lambda: {
        "states": [bf16(S, C, W) for _ in range(2)],
        "xs": [bf16(N, T, C) for _ in range(2)],
        **_WINDOW,
    },
    "qk_l2norm": lambda: {"q": bf16(N, T, H, K), "k": f32(T, H, K)},
    "gdn_gates": lambda: {"a": f32(N, T, HV), "b": bf16(N, T, HV), "A_log": f32(HV), "dt_bias": f32(HV)},
    "gated_rms_norm": lambda: {"o": bf16(N, T, HV, V), "z": f32(N, T, HV, V), "weight": f32(V)},
    "gdn_decode_layer_": layer,
    "gdn_verify_layer": lambda: {**layer(), **_TREE},
}


def call(op: str) -> dict:
    """Every tensor argument of the op, new at each call."""
    torch.manual_seed(0)
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in _CALLS[op]().items()}


def tensors_of(value) -> list[Tensor]:
    """Of an argument or a result."""
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in tensors_of(item)]
    return [value] if isinstance(value, Tensor) else []


def written_names(op: str) -> list[str]:
    """The arguments that the op's schema says it writes."""
    schema = getattr(torch.ops.strata_gdn, op).default._schema.arguments
    return [a.name for a in schema if a.alias_info is not None and a.alias_info.is_write]


def written(op: str, arguments: dict) -> list[Tensor]:
    return [t for name in written_names(op) for t in tensors_of(arguments[name])]


def memory(tensors: list[Tensor]) -> list[bytes]:
    """All that the tensors' storages hold, so that a write beside a view is seen too."""
    storages = [t.untyped_storage() for t in tensors if t.device.type == "cpu"]
    return [torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes() for storage in storages]


def run(op: str, arguments: dict):
    return getattr(ops, op)(**arguments)
