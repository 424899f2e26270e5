"""Wrong calls of every op with the message that each gives, calls at the edge of what is allowed, and devices."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch
from calls import HV, H, K, N, S, T, V, W, bf16, call, f32, heads, i64, logs, memory, run, state, written
from calls import C as CHANNELS
from expecttest import assert_expected_inline
from torch import Tensor

from strata_gdn import ops, registry

SOURCE_FILE = re.compile(r"csrc|site-packages|\.(cpp|cu|h|inl|py)\b")


def _words(value) -> str:
    """An argument as the tables show it."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_words(item) for item in value) + "]"
    if not isinstance(value, Tensor):
        return repr(value)
    words = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if value.layout is torch.strided and not value.is_contiguous():
        words += f" strides {list(value.stride())}"
    return words


def _line(op: str, changes: dict) -> str:
    """Makes the call with what is changed, which must raise before anything is written."""
    arguments = {**call(op), **changes}
    states = written(op, arguments)
    before = memory(states)
    with pytest.raises((ValueError, RuntimeError)) as caught:
        run(op, arguments)
    assert memory(states) == before
    message = str(caught.value)
    assert message.startswith(f"{op}: ")
    assert not SOURCE_FILE.search(message)
    shown = ", ".join(f"{name}={_words(value)}" for name, value in changes.items())
    return f"{shown}\n  -> {type(caught.value).__name__}: {message}"


def _table(op: str, *wrong: dict) -> str:
    run(op, call(op))  # so that what is changed is what is wrong
    return "\n".join(_line(op, changes) for changes in wrong) + "\n"


def _expanded(*shape: int) -> Tensor:
    """One slot under every index."""
    return f32(1, *shape[1:]).expand(shape)


def _columns_apart(tensor: Tensor) -> Tensor:
    """The same, but the last dimension not contiguous."""
    return torch.stack((tensor, tensor), dim=-1)[..., 0]


def test_gated_delta_rule():
    assert_expected_inline(
        _table(
            "gated_delta_rule",
            {"q": bf16(T, H, K)},
            {"q": None},
            {"k": None},
            {"q": torch.zeros(N, T, H, K, dtype=torch.int64)},
            {"q": f32(N, T, H, K)},
            {"k": bf16(N, T, H, K).half()},
            {"v": torch.zeros(N, T, HV, V, dtype=torch.float64)},
            {"v": f32(N, T, HV, V).to(torch.float8_e8m0fnu)},
            {"k": bf16(N, T, H + 1, K)},
            {"k": bf16(N, T, H, 2 * K)},
            {"v": bf16(N, T + 1, HV, V)},
            {"v": bf16(N, T, 3, V)},
            {"v": bf16(N, T, 0, V)},
            {"q": bf16(N, T, 0, K), "k": bf16(N, T, 0, K)},
            {"q": bf16(N, T, H, 48), "k": bf16(N, T, H, 48)},
            {"v": bf16(N, T, HV, 96)},
            {"g": bf16(N, T, HV)},
            {"g": f32(N, T, H)},
            {"g": f32(N, T, HV, 1)},
            {"beta": torch.zeros(N, T, HV, dtype=torch.float64)},
            {"beta": f32(N, HV)},
            {"q": _columns_apart(bf16(N, T, H, K))},
            {"v": bf16(N, T, V, HV).mT},
            {"initial_state": bf16(N, HV, K, V)},
            {"initial_state": f32(N, HV, V, K)},
            {"initial_state": f32(1, HV, K, V)},
            {"initial_state": f32(N + 1, HV, K, V)},
            {"initial_state": f32(N, HV, V, K).mT},
            {"state_layout": "vk"},
            {"state_layout": "KV"},
            {"head_map": "interleaved"},
            {"precision": "bf16"},
            {"precision": "fp32"},
            {"precision": "fast"},
            {"scale": float("nan")},
            {"l2_eps": -1e-6},
            {"l2_eps": float("inf")},
            {"cu_seqlens": i64(0, 1, T)},
            {"cu_seqlens": f32(3)},
        ),
        """\
q=bfloat16 [3, 2, 64]
  -> ValueError: gated_delta_rule: q must be [B, T, H, K]; got [3, 2, 64]
q=None
  -> ValueError: gated_delta_rule: q must be a tensor; got None
k=None
  -> ValueError: gated_delta_rule: k must be a tensor; got None
q=int64 [2, 3, 2, 64]
  -> ValueError: gated_delta_rule: q must be float32, bfloat16 or float16; got int64
q=float32 [2, 3, 2, 64]
  -> ValueError: gated_delta_rule: k must be float32 like q; got bfloat16
k=float16 [2, 3, 2, 64]
  -> ValueError: gated_delta_rule: k must be bfloat16 like q; got float16
v=float64 [2, 3, 4, 128]
  -> ValueError: gated_delta_rule: v must be bfloat16 like q; got float64
v=float8_e8m0fnu [2, 3, 4, 128]
  -> ValueError: gated_delta_rule: v must be bfloat16 like q; got another dtype
k=bfloat16 [2, 3, 3, 64]
  -> ValueError: gated_delta_rule: k must be [B=2, T=3, H=2, K=64] like q [2, 3, 2, 64]; got [2, 3, 3, 64]
k=bfloat16 [2, 3, 2, 128]
  -> ValueError: gated_delta_rule: k must be [B=2, T=3, H=2, K=64] like q [2, 3, 2, 64]; got [2, 3, 2, 128]
v=bfloat16 [2, 4, 4, 128]
  -> ValueError: gated_delta_rule: v must be [B=2, T=3, HV, V] like q [2, 3, 2, 64]; got [2, 4, 4, 128]
v=bfloat16 [2, 3, 3, 128]
  -> ValueError: gated_delta_rule: v must have a multiple of the H=2 heads of q; got HV=3
v=bfloat16 [2, 3, 0, 128]
  -> ValueError: gated_delta_rule: v must have at least one head; got [2, 3, 0, 128]
q=bfloat16 [2, 3, 0, 64], k=bfloat16 [2, 3, 0, 64]
  -> ValueError: gated_delta_rule: q must have at least one head; got [2, 3, 0, 64]
q=bfloat16 [2, 3, 2, 48], k=bfloat16 [2, 3, 2, 48]
  -> ValueError: gated_delta_rule: K must be 64, 128 or 256; got q [2, 3, 2, 48]
v=bfloat16 [2, 3, 4, 96]
  -> ValueError: gated_delta_rule: V must be 64, 128 or 256; got v [2, 3, 4, 96]
g=bfloat16 [2, 3, 4]
  -> ValueError: gated_delta_rule: g must be float32; got bfloat16
g=float32 [2, 3, 2]
  -> ValueError: gated_delta_rule: g must be [B=2, T=3, HV=4] like v [2, 3, 4, 128]; got [2, 3, 2]
g=float32 [2, 3, 4, 1]
  -> ValueError: gated_delta_rule: g must be [B=2, T=3, HV=4] like v [2, 3, 4, 128]; got [2, 3, 4, 1]
beta=float64 [2, 3, 4]
  -> ValueError: gated_delta_rule: beta must be float32, bfloat16 or float16; got float64
beta=float32 [2, 4]
  -> ValueError: gated_delta_rule: beta must be [B=2, T=3, HV=4] like v [2, 3, 4, 128]; got [2, 4]
q=bfloat16 [2, 3, 2, 64] strides [768, 256, 128, 2]
  -> ValueError: gated_delta_rule: q must be contiguous in its last dimension; got strides [768, 256, 128, 2]
v=bfloat16 [2, 3, 4, 128] strides [1536, 512, 1, 4]
  -> ValueError: gated_delta_rule: v must be contiguous in its last dimension; got strides [1536, 512, 1, 4]
initial_state=bfloat16 [2, 4, 64, 128]
  -> ValueError: gated_delta_rule: initial_state must be float32; got bfloat16
initial_state=float32 [2, 4, 128, 64]
  -> ValueError: gated_delta_rule: initial_state must be [N=2, HV=4, K=64, V=128] like v [2, 3, 4, 128]; got [2, 4, 128, 64]
initial_state=float32 [1, 4, 64, 128]
  -> ValueError: gated_delta_rule: initial_state must be [N=2, HV=4, K=64, V=128] like v [2, 3, 4, 128]; got [1, 4, 64, 128]
initial_state=float32 [3, 4, 64, 128]
  -> ValueError: gated_delta_rule: initial_state must be [N=2, HV=4, K=64, V=128] like v [2, 3, 4, 128]; got [3, 4, 64, 128]
initial_state=float32 [2, 4, 64, 128] strides [32768, 8192, 1, 64]
  -> ValueError: gated_delta_rule: initial_state must be contiguous in its last dimension; got strides [32768, 8192, 1, 64]
state_layout='vk'
  -> ValueError: gated_delta_rule: initial_state must be [N=2, HV=4, V=128, K=64] like v [2, 3, 4, 128]; got [2, 4, 64, 128]
state_layout='KV'
  -> ValueError: gated_delta_rule: state_layout must be "kv" or "vk"; got "KV"
head_map='interleaved'
  -> ValueError: gated_delta_rule: head_map must be "grouped" or "tiled"; got "interleaved"
precision='bf16'
  -> ValueError: gated_delta_rule: precision must be "auto", "exact", "fp32" or "fast"; got "bf16"
precision='fp32'
  -> ValueError: gated_delta_rule: precision="fp32" is not available on cpu: available are "auto" and "exact"
precision='fast'
  -> ValueError: gated_delta_rule: precision="fast" is not available on cpu: available are "auto" and "exact"
scale=nan
  -> ValueError: gated_delta_rule: scale must be finite; got nan
l2_eps=-1e-06
  -> ValueError: gated_delta_rule: l2_eps must be finite and at least 0; got -1e-06
l2_eps=inf
  -> ValueError: gated_delta_rule: l2_eps must be finite and at least 0; got inf
cu_seqlens=int64 [3]
  -> ValueError: gated_delta_rule: cu_seqlens needs packed inputs with B=1; got q [2, 3, 2, 64]
cu_seqlens=float32 [3]
  -> ValueError: gated_delta_rule: cu_seqlens must be int32 or int64; got float32
""",
    )


