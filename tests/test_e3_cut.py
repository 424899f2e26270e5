"""E3: a prompt in pieces, the state carried over, gives the bits of one pass, wherever it is cut."""

from __future__ import annotations

from itertools import pairwise

import cases
import pytest
import torch
from cases import BF16, CUT_TOKENS, DTYPES, F16, F32, Heads
from compare import assert_same_bits

ops = torch.ops.strata_gdn

# HV / H of 1, 2, 3, 4 and every K and V appear; the longest prompts get the smallest heads.
RATIOS = [1, 2, 3, 4]
SIZES = [(128, 64), (64, 128), (256, 64), (64, 256), (128, 128), (64, 64), (128, 64), (64, 64), (64, 64), (64, 64)]
PROMPTS = [
    (T, Heads(1 + (T < 100), (1 + (T < 100)) * RATIOS[i % 4], K, V), DTYPES[i % 3], ("kv", "vk")[i % 2])
    for i, (T, (K, V)) in enumerate(zip(CUT_TOKENS, SIZES, strict=True))
]


def cuts_of(tokens: int) -> list[list[int]]:
    """Ways to cut: everywhere (short prompts), after the first and before the last token, at random, on block sizes."""
    inner = list(range(1, tokens))
    ways = [inner[:1], inner[-1:], [t for t in inner if t % 64 == 0], [t for t in inner if t % 7 == 0]]
    ways += [sorted(set(torch.randint(1, max(tokens, 2), (count,)).tolist()) & set(inner)) for count in (1, 2, 4)]
    if tokens <= 65:
        ways.append(inner)
    return ways


@pytest.mark.parametrize("head_map", ["grouped", "tiled"])
@pytest.mark.parametrize(("tokens", "heads", "dtype", "layout"), PROMPTS)
def test_recurrence(tokens: int, heads: Heads, dtype: torch.dtype, layout: str, head_map: str) -> None:
    inputs, state = cases.recurrence(heads, 2, tokens, dtype), cases.state_pool(heads, 2, layout)
    options = {"state_layout": layout, "head_map": head_map, "qk_l2norm": tokens % 2 == 0}
    o, final = ops.gated_delta_rule(**inputs, initial_state=state, **options)
    for cuts in cuts_of(tokens):
        pool = state.clone()
        pieces = [
            ops.gated_delta_rule_(**{name: x[:, begin:end] for name, x in inputs.items()}, state=pool, **options)
            for begin, end in pairwise([0, *cuts, tokens])
        ]
        assert_same_bits(torch.cat(pieces, 1), o, f"o, cut at {cuts}")
        assert_same_bits(pool, final, f"state, cut at {cuts}")


def test_an_empty_piece_changes_nothing() -> None:
    heads = Heads(1, 2, 64, 64)
    state = cases.state_pool(heads, 2)
    before = state.clone()
    assert ops.gated_delta_rule_(**cases.recurrence(heads, 2, 0), state=state).shape == (2, 0, 2, 64)
    assert_same_bits(state, before, "state")


@pytest.mark.parametrize(
    ("dtype", "state_dtype", "width", "window"),
    [(F32, F32, 4, 3), (BF16, BF16, 4, 3), (F16, F32, 2, 1), (BF16, F32, 4, 6), (F32, F32, 1, 2)],
)
@pytest.mark.parametrize("tokens", CUT_TOKENS)
def test_convolution(tokens: int, dtype: torch.dtype, state_dtype: torch.dtype, width: int, window: int) -> None:
    """Pieces shorter than the window among them."""
    channels = 70
    made = cases.convolution(channels, width, 2, tokens, dtype)
    x, weights = made.pop("x"), made
    state = cases.window_pool(channels, 2, window, state_dtype)
    y, final = ops.causal_conv1d(x, **weights, initial_state=state)
    for cuts in cuts_of(tokens):
        pool = state.clone()
        pieces = [
            ops.causal_conv1d_(x[:, begin:end], **weights, state=pool) for begin, end in pairwise([0, *cuts, tokens])
        ]
        assert_same_bits(torch.cat(pieces, 1), y, f"y, cut at {cuts}")
        assert_same_bits(pool, final, f"window, cut at {cuts}")


@pytest.mark.parametrize("ratio", RATIOS)
def test_layer_in_steps(ratio: int) -> None:
    """gdn_decode_layer_ over eight tokens, in steps of one, and unevenly."""
    tokens, heads = 8, Heads(1, ratio, 64, 64)
    arguments = cases.layer(heads, 2, tokens, slots=2)
    per_token = ("qkv", "z", "a", "b")
    windows, states = arguments.pop("conv_state"), arguments.pop("state")
    outcomes = []
    for cuts in ([], [1, 2, 3, 4, 5, 6, 7], [3], [1, 6]):
        pools = {"conv_state": windows.clone(), "state": states.clone()}
        pieces = [
            ops.gdn_decode_layer_(**arguments | {name: arguments[name][:, begin:end] for name in per_token}, **pools)
            for begin, end in pairwise([0, *cuts, tokens])
        ]
        outcomes.append((torch.cat(pieces, 1), pools["conv_state"], pools["state"]))
    for outcome in outcomes[1:]:
        for actual, expected in zip(outcome, outcomes[0], strict=True):
            assert_same_bits(actual, expected, "layer")
