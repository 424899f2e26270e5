"""Random inputs for the ops, from the test's own seed, and a table of calls that covers every op.

The normal case is a strided one: q, k and v are views into one packed [B, T, q|k|v] buffer, gates and pools have gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

import strata_gdn  # noqa: F401 -- registers the ops

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = [F32, BF16, F16]
ISAS = ["baseline", "avx2", "avx512"]

# Lengths around the sizes of chunks, stages and warps.
ODD_TOKENS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 257, 1000]
CUT_TOKENS = [1, 2, 3, 5, 8, 17, 64, 65, 257, 1000]


class Heads(NamedTuple):
    H: int = 1
    HV: int = 1
    K: int = 64
    V: int = 64

    @property
    def channels(self) -> int:
        return 2 * self.H * self.K + self.HV * self.V


# Inputs


def packed(heads: Heads, batch: int, tokens: int, dtype: torch.dtype = F32) -> Tensor:
    """[B, T, q|k|v], its rows a few elements apart."""
    gap = int(torch.randint(4, ()))
    return torch.randn(batch, tokens, heads.channels + gap).to(dtype)[..., : heads.channels]


def split(mixed: Tensor, heads: Heads) -> dict[str, Tensor]:
    """q, k and v as views of a packed tensor."""
    q, k, v = mixed.split([heads.H * heads.K, heads.H * heads.K, heads.HV * heads.V], -1)
    return {
        "q": q.unflatten(-1, (heads.H, heads.K)),
        "k": k.unflatten(-1, (heads.H, heads.K)),
        "v": v.unflatten(-1, (heads.HV, heads.V)),
    }


def log_decay(shape: tuple[int, ...], kind: str = "model") -> Tensor:
    """g [.., HV]. "slow": a quarter of the heads does not decay at all; "model": a rate of up to 16 a head."""
    HV = shape[-1]
    if kind == "slow":
        g = torch.nn.functional.logsigmoid(torch.randn(shape)) / 16
        g[..., torch.randperm(HV)[: HV // 4]] = 0.0
        return g
    return -16 * torch.rand(HV) * torch.nn.functional.softplus(torch.randn(shape) - 2)


def recurrence(
    heads: Heads,
    batch: int,
    tokens: int,
    dtype: torch.dtype = F32,
    *,
    gates: str = "model",
    beta_dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """q, k, v, g, beta: keys of length about 1, gates with strides of their own."""
    mixed = packed(heads, batch, tokens, dtype)
    mixed[..., : 2 * heads.H * heads.K] *= heads.K**-0.5
    g = log_decay((batch, tokens, heads.HV), gates)
    beta = torch.rand(batch, tokens, 2 * heads.HV).to(beta_dtype or dtype)
    return {**split(mixed, heads), "g": g.transpose(1, 2).contiguous().transpose(1, 2), "beta": beta[..., ::2]}


def state_pool(heads: Heads, slots: int, layout: str = "kv", *, gap: bool = True) -> Tensor:
    """[S, HV, K, V] or [S, HV, V, K]; with a gap between the slots."""
    rows = (heads.K, heads.V) if layout == "kv" else (heads.V, heads.K)
    return (0.1 * torch.randn(slots, heads.HV + int(gap), *rows))[:, : heads.HV]


def window_pool(channels: int, slots: int, window: int, dtype: torch.dtype) -> Tensor:
    """[S, C, L], with a gap between the channels."""
    return torch.randn(slots, channels, window + 1).to(dtype)[..., :window]


def convolution(
    channels: int,
    width: int,
    batch: int,
    tokens: int,
    dtype: torch.dtype = F32,
    *,
    bias: bool = True,
    weight_dtype: torch.dtype | None = None,
) -> dict[str, Tensor | None]:
    """x, weight, bias."""
    weight_dtype = weight_dtype or dtype
    return {
        "x": torch.randn(batch, tokens, channels + 3).to(dtype)[..., :channels],
        "weight": torch.randn(channels, width).to(weight_dtype),
        "bias": torch.randn(channels).to(weight_dtype) if bias else None,
    }


def logs(heads: Heads, batch: int, tokens: int) -> dict[str, Tensor]:
    """k_log, d_log, g_log: any values will do."""
    return {
        "k_log": torch.randn(batch, tokens, heads.H, heads.K) * heads.K**-0.5,
        "d_log": torch.randn(batch, tokens, heads.HV, heads.V),
        "g_log": log_decay((batch, tokens, heads.HV)),
    }


def layer(
    heads: Heads, batch: int, tokens: int, dtype: torch.dtype = BF16, *, width: int = 4, slots: int, layout: str = "kv",
    window: int | None = None, state_dtype: torch.dtype | None = None, bias: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """The arguments that gdn_decode_layer_ and gdn_verify_layer share."""
    C, (H, HV, _, V) = heads.channels, heads
    return {
        "qkv": packed(heads, batch, tokens, dtype),
        "z": torch.randn(batch, tokens, HV, V).to(dtype),
        "a": torch.randn(batch, tokens, 2 * HV).to(dtype)[..., ::2],
        "b": torch.randn(batch, tokens, HV).to(dtype),
        "conv_weight": torch.randn(C, width).to(dtype),
        "conv_bias": torch.randn(C).to(dtype) if bias else None,
        "A_log": torch.rand(HV).mul(16).log(),
        "dt_bias": torch.randn(HV),
        "norm_weight": torch.randn(V).to(dtype),
        "conv_state": window_pool(C, slots, width - 1 if window is None else window, state_dtype or dtype),
        "state": state_pool(heads, slots, layout),
        "num_key_heads": H,
    }


def index(*values: Any, dtype: torch.dtype | None = None) -> Tensor:
    """An index tensor, int32 or int64 by chance."""
    return torch.tensor(values, dtype=dtype or (torch.int32, torch.int64)[int(torch.randint(2, ()))])


def cu_seqlens(*lengths: int) -> Tensor:
    return index(*torch.tensor((0, *lengths)).cumsum(0).tolist())


def tree(batch: int, tokens: int) -> Tensor:
    """parents [N, T]: random trees, in which several tokens follow the committed state or the same token."""
    return torch.stack([(torch.rand(tokens) * (torch.arange(tokens) + 1)).long() - 1 for _ in range(batch)])


def path_to(parents: Tensor, leaf: int) -> list[int]:
    """The rows from the root to `leaf` of one tree, parents [T]."""
    rows: list[int] = []
    while leaf >= 0:
        rows.insert(0, leaf)
        leaf = int(parents[leaf])
    return rows


def padded_path(rows: list[int], tokens: int) -> list[int]:
    """A path [T]: -1 after its last row."""
    return rows + [-1] * (tokens - len(rows))


# Calls


@dataclass(frozen=True)
class Call:
    """An op and its arguments."""

    op: str
    arguments: dict[str, Any]

    def run(self, implementation: Any = torch.ops.strata_gdn) -> tuple[Tensor, ...]:
        """The results as a tuple."""
        results = getattr(implementation, self.op)(**self.arguments)
        if results is None:
            return ()
        return (results,) if isinstance(results, Tensor) else tuple(results)

    def copy(self, device: str = "cpu") -> Call:
        """With the same strides in storages of its own on `device`, which views go on sharing."""
        storages: dict[int, torch.UntypedStorage] = {}

        def copy(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [copy(v) for v in value]
            if not isinstance(value, Tensor):
                return value
            old = value.untyped_storage()
            if old.data_ptr() not in storages:
                storages[old.data_ptr()] = old.clone() if device == "cpu" else old.to(device=device)
            new = storages[old.data_ptr()]
            empty = torch.empty(0, dtype=value.dtype, device=device)
            return empty.set_(new, value.storage_offset(), value.shape, value.stride())

        return Call(self.op, {name: copy(value) for name, value in self.arguments.items()})

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Each tensor argument's whole storage: what is between its elements counts too."""
        for name, value in self.arguments.items():
            for i, tensor in enumerate(value if isinstance(value, (list, tuple)) else [value]):
                if isinstance(tensor, Tensor) and tensor.numel():
                    yield (
                        f"{name}[{i}]" if value is not tensor else name,
                        torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage()),
                    )


