"""Every op against the float64 formulas of strata_gdn.reference, each bound with its negative control."""

from __future__ import annotations

from typing import Any

import cases
import pytest
import torch
from cases import BF16, DTYPES, F16, F32, Heads, cu_seqlens, index
from compare import assert_bound_can_fail, assert_close_to_float64
from torch import Tensor

from strata_gdn import reference

ops = torch.ops.strata_gdn

# Of the largest value: float32 arithmetic over at most 257 tokens and K = 256, and the rounding of the result, which is
# half a unit in the last place of the largest value at most.
ARITHMETIC = 5e-6
ROUNDING = {F32: 0.0, BF16: 2.0**-8, F16: 2.0**-11}


def check(actual: Tensor, expected: Tensor, name: str) -> None:
    bound = ARITHMETIC + ROUNDING[actual.dtype]
    assert_close_to_float64(actual, expected, bound, name)
    if actual.numel() and expected.any():
        assert_bound_can_fail(actual, expected, bound)


RECURRENCES = [
    (1, Heads(2, 2, 128, 128), BF16, "kv", "grouped", "model"), (3, Heads(1, 2, 64, 128), F32, "vk", "grouped", "slow"),
    (9, Heads(2, 6, 128, 64), F16, "kv", "tiled", "model"), (17, Heads(2, 8, 64, 64), F32, "vk", "tiled", "slow"),
    (33, Heads(2, 2, 256, 64), BF16, "kv", "tiled", "slow"), (65, Heads(1, 3, 64, 256), F32, "kv", "grouped", "model"),
    (129, Heads(1, 2, 128, 64), F32, "vk", "tiled", "slow"), (257, Heads(1, 1, 64, 256), F32, "kv", "grouped", "slow"),
]  # fmt: skip


@pytest.mark.parametrize(("tokens", "heads", "dtype", "layout", "head_map", "gates"), RECURRENCES)
@pytest.mark.parametrize("qk_l2norm", [False, True])
def test_gated_delta_rule(
    tokens: int, heads: Heads, dtype: torch.dtype, layout: str, head_map: str, gates: str, qk_l2norm: bool
) -> None:
    inputs = cases.recurrence(heads, 2, tokens, dtype, gates=gates)
    state = cases.state_pool(heads, 2, layout)
    options = {"state_layout": layout, "head_map": head_map, "qk_l2norm": qk_l2norm}
    o, final = ops.gated_delta_rule(**inputs, initial_state=state, **options)
    expected_o, expected_final = reference.gated_delta_rule(**inputs, initial_state=state, **options)
    check(o, expected_o, "o")
    check(final, expected_final, "final_state")
    pool = state.clone()
    check(ops.gated_delta_rule_(**inputs, state=pool, **options), expected_o, "o in place")
    check(pool, expected_final, "state in place")


def test_packed_sequences() -> None:
    heads, lengths = Heads(2, 4, 64, 128), [5, 0, 33, 1]
    inputs, bounds = cases.recurrence(heads, 1, sum(lengths)), cu_seqlens(*lengths)
    state = cases.state_pool(heads, len(lengths))
    results = ops.gated_delta_rule(**inputs, initial_state=state, cu_seqlens=bounds, scale=0.5)
    expected = reference.gated_delta_rule(**inputs, initial_state=state, cu_seqlens=bounds, scale=0.5)
    for name, actual, want in zip(("o", "final_state"), results, expected, strict=True):
        check(actual, want, name)


@pytest.mark.parametrize("branches", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize(("tokens", "heads", "dtype", "layout", "head_map", "gates"), RECURRENCES[:6])
def test_verify_and_commit(
    tokens: int, heads: Heads, dtype: torch.dtype, layout: str, head_map: str, gates: str, branches: bool
) -> None:
    batch = 2
    inputs = cases.recurrence(heads, batch, tokens, dtype, gates=gates)
    state = cases.state_pool(heads, batch, layout)
    where = {"state_layout": layout, "head_map": head_map}
    parents = cases.tree(batch, tokens) if branches else None
    results = ops.gated_delta_rule_verify(**inputs, state=state, parents=parents, **where)
    expected = reference.gated_delta_rule_verify(**inputs, state=state, parents=parents, **where)
    for name, actual, want in zip(("o", "k_log", "d_log", "g_log"), results, expected, strict=True):
        check(actual, want, name)
    choice = cases.window_choice(batch, tokens, branches)
    log = dict(zip(("k_log", "d_log", "g_log"), cases.logs(heads, batch, tokens).values(), strict=True))
    committed = reference.gated_delta_rule_commit(state, **log, **choice, **where)
    pool, layered = state.clone(), state.clone()
    ops.gated_delta_rule_commit_(pool, **log, **choice, **where)
    check(pool, committed, "committed state")
    ops.gated_delta_rule_commit_layers_([layered], *([value] for value in log.values()), **choice, **where)
    check(layered, committed, "committed state of a layer")
    together = state.clone()
    results = ops.gated_delta_rule_commit_verify_(
        together, **log, **inputs, **choice, **where, parents=parents, qk_l2norm=True
    )
    expected = reference.gated_delta_rule_verify(**inputs, state=committed, parents=parents, **where, qk_l2norm=True)
    for name, actual, want in zip(("o", "k_log", "d_log", "g_log"), results, expected, strict=True):
        check(actual, want, f"{name} after the commit")
    check(together, committed, "state after both")


@pytest.mark.parametrize("activation", ["silu", "none"])
@pytest.mark.parametrize(
    ("dtype", "width", "window", "bias"), [(F32, 4, 3, True), (BF16, 2, 4, False), (F16, 1, 0, True)]
)
@pytest.mark.parametrize("tokens", [1, 6, 65])
def test_convolution(tokens: int, dtype: torch.dtype, width: int, window: int, bias: bool, activation: str) -> None:
    batch, channels = 2, 70
    inputs = cases.convolution(channels, width, batch, tokens, dtype, bias=bias) | {"activation": activation}
    state = cases.window_pool(channels, batch, window, dtype)
    expected_y, expected_window = reference.causal_conv1d(**inputs, initial_state=state)
    y, final = ops.causal_conv1d(**inputs, initial_state=state)
    check(y, expected_y, "y")
    check(final, expected_window, "final_state")
    pool = state.clone()
    check(ops.causal_conv1d_(**inputs, state=pool), expected_y, "y in place")
    check(pool, expected_window, "window in place")
    parents = cases.tree(batch, tokens)
    expected = reference.causal_conv1d_verify(**inputs, state=state, parents=parents)
    check(ops.causal_conv1d_verify(**inputs, state=state, parents=parents), expected, "verify")
    choice = cases.window_choice(batch, tokens, branches=True)
    committed = reference.causal_conv1d_commit(state, inputs["x"], **choice)
    pools = [state.clone(), state.clone(), state.clone()]
    ops.causal_conv1d_commit_(pools[0], inputs["x"], **choice)
    ops.causal_conv1d_commit_layers_(pools[1:], [inputs["x"]] * 2, **choice)
    for pool in pools:
        check(pool, committed, "committed window")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [64, 128, 256])
