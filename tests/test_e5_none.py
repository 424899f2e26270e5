"""E5: no initial state is a state of zeros; so is has_initial_state=False, whatever the slot holds."""

from __future__ import annotations

import cases
import pytest
import torch
from cases import BF16, DTYPES, F32, Heads, cu_seqlens, index
from compare import assert_same_bits

ops = torch.ops.strata_gdn


@pytest.mark.parametrize("layout", ["kv", "vk"])
@pytest.mark.parametrize(
    ("tokens", "heads"),
    [(0, Heads(1, 2, 64, 64)), (1, Heads(2, 2, 128, 64)), (9, Heads(1, 3, 64, 256)), (65, Heads(2, 4, 64, 64))],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_recurrence(tokens: int, heads: Heads, dtype: torch.dtype, layout: str) -> None:
    inputs = cases.recurrence(heads, 2, tokens, dtype)
    zeros = torch.zeros_like(cases.state_pool(heads, 2, layout))
    without = ops.gated_delta_rule(**inputs, state_layout=layout)
    for actual, expected in zip(
        without, ops.gated_delta_rule(**inputs, initial_state=zeros, state_layout=layout), strict=True
    ):
        assert_same_bits(actual, expected, "gated_delta_rule")
    dirty = torch.full_like(zeros, torch.nan)
    fresh = torch.zeros(2, dtype=torch.bool)
    o = ops.gated_delta_rule_(**inputs, state=dirty, has_initial_state=fresh, state_layout=layout)
    assert_same_bits(o, without[0], "o of a fresh start")
    assert_same_bits(dirty, without[1], "state of a fresh start")


def test_packed_recurrence() -> None:
    heads, lengths = Heads(1, 2, 64, 64), [5, 0, 17]
    inputs, bounds = cases.recurrence(heads, 1, sum(lengths), BF16), cu_seqlens(*lengths)
    without = ops.gated_delta_rule(**inputs, cu_seqlens=bounds)
    zeros = ops.gated_delta_rule(**inputs, initial_state=torch.zeros(3, 2, 64, 64), cu_seqlens=bounds)
    for actual, expected in zip(without, zeros, strict=True):
        assert_same_bits(actual, expected, "gated_delta_rule")
    assert not without[1][1].any(), "the empty sequence's state is zero"
    pool = torch.full((4, 2, 64, 64), torch.nan)
    o = ops.gated_delta_rule_(
        **inputs, state=pool, state_indices=index(3, 1, 0), cu_seqlens=bounds,
        has_initial_state=torch.zeros(3, dtype=torch.bool),
    )  # fmt: skip
    assert_same_bits(o, without[0], "o")
    assert_same_bits(pool[[3, 1, 0]], without[1], "states")
    assert pool[2].isnan().all(), "another slot is touched"


@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 5, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_convolution(tokens: int, dtype: torch.dtype) -> None:
    inputs = cases.convolution(70, 4, 2, tokens, dtype)
    without = ops.causal_conv1d(**inputs)
    for actual, expected in zip(
        without, ops.causal_conv1d(**inputs, initial_state=torch.zeros(2, 70, 3, dtype=dtype)), strict=True
    ):
        assert_same_bits(actual, expected, "causal_conv1d")
    dirty = torch.full((2, 70, 3), torch.nan, dtype=dtype)
    y = ops.causal_conv1d_(**inputs, state=dirty, has_initial_state=torch.zeros(2, dtype=torch.bool))
    assert_same_bits(y, without[0], "y of a fresh start")
    assert_same_bits(dirty, without[1], "window of a fresh start")


@pytest.mark.parametrize("tokens", [0, 2, 9])
def test_longer_window(tokens: int) -> None:
    """A fresh start zeroes the columns beyond W - 1 as well."""
    inputs = cases.convolution(70, 4, 2, tokens, BF16)
    pool = torch.full((2, 70, 7), torch.nan)
    expected = torch.zeros(2, 70, 7)
    ops.causal_conv1d_(**inputs, state=expected)
    ops.causal_conv1d_(**inputs, state=pool, has_initial_state=torch.zeros(2, dtype=torch.bool))
    assert_same_bits(pool, expected, "window")
    assert expected.dtype is F32