SMALL = Heads(2, 4, 64, 64)


def _options(layout: str = "kv", **more: Any) -> dict[str, Any]:
    return {"state_layout": layout, "head_map": {"kv": "grouped", "vk": "tiled"}[layout], **more}


def _prompt(heads: Heads, lengths: Iterable[int], dtype: torch.dtype, layout: str, **options: Any) -> dict[str, Any]:
    lengths = list(lengths)
    return {
        **recurrence(heads, 1, sum(lengths), dtype),
        "initial_state": state_pool(heads, len(lengths), layout),
        "cu_seqlens": cu_seqlens(*lengths),
        **_options(layout, **options),
    }


def _in_place(heads: Heads, batch: int, tokens: int, dtype: torch.dtype, layout: str, **options: Any) -> dict[str, Any]:
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


def _verify(heads: Heads, batch: int, tokens: int, dtype: torch.dtype, layout: str, branches: bool) -> dict[str, Any]:
    return {
        **recurrence(heads, batch, tokens, dtype),
        "state": state_pool(heads, batch, layout),
        "state_indices": index(*torch.randperm(batch).tolist()),
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


def _commit(heads: Heads, batch: int, tokens: int, layout: str, branches: bool) -> dict[str, Any]:
    return {
        "state": state_pool(heads, batch, layout),
        **logs(heads, batch, tokens),
        **window_choice(batch, tokens, branches),
        "state_indices": index(*torch.randperm(batch).tolist()),
        **_options(layout),
    }


def _commit_layers(layers: int, heads: Heads, batch: int, tokens: int, layout: str, branches: bool) -> dict[str, Any]:
    calls = [_commit(heads, batch, tokens, layout, branches) for _ in range(layers)]
    lists = {name + "s": [call.pop(name) for call in calls] for name in ("state", "k_log", "d_log", "g_log")}
    return lists | calls[0]


def _commit_verify(heads: Heads, batch: int, before: int, tokens: int, dtype: torch.dtype, layout: str, branches: bool):
    return _commit(heads, batch, before, layout, branches) | _verify(heads, batch, tokens, dtype, layout, branches)


def _convolve(channels: int, width: int, window: int, lengths: list[int], dtype: torch.dtype, state_dtype: torch.dtype):
    return {
        **convolution(channels, width, 1, sum(lengths), dtype),
        "state": window_pool(channels, len(lengths) + 1, window, state_dtype),
        "state_indices": index(*(torch.randperm(len(lengths) + 1)[: len(lengths)]).tolist()),
        "cu_seqlens": cu_seqlens(*lengths),
        "has_initial_state": torch.arange(len(lengths)) % 2 == 0,
    }


def _conv_verify(channels: int, width: int, window: int, batch: int, tokens: int, dtype: torch.dtype, branches: bool):
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


def _gates(rows: int, HV: int, dtype: torch.dtype, **options: Any) -> dict[str, Any]:
    a, b = (torch.randn(2, rows, 2 * HV).to(dtype)[..., ::2] for _ in range(2))
    return {"a": a, "b": b, "A_log": torch.rand(HV).mul(16).log(), "dt_bias": torch.randn(HV).to(dtype), **options}


def _norm(rows: int, V: int, inputs: torch.dtype, **options: Any) -> dict[str, Any]:
    o, z = torch.randn(rows, 2, V), torch.randn(rows, 2, V + 1)[..., :V]
    return {"o": o.to(inputs), "z": z.to(inputs), "weight": torch.randn(V).to(inputs), **options}


def _l2norm(K: int, dtype: torch.dtype) -> dict[str, Any]:
    return {"q": torch.randn(3, 5, 2, K).to(dtype), "k": torch.randn(2, 7, K + 1)[..., :K].to(dtype), "eps": 1e-5}


# One line a call: the name starts with the op's. Small enough that every test can run all of them.
CALLS: dict[str, Callable[[], dict[str, Any]]] = {
    "gated_delta_rule f32 kv": lambda: _prompt(SMALL, [17, 0, 5], F32, "kv"),
    "gated_delta_rule bf16 vk": lambda: _prompt(SMALL, [9, 1], BF16, "vk", qk_l2norm=True),
    "gated_delta_rule zeros": lambda: recurrence(Heads(1, 3, 128, 64), 2, 12, F16, gates="slow"),
    "gated_delta_rule_ f32 vk": lambda: _in_place(SMALL, 3, 6, F32, "vk"),
    "gated_delta_rule_ bf16 step": lambda: _in_place(Heads(1, 2, 128, 128), 3, 1, BF16, "kv", qk_l2norm=True),
    "gated_delta_rule_verify chain": lambda: _verify(SMALL, 2, 9, BF16, "kv", False),
    "gated_delta_rule_verify tree": lambda: _verify(SMALL, 2, 9, F32, "vk", True),
    "gated_delta_rule_commit_ chain": lambda: _commit(SMALL, 3, 6, "kv", False),
    "gated_delta_rule_commit_ path": lambda: _commit(SMALL, 3, 6, "vk", True),
    "gated_delta_rule_commit_layers_ chain": lambda: _commit_layers(3, SMALL, 2, 4, "kv", False),
    "gated_delta_rule_commit_layers_ path": lambda: _commit_layers(2, SMALL, 2, 4, "vk", True),
    "gated_delta_rule_commit_verify_ chain": lambda: _commit_verify(SMALL, 2, 3, 5, F16, "kv", False),
    "gated_delta_rule_commit_verify_ tree": lambda: _commit_verify(SMALL, 2, 5, 4, BF16, "vk", True),
    "causal_conv1d f32": lambda: convolution(70, 4, 2, 40),
    "causal_conv1d bf16 none": lambda: convolution(130, 3, 2, 9, BF16, bias=False) | {"activation": "none"},
    "causal_conv1d_ bf16": lambda: _convolve(70, 4, 3, [9, 0, 1], BF16, BF16),
    "causal_conv1d_ long f32 window": lambda: _convolve(70, 2, 6, [4, 0, 8], F16, F32),
    "causal_conv1d_verify chain": lambda: _conv_verify(70, 4, 3, 2, 7, BF16, False),
    "causal_conv1d_verify tree": lambda: _conv_verify(70, 4, 5, 2, 9, F32, True),
    "causal_conv1d_commit_ bf16": lambda: _conv_commit(70, 3, 3, 6, BF16, BF16),
    "causal_conv1d_commit_layers_ f32 window": lambda: _conv_commit_layers(
        3, channels=70, window=3, batch=2, tokens=5, dtype=F16, state_dtype=F32
    ),
    "causal_conv1d_commit_layers_ wide": lambda: _conv_commit_layers(
        3, channels=700, window=4, batch=2, tokens=3, dtype=BF16, state_dtype=BF16
    ),
    "qk_l2norm f32": lambda: _l2norm(64, F32),
    "qk_l2norm many rows": lambda: {name: torch.randn(40, 5, 3, 64) for name in "qk"},
    "qk_l2norm bf16": lambda: _l2norm(256, BF16),
    "gdn_gates f32": lambda: _gates(5, 6, F32),
    "gdn_gates bf16": lambda: _gates(3, 70, BF16, allow_neg_eigval=True),
    "gdn_gates many rows": lambda: _gates(700, 32, F32),
    "gated_rms_norm many rows": lambda: _norm(300, 64, F32),
    "gated_rms_norm f32": lambda: _norm(5, 64, F32),
    "gated_rms_norm bf16": lambda: _norm(3, 256, BF16, activation="sigmoid", dtype=F16),
    "gdn_decode_layer_ bf16": lambda: layer(SMALL, 2, 3, slots=3) | {"state_indices": index(2, 0)},
    "gdn_decode_layer_ f32 vk": lambda: layer(SMALL, 2, 1, F32, slots=2, layout="vk") | _options("vk"),
    "gdn_verify_layer tree": lambda: (
        layer(SMALL, 2, 5, slots=2, layout="vk") | _options("vk") | {"parents": tree(2, 5)}
    ),
}  # fmt: skip


def call(name: str) -> Call:
    """A fresh call of CALLS."""
    return Call(name.split()[0], CALLS[name]())