def test_qk_l2norm(K: int, dtype: torch.dtype) -> None:
    q, k = torch.randn(2, 5, 3, K).to(dtype), (9 * torch.randn(2, 5, 2, K)).to(dtype)
    for name, actual, want in zip("qk", ops.qk_l2norm(q, k), reference.qk_l2norm(q, k), strict=True):
        check(actual, want, name)


@pytest.mark.parametrize("allow_neg_eigval", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gdn_gates(dtype: torch.dtype, allow_neg_eigval: bool) -> None:
    HV = 48
    a, b = (8 * torch.randn(2, 3, 7, HV)).to(dtype)
    A_log, dt_bias = torch.rand(HV).mul(16).log(), torch.randn(HV)
    results = ops.gdn_gates(a, b, A_log, dt_bias, allow_neg_eigval=allow_neg_eigval)
    expected = reference.gdn_gates(a, b, A_log, dt_bias, allow_neg_eigval=allow_neg_eigval)
    for name, actual, want in zip(("g", "beta"), results, expected, strict=True):
        check(actual, want, name)


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("V", [64, 128, 256])
def test_gated_rms_norm(V: int, dtype: torch.dtype, activation: str) -> None:
    o, z = (4 * torch.randn(2, 5, 3, V)).to(dtype)
    weight = torch.randn(V).to(dtype)
    expected = reference.gated_rms_norm(o, z, weight, eps=1e-5, activation=activation)
    for output in DTYPES:
        y = ops.gated_rms_norm(o, z, weight, eps=1e-5, activation=activation, dtype=output)
        assert y.dtype is output
        check(y, expected, "y")


def layer_reference(arguments: dict[str, Any], verify: bool) -> tuple[Tensor, ...]:
    """The layer's formulas in a row, nothing rounded between them."""
    HV, V = arguments["z"].shape[2:]
    H = arguments["num_key_heads"]
    K = (arguments["qkv"].shape[2] - HV * V) // (2 * H)
    convolution = [arguments[name] for name in ("qkv", "conv_weight", "conv_bias", "conv_state")]
    mixed = reference.causal_conv1d_verify(*convolution) if verify else reference.causal_conv1d(*convolution)[0]
    heads = cases.split(mixed, Heads(H, HV, K, V))
    gates = reference.gdn_gates(*(arguments[name] for name in ("a", "b", "A_log", "dt_bias")))
    recur = reference.gated_delta_rule_verify if verify else reference.gated_delta_rule
    o, *rest = recur(*heads.values(), *gates, arguments["state"], qk_l2norm=True)
    return reference.gated_rms_norm(o, arguments["z"], arguments["norm_weight"]), *rest


@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_layers(tokens: int) -> None:
    """In float32: with 16-bit activations the roundings between the ops are the composition's, see test_oracle.py."""
    heads, batch = Heads(2, 4, 64, 128), 2
    arguments = cases.layer(heads, batch, tokens, F32, slots=batch)
    for name, actual, want in zip(
        ("y", "k_log", "d_log", "g_log"),
        ops.gdn_verify_layer(**arguments),
        layer_reference(arguments, True),
        strict=True,
    ):
        check(actual, want, name)
    y, final = layer_reference(arguments, False)
    check(ops.gdn_decode_layer_(**arguments), y, "y")
    check(arguments["state"], final, "state")


def test_indices_choose_the_state() -> None:
    heads = Heads(1, 2, 64, 64)
    inputs, pool = cases.recurrence(heads, 2, 3), cases.state_pool(heads, 5)
    o, _ = reference.gated_delta_rule(**inputs, initial_state=pool[[4, 1]])
    check(ops.gated_delta_rule_(**inputs, state=pool, state_indices=index(4, 1)), o, "o")
