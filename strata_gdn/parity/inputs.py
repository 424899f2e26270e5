"""Random inputs for the ops, from torch's current seed.

The normal case is a strided one: q, k and v are views into one packed [B, T, q|k|v] buffer, gates and pools have gaps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = [F32, BF16, F16]


class Heads(NamedTuple):
    H: int = 1
    HV: int = 1
    K: int = 64
    V: int = 64

    @property
    def channels(self) -> int:
        return 2 * self.H * self.K + self.HV * self.V


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


def shifted(x: Tensor) -> Tensor:
    """The same values and strides, its first element on no boundary of a vector."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.new_zeros(last + 2).as_strided(x.shape, x.stride(), 1).copy_(x)


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