def test_gated_delta_rule_():
    assert_expected_inline(
        _table(
            "gated_delta_rule_",
            {"state": None},
            {"state": bf16(S, HV, K, V)},
            {"state": f32(S, HV, K)},
            {"state": f32(S, HV + 1, K, V)},
            {"state": f32(S, HV, V, K)},
            {"state": _expanded(S, HV, K, V)},
            {"state": f32(S * HV * K * V).as_strided((S, HV, K, V), (HV * K * V, K * V // 2, V, 1))},
            {"state": _columns_apart(state())},
            {"state": f32(1, HV, K, V), "state_indices": None},
            {"state_indices": i64(2)},
            {"state_indices": i64([2, 0])},
            {"state_indices": f32(2)},
            {"state_indices": torch.tensor([2, 0], dtype=torch.int16)},
            {"state_indices": torch.tensor([True, False])},
            {"cu_seqlens": i64(0)[:0]},
            {"cu_seqlens": i64([0, 1, T])},
            {"cu_seqlens": f32(3)},
            {"cu_seqlens": i64(0, 1, 2, T)},
            heads(B=2),
            {"has_initial_state": i64(1, 0)},
            {"has_initial_state": torch.tensor([True])},
            {"has_initial_state": torch.tensor([[True, False]])},
            {"precision": "fast"},
        ),
        """\
state=None
  -> ValueError: gated_delta_rule_: state must be a tensor; got None
state=bfloat16 [3, 4, 64, 128]
  -> ValueError: gated_delta_rule_: state must be float32; got bfloat16
state=float32 [3, 4, 64]
  -> ValueError: gated_delta_rule_: state must be [S, HV=4, K=64, V=128] like v [1, 3, 4, 128]; got [3, 4, 64]
state=float32 [3, 5, 64, 128]
  -> ValueError: gated_delta_rule_: state must be [S, HV=4, K=64, V=128] like v [1, 3, 4, 128]; got [3, 5, 64, 128]
state=float32 [3, 4, 128, 64]
  -> ValueError: gated_delta_rule_: state must be [S, HV=4, K=64, V=128] like v [1, 3, 4, 128]; got [3, 4, 128, 64]
state=float32 [3, 4, 64, 128] strides [0, 8192, 128, 1]
  -> ValueError: gated_delta_rule_: state is written and must not overlap itself; got shape [3, 4, 64, 128], strides [0, 8192, 128, 1]
state=float32 [3, 4, 64, 128] strides [32768, 4096, 128, 1]
  -> ValueError: gated_delta_rule_: state is written and must not overlap itself; got shape [3, 4, 64, 128], strides [32768, 4096, 128, 1]
state=float32 [3, 4, 64, 128] strides [65536, 16384, 256, 2]
  -> ValueError: gated_delta_rule_: state must be contiguous in its last dimension; got strides [65536, 16384, 256, 2]
state=float32 [1, 4, 64, 128], state_indices=None
  -> ValueError: gated_delta_rule_: state must have at least N=2 slots without state_indices; got [1, 4, 64, 128]
state_indices=int64 [1]
  -> ValueError: gated_delta_rule_: state_indices must be [N=2] like cu_seqlens [3]; got [1]
state_indices=int64 [1, 2]
  -> ValueError: gated_delta_rule_: state_indices must be [N=2] like cu_seqlens [3]; got [1, 2]
state_indices=float32 [2]
  -> ValueError: gated_delta_rule_: state_indices must be int32 or int64; got float32
state_indices=int16 [2]
  -> ValueError: gated_delta_rule_: state_indices must be int32 or int64; got int16
state_indices=bool [2]
  -> ValueError: gated_delta_rule_: state_indices must be int32 or int64; got bool
cu_seqlens=int64 [0]
  -> ValueError: gated_delta_rule_: cu_seqlens must be [N+1] with at least one element; got [0]
cu_seqlens=int64 [1, 3]
  -> ValueError: gated_delta_rule_: cu_seqlens must be [N+1]; got [1, 3]
cu_seqlens=float32 [3]
  -> ValueError: gated_delta_rule_: cu_seqlens must be int32 or int64; got float32
cu_seqlens=int64 [4]
  -> ValueError: gated_delta_rule_: state_indices must be [N=3] like cu_seqlens [4]; got [2]
q=bfloat16 [2, 3, 2, 64], k=bfloat16 [2, 3, 2, 64], v=bfloat16 [2, 3, 4, 128], g=float32 [2, 3, 4], beta=float32 [2, 3, 4]
  -> ValueError: gated_delta_rule_: cu_seqlens needs packed inputs with B=1; got q [2, 3, 2, 64]
has_initial_state=int64 [2]
  -> ValueError: gated_delta_rule_: has_initial_state must be bool; got int64
has_initial_state=bool [1]
  -> ValueError: gated_delta_rule_: has_initial_state must be [N=2] like cu_seqlens [3]; got [1]
has_initial_state=bool [1, 2]
  -> ValueError: gated_delta_rule_: has_initial_state must be [N=2] like cu_seqlens [3]; got [1, 2]
precision='fast'
  -> ValueError: gated_delta_rule_: precision="fast" is not available on cpu: available are "auto" and "exact"
""",
    )


def test_gated_delta_rule_verify():
    assert_expected_inline(
        _table(
            "gated_delta_rule_verify",
            {**heads(tokens=129), "parents": None},
            {"q": bf16(N, T, H, K).float()},
            {"state": f32(S, HV, K, V).double()},
            {"state": f32(1, HV, K, V), "state_indices": None},
            {"state_indices": i64(2, 0, 1)},
            {"parents": i64(-1, 0, 0)},
            {"parents": i64([-1, 0], [-1, 0])},
            {"parents": f32(N, T)},
            {"qk_l2norm": True, "l2_eps": float("nan")},
            {"state_layout": "vk"},
        ),
        """\
q=bfloat16 [2, 129, 2, 64], k=bfloat16 [2, 129, 2, 64], v=bfloat16 [2, 129, 4, 128], g=float32 [2, 129, 4], beta=float32 [2, 129, 4], parents=None
  -> ValueError: gated_delta_rule_verify: q must have at most T=128 draft tokens a sequence; got [2, 129, 2, 64]
q=float32 [2, 3, 2, 64]
  -> ValueError: gated_delta_rule_verify: k must be float32 like q; got bfloat16
state=float64 [3, 4, 64, 128]
  -> ValueError: gated_delta_rule_verify: state must be float32; got float64
state=float32 [1, 4, 64, 128], state_indices=None
  -> ValueError: gated_delta_rule_verify: state must have at least N=2 slots without state_indices; got [1, 4, 64, 128]
state_indices=int64 [3]
  -> ValueError: gated_delta_rule_verify: state_indices must be [N=2] like q [2, 3, 2, 64]; got [3]
parents=int64 [3]
  -> ValueError: gated_delta_rule_verify: parents must be [N=2, T=3] like q [2, 3, 2, 64]; got [3]
parents=int64 [2, 2]
  -> ValueError: gated_delta_rule_verify: parents must be [N=2, T=3] like q [2, 3, 2, 64]; got [2, 2]
parents=float32 [2, 3]
  -> ValueError: gated_delta_rule_verify: parents must be int32 or int64; got float32
qk_l2norm=True, l2_eps=nan
  -> ValueError: gated_delta_rule_verify: l2_eps must be finite and at least 0; got nan
state_layout='vk'
  -> ValueError: gated_delta_rule_verify: state must be [S, HV=4, V=128, K=64] like v [2, 3, 4, 128]; got [3, 4, 64, 128]
""",
    )


def test_gated_delta_rule_commit_():
    assert_expected_inline(
        _table(
            "gated_delta_rule_commit_",
            {"state": bf16(S, HV, K, V)},
            {"state": f32(S, HV, V, K)},
            {"state": _expanded(S, HV, K, V)},
            {"state": f32(1, HV, K, V), "state_indices": None},
            {"k_log": bf16(N, T, H, K)},
            {"k_log": f32(N, H, K)},
            {"k_log": f32(N, T, 3, K)},
            {"k_log": f32(N, T, H, 32)},
            {"k_log": None},
            {"d_log": f32(N, T, HV, V, 1)},
            {"d_log": f32(N, T + 1, HV, V)},
            {"d_log": f32(N, T, HV, 2 * V)},
            {"d_log": f32(N, T, V, HV).mT},
            {"g_log": f32(N, T, H)},
            {"g_log": bf16(N, T, HV)},
            {"accepted": i64(2)},
            {"accepted": f32(2)},
            {"accepted": i64([2], [0])},
            {"path": i64(0, 1, 2)},
            {"path": i64([0, 1], [0, 1])},
            {"path": f32(N, T)},
            {"state_indices": i64(2)},
            {"head_map": ""},
            {"state_layout": "vk"},
        ),
        """\
state=bfloat16 [3, 4, 64, 128]
  -> ValueError: gated_delta_rule_commit_: state must be float32; got bfloat16
state=float32 [3, 4, 128, 64]
  -> ValueError: gated_delta_rule_commit_: state must be [S, HV=4, K=64, V=128] like d_log [2, 3, 4, 128]; got [3, 4, 128, 64]
state=float32 [3, 4, 64, 128] strides [0, 8192, 128, 1]
  -> ValueError: gated_delta_rule_commit_: state is written and must not overlap itself; got shape [3, 4, 64, 128], strides [0, 8192, 128, 1]
state=float32 [1, 4, 64, 128], state_indices=None
  -> ValueError: gated_delta_rule_commit_: state must have at least N=2 slots without state_indices; got [1, 4, 64, 128]
k_log=bfloat16 [2, 3, 2, 64]
  -> ValueError: gated_delta_rule_commit_: k_log must be float32; got bfloat16
k_log=float32 [2, 2, 64]
  -> ValueError: gated_delta_rule_commit_: k_log must be [N, T, H, K]; got [2, 2, 64]
k_log=float32 [2, 3, 3, 64]
  -> ValueError: gated_delta_rule_commit_: d_log must have a multiple of the H=3 heads of k_log; got HV=4
k_log=float32 [2, 3, 2, 32]
  -> ValueError: gated_delta_rule_commit_: K must be 64, 128 or 256; got k_log [2, 3, 2, 32]
k_log=None
  -> ValueError: gated_delta_rule_commit_: k_log must be a tensor; got None
d_log=float32 [2, 3, 4, 128, 1]
  -> ValueError: gated_delta_rule_commit_: d_log must be [N=2, T=3, HV, V] like k_log [2, 3, 2, 64]; got [2, 3, 4, 128, 1]
d_log=float32 [2, 4, 4, 128]
  -> ValueError: gated_delta_rule_commit_: d_log must be [N=2, T=3, HV, V] like k_log [2, 3, 2, 64]; got [2, 4, 4, 128]
d_log=float32 [2, 3, 4, 256]
  -> ValueError: gated_delta_rule_commit_: state must be [S, HV=4, K=64, V=256] like d_log [2, 3, 4, 256]; got [3, 4, 64, 128]
d_log=float32 [2, 3, 4, 128] strides [1536, 512, 1, 4]
  -> ValueError: gated_delta_rule_commit_: d_log must be contiguous in its last dimension; got strides [1536, 512, 1, 4]
g_log=float32 [2, 3, 2]
  -> ValueError: gated_delta_rule_commit_: g_log must be [N=2, T=3, HV=4] like d_log [2, 3, 4, 128]; got [2, 3, 2]
g_log=bfloat16 [2, 3, 4]
  -> ValueError: gated_delta_rule_commit_: g_log must be float32; got bfloat16
accepted=int64 [1]
  -> ValueError: gated_delta_rule_commit_: accepted must be [N=2] like k_log [2, 3, 2, 64]; got [1]
accepted=float32 [2]
  -> ValueError: gated_delta_rule_commit_: accepted must be int32 or int64; got float32
accepted=int64 [2, 1]
  -> ValueError: gated_delta_rule_commit_: accepted must be [N=2] like k_log [2, 3, 2, 64]; got [2, 1]
path=int64 [3]
  -> ValueError: gated_delta_rule_commit_: path must be [N=2, T=3] like k_log [2, 3, 2, 64]; got [3]
path=int64 [2, 2]
  -> ValueError: gated_delta_rule_commit_: path must be [N=2, T=3] like k_log [2, 3, 2, 64]; got [2, 2]
path=float32 [2, 3]
  -> ValueError: gated_delta_rule_commit_: path must be int32 or int64; got float32
state_indices=int64 [1]
  -> ValueError: gated_delta_rule_commit_: state_indices must be [N=2] like k_log [2, 3, 2, 64]; got [1]
head_map=''
  -> ValueError: gated_delta_rule_commit_: head_map must be "grouped" or "tiled"; got ""
state_layout='vk'
  -> ValueError: gated_delta_rule_commit_: state must be [S, HV=4, V=128, K=64] like d_log [2, 3, 4, 128]; got [3, 4, 64, 128]
""",
    )


def test_gated_delta_rule_commit_layers_():
    same = state()
    buffer = f32(S + 1, HV, K, V)
    log = logs()
    assert_expected_inline(
        _table(
            "gated_delta_rule_commit_layers_",
            {"states": [state()]},
            {"k_logs": [log["k_log"]]},
            {"d_logs": [log["d_log"]] * 3},
            {"g_logs": []},
            {"states": []},
            {"states": [same, same]},
            {"states": [buffer[:S], buffer[1:]]},
            {"states": [state(), _expanded(S, HV, K, V)]},
            {"states": [state(), state()[:2]]},
            {"states": [state(), f32(S, HV, V, K)]},
            {"states": [state(), state().half()]},
            {"k_logs": [log["k_log"], f32(N, T, 4, K)]},
            {"d_logs": [log["d_log"], f32(N, T, HV, 64)]},
            {"d_logs": [log["d_log"], log["d_log"].bfloat16()]},
            {"g_logs": [log["g_log"], f32(N, T)]},
            {"accepted": i64(1, 1, 1)},
            {"state_indices": i64(2, 0, 1)},
            {"path": i64(0, 1)},
        ),
        """\
states=[float32 [3, 4, 64, 128]]
  -> ValueError: gated_delta_rule_commit_layers_: k_logs must have as many entries as states (1); got 2
k_logs=[float32 [2, 3, 2, 64]]
  -> ValueError: gated_delta_rule_commit_layers_: k_logs must have as many entries as states (2); got 1
d_logs=[float32 [2, 3, 4, 128], float32 [2, 3, 4, 128], float32 [2, 3, 4, 128]]
  -> ValueError: gated_delta_rule_commit_layers_: d_logs must have as many entries as states (2); got 3
g_logs=[]
  -> ValueError: gated_delta_rule_commit_layers_: g_logs must have as many entries as states (2); got 0
states=[]
  -> ValueError: gated_delta_rule_commit_layers_: k_logs must have as many entries as states (0); got 2
states=[float32 [3, 4, 64, 128], float32 [3, 4, 64, 128]]
  -> ValueError: gated_delta_rule_commit_layers_: states[1] is written and must not share memory with states[0]
states=[float32 [3, 4, 64, 128], float32 [3, 4, 64, 128]]
  -> ValueError: gated_delta_rule_commit_layers_: states[1] is written and must not share memory with states[0]
states=[float32 [3, 4, 64, 128], float32 [3, 4, 64, 128] strides [0, 8192, 128, 1]]
  -> ValueError: gated_delta_rule_commit_layers_: states[1] is written and must not overlap itself; got shape [3, 4, 64, 128], strides [0, 8192, 128, 1]
states=[float32 [3, 4, 64, 128], float32 [2, 4, 64, 128]]
  -> ValueError: gated_delta_rule_commit_layers_: states[1] must have the S=3 slots of states[0]; got [2, 4, 64, 128]
states=[float32 [3, 4, 64, 128], float32 [3, 4, 128, 64]]
  -> ValueError: gated_delta_rule_commit_layers_: states[1] must be [S, HV=4, K=64, V=128] like d_logs[1] [2, 3, 4, 128]; got [3, 4, 128, 64]
states=[float32 [3, 4, 64, 128], float16 [3, 4, 64, 128]]
  -> ValueError: gated_delta_rule_commit_layers_: states[1] must be float32; got float16
k_logs=[float32 [2, 3, 2, 64], float32 [2, 3, 4, 64]]
  -> ValueError: gated_delta_rule_commit_layers_: k_logs[1] must have the shape [2, 3, 2, 64] of k_logs[0]; got [2, 3, 4, 64]
d_logs=[float32 [2, 3, 4, 128], float32 [2, 3, 4, 64]]
  -> ValueError: gated_delta_rule_commit_layers_: d_logs[1] must have the shape [2, 3, 4, 128] of d_logs[0]; got [2, 3, 4, 64]
d_logs=[float32 [2, 3, 4, 128], bfloat16 [2, 3, 4, 128]]
  -> ValueError: gated_delta_rule_commit_layers_: d_logs[1] must be float32; got bfloat16
g_logs=[float32 [2, 3, 4], float32 [2, 3]]
  -> ValueError: gated_delta_rule_commit_layers_: g_logs[1] must be [N=2, T=3, HV=4] like d_logs[1] [2, 3, 4, 128]; got [2, 3]
accepted=int64 [3]
  -> ValueError: gated_delta_rule_commit_layers_: accepted must be [N=2] like k_logs[0] [2, 3, 2, 64]; got [3]
state_indices=int64 [3]
  -> ValueError: gated_delta_rule_commit_layers_: state_indices must be [N=2] like k_logs[0] [2, 3, 2, 64]; got [3]
path=int64 [2]
  -> ValueError: gated_delta_rule_commit_layers_: path must be [N=2, T=3] like k_logs[0] [2, 3, 2, 64]; got [2]
""",
    )


def test_gated_delta_rule_commit_verify_():
    assert_expected_inline(
        _table(
            "gated_delta_rule_commit_verify_",
            {**heads(tokens=129), "parents": None},
            {"v": bf16(N, T, HV, 64)},
            {"state": _expanded(S, HV, K, V)},
            {"k_log": f32(3, T, H, K), "d_log": f32(3, T, HV, V), "g_log": f32(3, T, HV), "accepted": i64(1, 1, 1)},
            {"k_log": f32(N, T, 1, K)},
            {"k_log": f32(N, T, H, 128)},
            {"d_log": f32(N, T, 2 * HV, V)},
            {"accepted": i64(2, 0).double()},
            {"path": i64([0, 1], [0, 1])},
            {"parents": i64([0], [0])},
            {"state_indices": f32(2)},
        ),
        """\
q=bfloat16 [2, 129, 2, 64], k=bfloat16 [2, 129, 2, 64], v=bfloat16 [2, 129, 4, 128], g=float32 [2, 129, 4], beta=float32 [2, 129, 4], parents=None
  -> ValueError: gated_delta_rule_commit_verify_: q must have at most T=128 draft tokens a sequence; got [2, 129, 2, 64]
v=bfloat16 [2, 3, 4, 64]
  -> ValueError: gated_delta_rule_commit_verify_: state must be [S, HV=4, K=64, V=64] like v [2, 3, 4, 64]; got [3, 4, 64, 128]
state=float32 [3, 4, 64, 128] strides [0, 8192, 128, 1]
  -> ValueError: gated_delta_rule_commit_verify_: state is written and must not overlap itself; got shape [3, 4, 64, 128], strides [0, 8192, 128, 1]
k_log=float32 [3, 3, 2, 64], d_log=float32 [3, 3, 4, 128], g_log=float32 [3, 3, 4], accepted=int64 [3]
  -> ValueError: gated_delta_rule_commit_verify_: k_log must be [N=2, T, H=2, K=64] like q [2, 3, 2, 64]; got [3, 3, 2, 64]
k_log=float32 [2, 3, 1, 64]
  -> ValueError: gated_delta_rule_commit_verify_: k_log must be [N=2, T, H=2, K=64] like q [2, 3, 2, 64]; got [2, 3, 1, 64]
k_log=float32 [2, 3, 2, 128]
  -> ValueError: gated_delta_rule_commit_verify_: k_log must be [N=2, T, H=2, K=64] like q [2, 3, 2, 64]; got [2, 3, 2, 128]
d_log=float32 [2, 3, 8, 128]
  -> ValueError: gated_delta_rule_commit_verify_: d_log must be [N=2, T, HV=4, V=128] like v [2, 3, 4, 128]; got [2, 3, 8, 128]
accepted=float64 [2]
  -> ValueError: gated_delta_rule_commit_verify_: accepted must be int32 or int64; got float64
path=int64 [2, 2]
  -> ValueError: gated_delta_rule_commit_verify_: path must be [N=2, T=3] like k_log [2, 3, 2, 64]; got [2, 2]
parents=int64 [2, 1]
  -> ValueError: gated_delta_rule_commit_verify_: parents must be [N=2, T=3] like q [2, 3, 2, 64]; got [2, 1]
state_indices=float32 [2]
  -> ValueError: gated_delta_rule_commit_verify_: state_indices must be int32 or int64; got float32
""",
    )


def test_causal_conv1d():
    assert_expected_inline(
        _table(
            "causal_conv1d",
            {"x": bf16(T, CHANNELS)},
            {"x": torch.zeros(N, T, CHANNELS, dtype=torch.int32)},
            {"x": bf16(N, CHANNELS, T).mT},
            {"weight": f32(CHANNELS, 1, W)},
            {"weight": f32(CHANNELS + 1, W)},
            {"weight": f32(CHANNELS, 0)},
            {"weight": f32(W, CHANNELS).mT},
            {"weight": f32(CHANNELS, W).double()},
            {"bias": f32(W)},
            {"bias": i64(*range(CHANNELS))},
            {"bias": _columns_apart(f32(CHANNELS))},
            {"initial_state": f32(N, CHANNELS, W - 2)},
            {"initial_state": f32(N + 1, CHANNELS, W)},
            {"initial_state": f32(N, W, CHANNELS)},
            {"initial_state": f32(N, CHANNELS, W).half()},
            {"initial_state": f32(N, W, CHANNELS).mT},
            {"cu_seqlens": i64(0, 1, T)},
            {"activation": "swish"},
            {"activation": "sigmoid"},
        ),
        """\
x=bfloat16 [3, 768]
  -> ValueError: causal_conv1d: x must be [B, T, C]; got [3, 768]
x=int32 [2, 3, 768]
  -> ValueError: causal_conv1d: x must be float32, bfloat16 or float16; got int32
x=bfloat16 [2, 3, 768] strides [2304, 1, 3]
  -> ValueError: causal_conv1d: x must be contiguous in its last dimension; got strides [2304, 1, 3]
weight=float32 [768, 1, 4]
  -> ValueError: causal_conv1d: weight must be [C=768, W] like x [2, 3, 768]; got [768, 1, 4]
weight=float32 [769, 4]
  -> ValueError: causal_conv1d: weight must be [C=768, W] like x [2, 3, 768]; got [769, 4]
weight=float32 [768, 0]
  -> ValueError: causal_conv1d: weight must have at least one tap; got [768, 0]
weight=float32 [768, 4] strides [1, 768]
  -> ValueError: causal_conv1d: weight must be contiguous in its last dimension; got strides [1, 768]
weight=float64 [768, 4]
  -> ValueError: causal_conv1d: weight must be float32, bfloat16 or float16; got float64
bias=float32 [4]
  -> ValueError: causal_conv1d: bias must be [C=768] like x [2, 3, 768]; got [4]
bias=int64 [768]
  -> ValueError: causal_conv1d: bias must be float32, bfloat16 or float16; got int64
bias=float32 [768] strides [2]
  -> ValueError: causal_conv1d: bias must be contiguous in its last dimension; got strides [2]
initial_state=float32 [2, 768, 2]
  -> ValueError: causal_conv1d: initial_state must be [N, C, L] with L at least W-1=3; got [2, 768, 2]
initial_state=float32 [3, 768, 4]
  -> ValueError: causal_conv1d: initial_state must be [N=2, C=768, L] like x [2, 3, 768]; got [3, 768, 4]
initial_state=float32 [2, 4, 768]
  -> ValueError: causal_conv1d: initial_state must be [N=2, C=768, L] like x [2, 3, 768]; got [2, 4, 768]
initial_state=float16 [2, 768, 4]
  -> ValueError: causal_conv1d: initial_state must be bfloat16 like x, or float32; got float16
initial_state=float32 [2, 768, 4] strides [3072, 1, 768]
  -> ValueError: causal_conv1d: initial_state must be contiguous in its last dimension; got strides [3072, 1, 768]
cu_seqlens=int64 [3]
  -> ValueError: causal_conv1d: cu_seqlens needs packed inputs with B=1; got x [2, 3, 768]
activation='swish'
  -> ValueError: causal_conv1d: activation must be "silu" or "none"; got "swish"
activation='sigmoid'
  -> ValueError: causal_conv1d: activation must be "silu" or "none"; got "sigmoid"
""",
    )


def test_causal_conv1d_():
    assert_expected_inline(
        _table(
            "causal_conv1d_",
            {"state": bf16(S, CHANNELS, W - 2)},
            {"state": bf16(S, CHANNELS)},
            {"state": bf16(S, CHANNELS - 1, W)},
            {"state": bf16(S, CHANNELS, W).half()},
            {"state": bf16(1, CHANNELS, W).expand(S, CHANNELS, W)},
            {"state": bf16(1, CHANNELS, W), "state_indices": None},
            {"state_indices": i64(2, 0, 1)},
            {"cu_seqlens": i64(0)[:0]},
            {"x": bf16(N, T, CHANNELS)},
            {"has_initial_state": f32(2)},
        ),
        """\
state=bfloat16 [3, 768, 2]
  -> ValueError: causal_conv1d_: state must be [S, C, L] with L at least W-1=3; got [3, 768, 2]
state=bfloat16 [3, 768]
  -> ValueError: causal_conv1d_: state must be [S, C=768, L] like x [1, 3, 768]; got [3, 768]
state=bfloat16 [3, 767, 4]
  -> ValueError: causal_conv1d_: state must be [S, C=768, L] like x [1, 3, 768]; got [3, 767, 4]
state=float16 [3, 768, 4]
  -> ValueError: causal_conv1d_: state must be bfloat16 like x, or float32; got float16
state=bfloat16 [3, 768, 4] strides [0, 4, 1]
  -> ValueError: causal_conv1d_: state is written and must not overlap itself; got shape [3, 768, 4], strides [0, 4, 1]
state=bfloat16 [1, 768, 4], state_indices=None
  -> ValueError: causal_conv1d_: state must have at least N=2 slots without state_indices; got [1, 768, 4]
state_indices=int64 [3]
  -> ValueError: causal_conv1d_: state_indices must be [N=2] like cu_seqlens [3]; got [3]
cu_seqlens=int64 [0]
  -> ValueError: causal_conv1d_: cu_seqlens must be [N+1] with at least one element; got [0]
x=bfloat16 [2, 3, 768]
  -> ValueError: causal_conv1d_: cu_seqlens needs packed inputs with B=1; got x [2, 3, 768]
has_initial_state=float32 [2]
  -> ValueError: causal_conv1d_: has_initial_state must be bool; got float32
""",
    )


def test_causal_conv1d_verify():
    assert_expected_inline(
        _table(
            "causal_conv1d_verify",
            {"x": bf16(N, 129, CHANNELS), "parents": None},
            {"state": bf16(S, CHANNELS, 2)},
            {"parents": i64(-1, 0, 0)},
            {"parents": f32(N, T)},
            {"state_indices": i64(2)},
        ),
        """\
x=bfloat16 [2, 129, 768], parents=None
  -> ValueError: causal_conv1d_verify: x must have at most T=128 draft tokens a sequence; got [2, 129, 768]
state=bfloat16 [3, 768, 2]
  -> ValueError: causal_conv1d_verify: state must be [S, C, L] with L at least W-1=3; got [3, 768, 2]
parents=int64 [3]
  -> ValueError: causal_conv1d_verify: parents must be [N=2, T=3] like x [2, 3, 768]; got [3]
parents=float32 [2, 3]
  -> ValueError: causal_conv1d_verify: parents must be int32 or int64; got float32
state_indices=int64 [1]
  -> ValueError: causal_conv1d_verify: state_indices must be [N=2] like x [2, 3, 768]; got [1]
""",
    )


def test_causal_conv1d_commit_():
    assert_expected_inline(
        _table(
            "causal_conv1d_commit_",
            {"state": bf16(S, CHANNELS)},
            {"state": bf16(S, CHANNELS + 1, W)},
            {"state": bf16(S, CHANNELS, W).half()},
            {"state": bf16(S, W, CHANNELS).mT},
            {"state": bf16(1, CHANNELS, W).expand(S, CHANNELS, W)},
            {"state": bf16(1, CHANNELS, W), "state_indices": None},
            {"x": bf16(T, CHANNELS)},
            {"x": i64([[1]])},
            {"accepted": i64(2)},
            {"accepted": torch.tensor([True, False])},
            {"path": i64(0, 1, 2)},
        ),
        """\
state=bfloat16 [3, 768]
  -> ValueError: causal_conv1d_commit_: state must be [S, C=768, L] like x [2, 3, 768]; got [3, 768]
state=bfloat16 [3, 769, 4]
  -> ValueError: causal_conv1d_commit_: state must be [S, C=768, L] like x [2, 3, 768]; got [3, 769, 4]
state=float16 [3, 768, 4]
  -> ValueError: causal_conv1d_commit_: state must be bfloat16 like x, or float32; got float16
state=bfloat16 [3, 768, 4] strides [3072, 1, 768]
  -> ValueError: causal_conv1d_commit_: state must be contiguous in its last dimension; got strides [3072, 1, 768]
state=bfloat16 [3, 768, 4] strides [0, 4, 1]
  -> ValueError: causal_conv1d_commit_: state is written and must not overlap itself; got shape [3, 768, 4], strides [0, 4, 1]
state=bfloat16 [1, 768, 4], state_indices=None
  -> ValueError: causal_conv1d_commit_: state must have at least N=2 slots without state_indices; got [1, 768, 4]
x=bfloat16 [3, 768]
  -> ValueError: causal_conv1d_commit_: x must be [N, T, C]; got [3, 768]
x=int64 [1, 1, 1]
  -> ValueError: causal_conv1d_commit_: x must be float32, bfloat16 or float16; got int64
accepted=int64 [1]
  -> ValueError: causal_conv1d_commit_: accepted must be [N=2] like x [2, 3, 768]; got [1]
accepted=bool [2]
  -> ValueError: causal_conv1d_commit_: accepted must be int32 or int64; got bool
path=int64 [3]
  -> ValueError: causal_conv1d_commit_: path must be [N=2, T=3] like x [2, 3, 768]; got [3]
""",
    )


def test_causal_conv1d_commit_layers_():
    same = bf16(S, CHANNELS, W)
    other = bf16(S, CHANNELS, W)
    x = bf16(N, T, CHANNELS)
    assert_expected_inline(
        _table(
            "causal_conv1d_commit_layers_",
            {"states": [same]},
            {"xs": [x, x, x]},
            {"states": [same, same]},
            {"states": [same, bf16(S, CHANNELS, W + 1)]},
            {"states": [same, other.float()]},
            {"states": [same, other[:2]]},
            {"xs": [x, bf16(N, T + 1, CHANNELS)]},
            {"xs": [x, x.half()]},
            {"accepted": f32(2)},
            {"state_indices": i64(2)},
        ),
        """\
states=[bfloat16 [3, 768, 4]]
  -> ValueError: causal_conv1d_commit_layers_: xs must have as many entries as states (1); got 2
xs=[bfloat16 [2, 3, 768], bfloat16 [2, 3, 768], bfloat16 [2, 3, 768]]
  -> ValueError: causal_conv1d_commit_layers_: xs must have as many entries as states (2); got 3
states=[bfloat16 [3, 768, 4], bfloat16 [3, 768, 4]]
  -> ValueError: causal_conv1d_commit_layers_: states[1] is written and must not share memory with states[0]
states=[bfloat16 [3, 768, 4], bfloat16 [3, 768, 5]]
  -> ValueError: causal_conv1d_commit_layers_: states[1] must have the shape [3, 768, 4] of states[0]; got [3, 768, 5]
states=[bfloat16 [3, 768, 4], float32 [3, 768, 4]]
  -> ValueError: causal_conv1d_commit_layers_: states[1] must be bfloat16 like states[0]; got float32
states=[bfloat16 [3, 768, 4], bfloat16 [2, 768, 4]]
  -> ValueError: causal_conv1d_commit_layers_: states[1] must have the shape [3, 768, 4] of states[0]; got [2, 768, 4]
xs=[bfloat16 [2, 3, 768], bfloat16 [2, 4, 768]]
  -> ValueError: causal_conv1d_commit_layers_: xs[1] must have the shape [2, 3, 768] of xs[0]; got [2, 4, 768]
xs=[bfloat16 [2, 3, 768], float16 [2, 3, 768]]
  -> ValueError: causal_conv1d_commit_layers_: states[1] must be float16 like xs[1], or float32; got bfloat16
accepted=float32 [2]
  -> ValueError: causal_conv1d_commit_layers_: accepted must be int32 or int64; got float32
state_indices=int64 [1]
  -> ValueError: causal_conv1d_commit_layers_: state_indices must be [N=2] like xs[0] [2, 3, 768]; got [1]
""",
    )


def test_qk_l2norm():
    assert_expected_inline(
        _table(
            "qk_l2norm",
            {"q": bf16(N, T, H, 48)},
            {"k": f32(T, H, 512)},
            {"q": f32()},
            {"k": f32(1, N, T, H, K)},
            {"k": i64(*range(K))},
            {"q": _columns_apart(f32(N, T, H, K))},
            {"eps": -1.0},
        ),
        """\
q=bfloat16 [2, 3, 2, 48]
  -> ValueError: qk_l2norm: K must be 64, 128 or 256; got q [2, 3, 2, 48]
k=float32 [3, 2, 512]
  -> ValueError: qk_l2norm: K must be 64, 128 or 256; got k [3, 2, 512]
q=float32 []
  -> ValueError: qk_l2norm: q must be [..., K] with 1 to 4 dimensions; got []
k=float32 [1, 2, 3, 2, 64]
  -> ValueError: qk_l2norm: k must be [..., K] with 1 to 4 dimensions; got [1, 2, 3, 2, 64]
k=int64 [64]
  -> ValueError: qk_l2norm: k must be float32, bfloat16 or float16; got int64
q=float32 [2, 3, 2, 64] strides [768, 256, 128, 2]
  -> ValueError: qk_l2norm: q must be contiguous in its last dimension; got strides [768, 256, 128, 2]
eps=-1.0
  -> ValueError: qk_l2norm: eps must be finite and at least 0; got -1
""",
    )


def test_gdn_gates():
    assert_expected_inline(
        _table(
            "gdn_gates",
            {"a": f32(1, 1, N, T, HV)},
            {"a": f32()},
            {"a": f32(N, T, HV).double()},
            {"b": f32(N, T, HV + 1)},
            {"b": f32(T, HV)},
            {"A_log": f32(H)},
            {"A_log": _columns_apart(f32(HV))},
            {"dt_bias": f32(1, HV)},
            {"dt_bias": i64(0, 0, 0, 0)},
        ),
        """\
a=float32 [1, 1, 2, 3, 4]
  -> ValueError: gdn_gates: a must be [..., HV] with 1 to 4 dimensions; got [1, 1, 2, 3, 4]
a=float32 []
  -> ValueError: gdn_gates: a must be [..., HV] with 1 to 4 dimensions; got []
a=float64 [2, 3, 4]
  -> ValueError: gdn_gates: a must be float32, bfloat16 or float16; got float64
b=float32 [2, 3, 5]
  -> ValueError: gdn_gates: b must have the shape [2, 3, 4] of a; got [2, 3, 5]
b=float32 [3, 4]
  -> ValueError: gdn_gates: b must have the shape [2, 3, 4] of a; got [3, 4]
A_log=float32 [2]
  -> ValueError: gdn_gates: A_log must be [HV=4] like a [2, 3, 4]; got [2]
A_log=float32 [4] strides [2]
  -> ValueError: gdn_gates: A_log must be contiguous in its last dimension; got strides [2]
dt_bias=float32 [1, 4]
  -> ValueError: gdn_gates: dt_bias must be [HV=4] like a [2, 3, 4]; got [1, 4]
dt_bias=int64 [4]
  -> ValueError: gdn_gates: dt_bias must be float32, bfloat16 or float16; got int64
""",
    )


def test_gated_rms_norm():
    assert_expected_inline(
        _table(
            "gated_rms_norm",
            {"o": bf16(N, T, HV, 96)},
            {"o": f32()},
            {"z": f32(N, T, HV * V)},
            {"z": f32(N, T, V, HV).mT},
            {"z": f32(N, T, HV, V).double()},
            {"weight": f32(HV, V)},
            {"weight": f32(64)},
            {"weight": f32(1).expand(V)},
            {"activation": "none"},
            {"dtype": torch.float64},
            {"dtype": torch.int32},
            {"eps": float("nan")},
        ),
        """\
o=bfloat16 [2, 3, 4, 96]
  -> ValueError: gated_rms_norm: z must have the shape [2, 3, 4, 96] of o; got [2, 3, 4, 128]
o=float32 []
  -> ValueError: gated_rms_norm: o must be [..., V] with 1 to 4 dimensions; got []
z=float32 [2, 3, 512]
  -> ValueError: gated_rms_norm: z must have the shape [2, 3, 4, 128] of o; got [2, 3, 512]
z=float32 [2, 3, 4, 128] strides [1536, 512, 1, 4]
  -> ValueError: gated_rms_norm: z must be contiguous in its last dimension; got strides [1536, 512, 1, 4]
z=float64 [2, 3, 4, 128]
  -> ValueError: gated_rms_norm: z must be float32, bfloat16 or float16; got float64
weight=float32 [4, 128]
  -> ValueError: gated_rms_norm: weight must be [V=128] like o [2, 3, 4, 128]; got [4, 128]
weight=float32 [64]
  -> ValueError: gated_rms_norm: weight must be [V=128] like o [2, 3, 4, 128]; got [64]
weight=float32 [128] strides [0]
  -> ValueError: gated_rms_norm: weight must be contiguous in its last dimension; got strides [0]
activation='none'
  -> ValueError: gated_rms_norm: activation must be "silu" or "sigmoid"; got "none"
dtype=torch.float64
  -> ValueError: gated_rms_norm: dtype must be float32, bfloat16 or float16; got float64
dtype=torch.int32
  -> ValueError: gated_rms_norm: dtype must be float32, bfloat16 or float16; got int32
eps=nan
  -> ValueError: gated_rms_norm: eps must be finite and at least 0; got nan
""",
    )


def test_gdn_decode_layer_():
    pool = f32(S, HV * K * V + CHANNELS * (W - 1))
    states = pool[:, : HV * K * V].view(S, HV, K, V)
    shared = pool[:, : CHANNELS * (W - 1)].view(S, CHANNELS, W - 1)
    nine = {"qkv": bf16(N, 9, CHANNELS), "z": bf16(N, 9, HV, V), "a": f32(N, 9, HV), "b": f32(N, 9, HV)}
    assert_expected_inline(
        _table(
            "gdn_decode_layer_",
            nine,
            {"qkv": bf16(N, 0, CHANNELS), "z": bf16(N, 0, HV, V)},
            {"qkv": bf16(N, CHANNELS)},
            {"qkv": bf16(N, T, CHANNELS + 2)},
            {"qkv": bf16(N, T, 64)},
            {"qkv": torch.zeros(N, T, CHANNELS, dtype=torch.int32)},
            {"qkv": bf16(N, CHANNELS, T).mT},
            {"z": None},
            {"z": bf16(N, T, HV * V)},
            {"z": bf16(N, T + 1, HV, V)},
            {"z": bf16(N, T, HV, 96)},
            {"z": bf16(N, T, 0, V)},
            {"z": bf16(N, T, V, HV).mT},
            {"num_key_heads": 0},
            {"num_key_heads": -2},
            {"num_key_heads": 3},
            {"num_key_heads": 4},
            {"num_key_heads": 2**63 - 1},
            {"a": f32(N, T, H)},
            {"a": f32(T, HV)},
            {"b": f32(N, T, 1)},
            {"A_log": f32(H)},
            {"dt_bias": f32(V)},
            {"conv_weight": f32(CHANNELS, 1, W)},
            {"conv_weight": f32(CHANNELS, 0)},
            {"conv_bias": f32(V)},
            {"norm_weight": f32(HV, V)},
            {"norm_eps": -1e-6},
            {"norm_activation": "none"},
            {"l2_eps": float("nan")},
            {"scale": float("inf")},
            {"conv_state": bf16(S, CHANNELS, 2)},
            {"conv_state": bf16(S + 1, CHANNELS, W)},
            {"conv_state": bf16(S, CHANNELS, W).half()},
            {"state": f32(S, HV, V, K)},
            {"state": bf16(S, HV, K, V)},
            {"state": _expanded(S, HV, K, V)},
            {"conv_state": shared, "state": states},
            {"state_indices": i64(2)},
            {"state_indices": f32(2)},
            {"head_map": "Tiled"},
            {"state_layout": "vk"},
        ),
        """\
qkv=bfloat16 [2, 9, 768], z=bfloat16 [2, 9, 4, 128], a=float32 [2, 9, 4], b=float32 [2, 9, 4]
  -> ValueError: gdn_decode_layer_: qkv must be [N, T, C] with T from 1 to 8; got [2, 9, 768]
qkv=bfloat16 [2, 0, 768], z=bfloat16 [2, 0, 4, 128]
  -> ValueError: gdn_decode_layer_: qkv must be [N, T, C] with T from 1 to 8; got [2, 0, 768]
qkv=bfloat16 [2, 768]
  -> ValueError: gdn_decode_layer_: qkv must be [N, T, C]; got [2, 768]
qkv=bfloat16 [2, 3, 770]
  -> ValueError: gdn_decode_layer_: qkv must have C = 2*H*K + HV*V channels with H=2, HV=4, V=128 and K one of 64, 128 and 256; got C=770
qkv=bfloat16 [2, 3, 64]
  -> ValueError: gdn_decode_layer_: qkv must have C = 2*H*K + HV*V channels with H=2, HV=4, V=128 and K one of 64, 128 and 256; got C=64
qkv=int32 [2, 3, 768]
  -> ValueError: gdn_decode_layer_: qkv must be float32, bfloat16 or float16; got int32
qkv=bfloat16 [2, 3, 768] strides [2304, 1, 3]
  -> ValueError: gdn_decode_layer_: qkv must be contiguous in its last dimension; got strides [2304, 1, 3]
z=None
  -> ValueError: gdn_decode_layer_: z must be a tensor; got None
z=bfloat16 [2, 3, 512]
  -> ValueError: gdn_decode_layer_: z must be [N=2, T=3, HV, V] like qkv [2, 3, 768]; got [2, 3, 512]
z=bfloat16 [2, 4, 4, 128]
  -> ValueError: gdn_decode_layer_: z must be [N=2, T=3, HV, V] like qkv [2, 3, 768]; got [2, 4, 4, 128]
z=bfloat16 [2, 3, 4, 96]
  -> ValueError: gdn_decode_layer_: V must be 64, 128 or 256; got z [2, 3, 4, 96]
z=bfloat16 [2, 3, 0, 128]
  -> ValueError: gdn_decode_layer_: z must have at least one head; got [2, 3, 0, 128]
z=bfloat16 [2, 3, 4, 128] strides [1536, 512, 1, 4]
  -> ValueError: gdn_decode_layer_: z must be contiguous in its last dimension; got strides [1536, 512, 1, 4]
num_key_heads=0
  -> ValueError: gdn_decode_layer_: num_key_heads must be a divisor of the HV=4 heads of z; got 0
num_key_heads=-2
  -> ValueError: gdn_decode_layer_: num_key_heads must be a divisor of the HV=4 heads of z; got -2
num_key_heads=3
  -> ValueError: gdn_decode_layer_: num_key_heads must be a divisor of the HV=4 heads of z; got 3
num_key_heads=4
  -> ValueError: gdn_decode_layer_: qkv must have C = 2*H*K + HV*V channels with H=4, HV=4, V=128 and K one of 64, 128 and 256; got C=768
num_key_heads=9223372036854775807
  -> ValueError: gdn_decode_layer_: num_key_heads must be a divisor of the HV=4 heads of z; got 9223372036854775807
a=float32 [2, 3, 2]
  -> ValueError: gdn_decode_layer_: a must be [N=2, T=3, HV=4] like z [2, 3, 4, 128]; got [2, 3, 2]
a=float32 [3, 4]
  -> ValueError: gdn_decode_layer_: a must be [N=2, T=3, HV=4] like z [2, 3, 4, 128]; got [3, 4]
b=float32 [2, 3, 1]
  -> ValueError: gdn_decode_layer_: b must have the shape [2, 3, 4] of a; got [2, 3, 1]
A_log=float32 [2]
  -> ValueError: gdn_decode_layer_: A_log must be [HV=4] like a [2, 3, 4]; got [2]
dt_bias=float32 [128]
  -> ValueError: gdn_decode_layer_: dt_bias must be [HV=4] like a [2, 3, 4]; got [128]
conv_weight=float32 [768, 1, 4]
  -> ValueError: gdn_decode_layer_: conv_weight must be [C=768, W] like qkv [2, 3, 768]; got [768, 1, 4]
conv_weight=float32 [768, 0]
  -> ValueError: gdn_decode_layer_: conv_weight must have at least one tap; got [768, 0]
conv_bias=float32 [128]
  -> ValueError: gdn_decode_layer_: conv_bias must be [C=768] like qkv [2, 3, 768]; got [128]
norm_weight=float32 [4, 128]
  -> ValueError: gdn_decode_layer_: norm_weight must be [V=128] like z [2, 3, 4, 128]; got [4, 128]
norm_eps=-1e-06
  -> ValueError: gdn_decode_layer_: norm_eps must be finite and at least 0; got -1e-06
norm_activation='none'
  -> ValueError: gdn_decode_layer_: norm_activation must be "silu" or "sigmoid"; got "none"
l2_eps=nan
  -> ValueError: gdn_decode_layer_: l2_eps must be finite and at least 0; got nan
scale=inf
  -> ValueError: gdn_decode_layer_: scale must be finite; got inf
conv_state=bfloat16 [3, 768, 2]
  -> ValueError: gdn_decode_layer_: conv_state must be [S, C, L] with L at least W-1=3; got [3, 768, 2]
conv_state=bfloat16 [4, 768, 4]
  -> ValueError: gdn_decode_layer_: conv_state must have the S=3 slots of state; got [4, 768, 4]
conv_state=float16 [3, 768, 4]
  -> ValueError: gdn_decode_layer_: conv_state must be bfloat16 like qkv, or float32; got float16
state=float32 [3, 4, 128, 64]
  -> ValueError: gdn_decode_layer_: state must be [S, HV=4, K=64, V=128] like z [2, 3, 4, 128]; got [3, 4, 128, 64]
state=bfloat16 [3, 4, 64, 128]
  -> ValueError: gdn_decode_layer_: state must be float32; got bfloat16
state=float32 [3, 4, 64, 128] strides [0, 8192, 128, 1]
  -> ValueError: gdn_decode_layer_: state is written and must not overlap itself; got shape [3, 4, 64, 128], strides [0, 8192, 128, 1]
conv_state=float32 [3, 768, 3] strides [35072, 3, 1], state=float32 [3, 4, 64, 128] strides [35072, 8192, 128, 1]
  -> ValueError: gdn_decode_layer_: state is written and must not share memory with conv_state
state_indices=int64 [1]
  -> ValueError: gdn_decode_layer_: state_indices must be [N=2] like qkv [2, 3, 768]; got [1]
state_indices=float32 [2]
  -> ValueError: gdn_decode_layer_: state_indices must be int32 or int64; got float32
head_map='Tiled'
  -> ValueError: gdn_decode_layer_: head_map must be "grouped" or "tiled"; got "Tiled"
state_layout='vk'
  -> ValueError: gdn_decode_layer_: state must be [S, HV=4, V=128, K=64] like z [2, 3, 4, 128]; got [3, 4, 64, 128]
""",
    )


def test_gdn_verify_layer():
    assert_expected_inline(
        _table(
            "gdn_verify_layer",
            {"parents": i64(-1, 0, 0)},
            {"parents": f32(N, T)},
            {"num_key_heads": 1},
            {"conv_state": bf16(S, CHANNELS, 0)},
            {"state": f32(S, HV, K, V).half()},
            {"a": f32(N, T, HV, 1)},
            {"norm_weight": i64(*range(V))},
        ),
        """\
parents=int64 [3]
  -> ValueError: gdn_verify_layer: parents must be [N=2, T=3] like qkv [2, 3, 768]; got [3]
parents=float32 [2, 3]
  -> ValueError: gdn_verify_layer: parents must be int32 or int64; got float32
num_key_heads=1
  -> ValueError: gdn_verify_layer: state must be [S, HV=4, K=128, V=128] like z [2, 3, 4, 128]; got [3, 4, 64, 128]
conv_state=bfloat16 [3, 768, 0]
  -> ValueError: gdn_verify_layer: conv_state must be [S, C, L] with L at least W-1=3; got [3, 768, 0]
state=float16 [3, 4, 64, 128]
  -> ValueError: gdn_verify_layer: state must be float32; got float16
a=float32 [2, 3, 4, 1]
  -> ValueError: gdn_verify_layer: a must be [N=2, T=3, HV=4] like z [2, 3, 4, 128]; got [2, 3, 4, 1]
norm_weight=int64 [128]
  -> ValueError: gdn_verify_layer: norm_weight must be float32, bfloat16 or float16; got int64
""",
    )


def test_every_op_has_a_table():
    assert {name.removeprefix("test_") for name in globals()} >= set(ops.__all__)


# Switches.


def test_a_wrong_switch_stops_a_call_before_anything_changes():
    """In a process of its own: the environment is read at the first call."""
    program = f"""
import sys
sys.path[:0] = {[*sys.path]!r}
import calls
arguments = calls.call("gated_delta_rule_")
before = calls.memory([arguments["state"]])
try:
    calls.run("gated_delta_rule_", arguments)
except ValueError as error:
    assert calls.memory([arguments["state"]]) == before
    print(error)
"""
    assert_expected_inline(
        "".join(
            subprocess.run(
                [sys.executable, "-c", program],
                env={**os.environ, name: value},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for name, value in [("GDN_CHECK", "yes"), ("GDN_CPU_ISA", "sse2"), ("GDN_EMULATE", "h200")]
        ),
        """\
GDN_CHECK must be 0 or 1; got 'yes'
GDN_CPU_ISA must be baseline, avx2 or avx512; got 'sse2'
GDN_EMULATE must be an architecture such as sm_86, gfx1151 or cpu-avx2; got 'h200'
""",
    )


def test_a_wrong_override_stops_a_scope():
    lines = []
    for switches in [{"GDN_CHUNKED": 3}, {"GDN_CHEK": 1}, {"GDN_CUDA_ARCHS": "90"}, {"GDN_SEQ_SPLIT": -1}]:
        with pytest.raises(ValueError, match="GDN_") as caught, registry.overrides(**switches):
            run("gdn_gates", call("gdn_gates"))
        lines.append(str(caught.value))
    assert_expected_inline(
        "\n".join(lines) + "\n",
        """\
GDN_CHUNKED must be 0, 1 or 2; got '3'
unknown switch GDN_CHEK (nearest known name: GDN_CHECK)
GDN_CUDA_ARCHS is read when the package is built and cannot be overridden
GDN_SEQ_SPLIT must be a whole number from 0 to 1024; got '-1'
""",
    )


# Calls at the edge of what is allowed.


@pytest.mark.parametrize("op", ["gated_delta_rule", "gated_delta_rule_", "gated_delta_rule_verify"])
def test_no_sequence_and_no_token(op):
    for B, tokens in [(0, T), (N, 0), (0, 0)]:
        pool = f32(N, HV, K, V)
        before = pool.clone()
        arguments = heads(B, tokens)
        if op != "gated_delta_rule":
            arguments["state"] = pool
        result = run(op, arguments)
        outputs = result if isinstance(result, tuple) else (result,)
        assert outputs[0].shape == (B, tokens, HV, V)
        if op == "gated_delta_rule":
            assert torch.equal(outputs[1], torch.zeros(B, HV, K, V))
        assert torch.equal(pool, before)


def test_no_token_hands_the_initial_state_on():
    initial, window = f32(N, HV, K, V), f32(N, CHANNELS, W)
    assert torch.equal(ops.gated_delta_rule(**heads(tokens=0), initial_state=initial)[1], initial)
    assert torch.equal(ops.causal_conv1d(f32(N, 0, CHANNELS), f32(CHANNELS, W), None, window)[1], window)


def test_cu_seqlens_without_a_sequence():
    o, final_state = ops.gated_delta_rule(**heads(B=1), cu_seqlens=i64(0))
    assert torch.equal(o, torch.zeros_like(o))
    assert final_state.shape == (0, HV, K, V)
    y, window = ops.causal_conv1d(bf16(1, T, CHANNELS), f32(CHANNELS, W), cu_seqlens=i64(0))
    assert torch.equal(y, torch.zeros_like(y))
    assert window.shape == (0, CHANNELS, W - 1)


def test_empty_sequences_keep_their_states():
    bounds = i64(0, 0, T, T)
    pool = f32(3, HV, K, V)
    before = pool.clone()
    ops.gated_delta_rule_(**heads(B=1), state=pool, cu_seqlens=bounds)
    assert torch.equal(pool[[0, 2]], before[[0, 2]])
    assert not torch.equal(pool[1], before[1])


def test_empty_lists():
    ops.gated_delta_rule_commit_layers_([], [], [], [], i64(1))
    ops.causal_conv1d_commit_layers_([], [], i64(1))


def test_commit_without_a_sequence_or_a_token():
    for sequences, tokens in [(0, T), (N, 0)]:
        pool, window = state(), bf16(S, CHANNELS, W)
        before = memory([pool, window])
        accepted = torch.zeros(sequences, dtype=torch.int32)
        shape = (sequences, tokens)
        ops.gated_delta_rule_commit_(pool, f32(*shape, H, K), f32(*shape, HV, V), f32(*shape, HV), accepted)
        ops.causal_conv1d_commit_(window, bf16(*shape, CHANNELS), accepted)
        assert memory([pool, window]) == before


def test_pointwise_without_elements():
    assert ops.gdn_gates(f32(0, HV), f32(0, HV), f32(HV), f32(HV))[0].shape == (0, HV)
    assert ops.gdn_gates(f32(N, 0), f32(N, 0), f32(0), f32(0))[1].shape == (N, 0)
    assert ops.gated_rms_norm(f32(0, V), f32(0, V), f32(V)).shape == (0, V)
    assert ops.qk_l2norm(f32(N, 0, K), f32(K))[0].shape == (N, 0, K)


def test_a_pool_without_slots():
    """All sequences are skipped: their rows are zero."""
    skip = i64(-1, -1)
    o = ops.gated_delta_rule_(**heads(), state=f32(0, HV, K, V), state_indices=skip)
    assert torch.equal(o, torch.zeros_like(o))
    for rows in ops.gated_delta_rule_verify(**heads(), state=f32(0, HV, K, V), state_indices=skip):
        assert torch.equal(rows, torch.zeros_like(rows))
    y = ops.causal_conv1d_(bf16(N, T, CHANNELS), f32(CHANNELS, W), None, bf16(0, CHANNELS, W), skip)
    assert torch.equal(y, torch.zeros_like(y))
    ops.gated_delta_rule_commit_(f32(0, HV, K, V), **logs(), accepted=i64(1, 1), state_indices=skip)
    ops.causal_conv1d_commit_(bf16(0, CHANNELS, W), bf16(N, T, CHANNELS), i64(1, 1), skip)
    layer = {**call("gdn_decode_layer_"), "conv_state": bf16(0, CHANNELS, W), "state": f32(0, HV, K, V)}
    y = ops.gdn_decode_layer_(**{**layer, "state_indices": skip})
    assert torch.equal(y, torch.zeros_like(y))


def test_a_convolution_of_one_tap_has_no_window():
    x, weight = f32(N, T, CHANNELS), f32(CHANNELS, 1)
    expected = x * weight[:, 0]
    y, window = ops.causal_conv1d(x, weight, activation="none")
    assert torch.equal(y, expected)
    assert window.shape == (N, CHANNELS, 0)
    y = ops.causal_conv1d_(x, weight, None, f32(S, CHANNELS, 0), i64(2, -1), activation="none")
    assert torch.equal(y, torch.stack((expected[0], torch.zeros_like(expected[1]))))
    ops.causal_conv1d_commit_(f32(S, CHANNELS, 0), x, i64(1, 2))


def test_as_many_key_heads_as_value_heads():
    arguments = {**heads(), "v": bf16(N, T, H, V), "g": -f32(N, T, H).abs(), "beta": f32(N, T, H).sigmoid()}
    grouped, tiled = (ops.gated_delta_rule(**arguments, head_map=head_map) for head_map in ("grouped", "tiled"))
    assert torch.equal(grouped[0], tiled[0])
    assert torch.equal(grouped[1], tiled[1])


def _oddly_strided(tensor: Tensor) -> Tensor:
    """The same, with a stride of 12345 for every dimension of size 1."""
    strides = [12345 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.as_strided(tensor.shape, strides)


def test_strides_of_single_elements_do_not_matter():
    one = {name: value[:1, :1, :1].contiguous() for name, value in heads().items()}
    pool = f32(1, 1, K, V)
    odd_pool = _oddly_strided(pool.clone())
    expected = ops.gated_delta_rule_(**one, state=pool)
    got = ops.gated_delta_rule_(**{name: _oddly_strided(value) for name, value in one.items()}, state=odd_pool)
    assert torch.equal(got, expected)
    assert torch.equal(odd_pool, pool)
    x, weight, window = f32(1, 1, 1), f32(1, 2), f32(1, 1, 1)
    odd_window = _oddly_strided(window.clone())
    expected = ops.causal_conv1d_(x, weight, None, window)
    assert torch.equal(ops.causal_conv1d_(_oddly_strided(x), weight, None, odd_window), expected)
    assert torch.equal(odd_window, window)


def test_gates_of_any_strides():
    arguments = heads()
    g, beta = -f32(N, HV, T).abs().mT, torch.tensor(0.5).expand(N, T, HV)
    expected = ops.gated_delta_rule(**{**arguments, "g": g.contiguous(), "beta": beta.contiguous()})
    got = ops.gated_delta_rule(**{**arguments, "g": g, "beta": beta})
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])
    a, b, weights = f32(HV, T, N).permute(2, 1, 0), f32(1, 1, HV).expand(N, T, HV), f32(2, HV)
    expected = ops.gdn_gates(a.contiguous(), b.contiguous(), *weights)
    got = ops.gdn_gates(a, b, *weights)
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


def test_an_expanded_state_may_be_read():
    one, arguments = f32(1, HV, K, V), heads()
    got = ops.gated_delta_rule_verify(**arguments, state=one.expand(S, HV, K, V))
    expected = ops.gated_delta_rule_verify(**arguments, state=one.repeat(S, 1, 1, 1))
    assert all(torch.equal(x, y) for x, y in zip(got, expected, strict=True))


INTERLEAVED = {
    "slots, then layers": ((S, 2, HV, K, V), lambda buffer, layer: buffer[:, layer]),
    "heads, then layers": ((S, HV, 2, K, V), lambda buffer, layer: buffer[:, :, layer]),
    "heads, then layers, then slots": ((HV, 2, S, K, V), lambda buffer, layer: buffer[:, layer].transpose(0, 1)),
    "keys, then layers": ((S, K, 2, HV, V), lambda buffer, layer: buffer[:, :, layer].transpose(1, 2)),
    "rows, then layers": ((S, HV, K, 2, V), lambda buffer, layer: buffer[:, :, :, layer]),
    "layers": ((2, S, HV, K, V), lambda buffer, layer: buffer[layer]),
    "one slot": ((1, HV, 2, K, V), lambda buffer, layer: buffer[:, :, layer]),
}


@pytest.mark.parametrize("name", INTERLEAVED)
def test_pools_that_interleave_in_one_buffer(name):
    shape, pool = INTERLEAVED[name]
    buffer = f32(*shape)
    states = [pool(buffer, layer) for layer in range(2)]
    assert states[0].shape[1:] == (HV, K, V)
    apart = [s.contiguous() for s in states]
    slots, log = states[0].shape[0], logs()
    logs_of_layers = [[log[name]] * 2 for name in log]
    accepted, indices = i64(2, 3), i64(slots - 1, -1)
    ops.gated_delta_rule_commit_layers_(states, *logs_of_layers, accepted, indices)
    before = [s.clone() for s in apart]
    ops.gated_delta_rule_commit_layers_(apart, *logs_of_layers, accepted, indices)
    for layer in range(2):
        assert torch.equal(states[layer], apart[layer])
        assert not torch.equal(apart[layer], before[layer])


def test_two_kinds_of_state_in_one_page():
    """A page holds a slot of both, of different dtypes, as serving engines lay them out."""
    columns = W - 1
    recurrent_bytes, window_bytes = HV * K * V * 4, CHANNELS * columns * 2
    pages = torch.zeros(S, recurrent_bytes + window_bytes, dtype=torch.uint8)
    recurrent = pages[:, :recurrent_bytes].view(torch.float32).view(S, HV, K, V)
    window = pages[:, recurrent_bytes:].view(torch.bfloat16).view(S, CHANNELS, columns)
    arguments = call("gdn_decode_layer_")
    recurrent.copy_(arguments["state"])
    window.copy_(arguments["conv_state"])
    paged = {**arguments, "state": recurrent, "conv_state": window}
    assert torch.equal(ops.gdn_decode_layer_(**paged), ops.gdn_decode_layer_(**arguments))
    assert torch.equal(recurrent, arguments["state"])
    assert torch.equal(window, arguments["conv_state"])


# Devices.

CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)


def _cuda_kernel(op: str, arguments: dict):
    """What torch calls for CUDA tensors."""
    overload = getattr(torch.ops.strata_gdn, op).default
    arguments = dict(arguments)
    args = [arguments.pop(a.name, a.default_value) for a in overload._schema.arguments if not a.kwarg_only]
    return overload.redispatch(CUDA, *args, **arguments)


@pytest.mark.parametrize("op", ops.__all__)
def test_tensors_on_several_devices(op):
    """Any one of them on the meta device, where torch has no memory to compute with."""
    names = [name for name, value in call(op).items() if isinstance(value, (list, Tensor))]
    for name in names:
        arguments = call(op)
        value = arguments[name]
        arguments[name] = [t.to("meta") for t in value] if isinstance(value, list) else value.to("meta")
        before = memory(written(op, arguments))
        with pytest.raises(ValueError, match=rf"^{op}: \w+ must be on (cpu|meta) like \w+; got (cpu|meta)$"):
            run(op, arguments)
        assert memory(written(op, arguments)) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("op", ops.__all__)
def test_without_a_gpu_the_cuda_kernels_say_so(op):
    """Whether or not this build has some."""
    arguments = call(op)
    before = memory(written(op, arguments))
    with pytest.raises(RuntimeError, match=rf"^{op}: .*\bno GPU\b") as caught:
        _cuda_kernel(op, arguments)
    assert not isinstance(caught.value, NotImplementedError)
    assert not SOURCE_FILE.search(str(caught.value))
    assert memory(written(op, arguments)) == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("op", ops.__all__)
def test_an_op_without_a_kernel_for_the_gpu_says_so(op):
    major, minor = torch.cuda.get_device_capability()
    served = bool(registry.decide(op, arch=f"sm_{major}{minor}"))
    arguments = call(op)
    for name, value in arguments.items():
        if isinstance(value, (list, Tensor)):
            arguments[name] = [t.cuda() for t in value] if isinstance(value, list) else value.cuda()
    if served and registry.build().cuda:
        run(op, arguments)
    else:
        with pytest.raises(
            RuntimeError, match=rf"^{op}: (no kernel of this build serves|this build of strata_gdn has no)"
        ):
            run(op, arguments)
