"""Wrong values on the device (docs/contract.md, "Bad input"): without GDN_CHECK nobody else's data is touched, with
GDN_CHECK=1 they are refused before anything changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cases
import oracle
import pytest
import torch
from cases import BF16, F32, Call, Heads, index
from compare import assert_same_bits

from strata_gdn import registry

ops = torch.ops.strata_gdn
HEADS, N, T, SLOTS, CHANNELS = Heads(1, 2, 64, 64), 3, 4, 5, 70
FAR = 1 << 40


def far(*values: Any) -> torch.Tensor:
    return index(*values, dtype=torch.int64)


def step(**more: Any) -> dict[str, Any]:
    return {**cases.recurrence(HEADS, N, T, BF16), "state": cases.state_pool(HEADS, SLOTS), **more}


def packed(tokens: int, **more: Any) -> dict[str, Any]:
    return {**cases.recurrence(HEADS, 1, tokens, BF16), **more}


def commit(**more: Any) -> dict[str, Any]:
    made = {"state": cases.state_pool(HEADS, SLOTS), **cases.logs(HEADS, N, T), "accepted": index(1, 2, 3)}
    return made | more


def commit_layers(**more: Any) -> dict[str, Any]:
    layers = [commit(**more) for _ in range(2)]
    lists = {name + "s": [made.pop(name) for made in layers] for name in ("state", "k_log", "d_log", "g_log")}
    return lists | layers[0]


def conv(batch: int = N, tokens: int = T, **more: Any) -> dict[str, Any]:
    made = cases.convolution(CHANNELS, 4, batch, tokens, BF16)
    return {**made, "state": cases.window_pool(CHANNELS, SLOTS, 3, BF16), **more}


def conv_commit(**more: Any) -> dict[str, Any]:
    window = {"state": cases.window_pool(CHANNELS, SLOTS, 3, F32), "x": torch.randn(N, T, CHANNELS)}
    return window | {"accepted": index(1, 2, 4)} | more


def conv_commit_layers(**more: Any) -> dict[str, Any]:
    layers = [conv_commit(**more) for _ in range(2)]
    return {name + "s": [made.pop(name) for made in layers] for name in ("state", "x")} | layers[0]


def layer(**more: Any) -> dict[str, Any]:
    return cases.layer(HEADS, N, T, slots=SLOTS) | more


def no_state(made: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in made.items() if name != "state"}


# op, arguments with wrong values.
WRONG: list[tuple[str, Callable[[], dict[str, Any]]]] = [
    ("gated_delta_rule_", lambda: step(state_indices=index(0, SLOTS, 2))),
    ("gated_delta_rule_", lambda: step(state_indices=index(-2, 1, 2))),
    ("gated_delta_rule_", lambda: step(state_indices=far(0, 1, FAR))),
    ("gated_delta_rule_", lambda: step(state_indices=far(0, 1, -FAR))),
    ("gated_delta_rule_verify", lambda: step(state_indices=index(1, 9, 1))),
    ("gated_delta_rule_commit_", lambda: commit(state_indices=index(4, 0, 5))),
    ("gated_delta_rule_commit_layers_", lambda: commit_layers(state_indices=index(4, 0, 5))),
    ("gated_delta_rule_commit_verify_", lambda: commit() | step(state_indices=index(4, -7, 0))),
    ("causal_conv1d_", lambda: conv(state_indices=index(7, 0, 1))),
    ("causal_conv1d_verify", lambda: conv(state_indices=index(0, 0, -9))),
    ("causal_conv1d_commit_", lambda: conv_commit(state_indices=index(0, 6, 1))),
    ("causal_conv1d_commit_layers_", lambda: conv_commit_layers(state_indices=far(0, FAR, 1))),
    ("gdn_decode_layer_", lambda: layer(state_indices=index(0, 5, 1))),
    ("gdn_verify_layer", lambda: layer(state_indices=index(0, 5, 1))),
    ("gated_delta_rule", lambda: packed(9, cu_seqlens=index(2, 5, 9))),
    ("gated_delta_rule", lambda: packed(9, cu_seqlens=index(-3, 5, 9))),
    ("gated_delta_rule", lambda: packed(9, cu_seqlens=index(0, 5, 7))),
    ("gated_delta_rule", lambda: packed(9, cu_seqlens=far(0, 5, FAR))),
    ("gated_delta_rule", lambda: packed(9, cu_seqlens=index(0, 5, 3, 9))),
    ("gated_delta_rule", lambda: packed(9, cu_seqlens=index(0, 20, 4, 9))),
    ("gated_delta_rule", lambda: packed(9, cu_seqlens=index(4))),
    (
        "gated_delta_rule_",
        lambda: no_state(packed(9)) | {"state": cases.state_pool(HEADS, 2), "cu_seqlens": index(1, 30, 2)},
    ),
    ("causal_conv1d", lambda: no_state(conv(1, 9)) | {"cu_seqlens": index(0, -4, 30)}),
    ("causal_conv1d_", lambda: conv(1, 9, cu_seqlens=index(3, 2, 8))),
    ("gated_delta_rule_verify", lambda: step(parents=index([-1, 0, 2, 1], [-1] * 4, [-1, 0, 1, 2]))),
    ("gated_delta_rule_verify", lambda: step(parents=index([-1] * 4, [-1, -2, 0, 7], [-1] * 4))),
    ("gated_delta_rule_verify", lambda: step(parents=far([0, 0, FAR, 2], [-1] * 4, [-1] * 4))),
    ("causal_conv1d_verify", lambda: conv(parents=far([-1] * 4, [-1, 0, -FAR, 3], [-1] * 4))),
    ("gated_delta_rule_commit_verify_", lambda: commit() | step(parents=index([-1, 1, 0, 0], [-1] * 4, [-1] * 4))),
    ("gdn_verify_layer", lambda: layer(parents=index([-1, 1, 0, 0], [-1] * 4, [-1] * 4))),
    ("gated_delta_rule_commit_", lambda: commit(accepted=index(0, 5, 1))),
    ("gated_delta_rule_commit_", lambda: commit(accepted=far(-1, FAR, -FAR))),
    ("gated_delta_rule_commit_layers_", lambda: commit_layers(accepted=index(0, 1, -1))),
    ("gated_delta_rule_commit_verify_", lambda: commit(accepted=index(9, 0, -5)) | step()),
    ("causal_conv1d_commit_", lambda: conv_commit(accepted=index(9, 0, -5))),
    ("causal_conv1d_commit_layers_", lambda: conv_commit_layers(accepted=index(0, 0, 5))),
    (
        "gated_delta_rule_commit_",
        lambda: commit(accepted=index(3, 4, 2), path=index([0, 4, 1, 2], [3, 1, -1, 2], [2, 0, 9, 9])),
    ),
    (
        "gated_delta_rule_commit_layers_",
        lambda: commit_layers(accepted=index(1, 4, 2), path=far([0, 4, 1, 2], [3, 1, -FAR, 2], [2, 0, 9, 9])),
    ),
    (
        "gated_delta_rule_commit_verify_",
        lambda: commit(accepted=index(2, 4, 2), path=index([7, 4, 1, 2], [3, 1, 0, 2], [2, 0, 9, 9])) | step(),
    ),
    (
        "causal_conv1d_commit_",
        lambda: conv_commit(accepted=index(3, 4, 2), path=index([0, 4, 1, 2], [3, 1, -1, 2], [2, 0, 9, 9])),
    ),
]


@pytest.mark.parametrize(("op", "make"), WRONG)
def test_what_the_kernels_do(op: str, make: Callable[[], dict[str, Any]]) -> None:
    made = Call(op, make())
    expected = made.copy()
    with registry.overrides(GDN_CHECK=0):
        results = made.run()
    for i, (actual, want) in enumerate(zip(results, expected.run(oracle), strict=True)):
        assert_same_bits(actual, want, f"result {i}")
    for (name, actual), (_, want) in zip(made.buffers(), expected.buffers(), strict=True):
        assert_same_bits(actual, want, name)


@pytest.mark.parametrize(("op", "make"), WRONG)
def test_each_of_them_is_refused_when_checked(op: str, make: Callable[[], dict[str, Any]]) -> None:
    """The messages, and two sequences that write one slot: test_value_checks.py."""
    made = Call(op, make())
    before = made.copy()
    with registry.overrides(GDN_CHECK=1), pytest.raises(ValueError, match=f"^{op}: "):
        made.run()
    for (name, actual), (_, want) in zip(made.buffers(), before.buffers(), strict=True):
        assert_same_bits(actual, want, f"{name} after the refusal")


@pytest.mark.parametrize("name", cases.CALLS)
def test_check_lets_right_values_pass(name: str) -> None:
    made = cases.call(name)
    unchecked = made.copy()
    with registry.overrides(GDN_CHECK=1):
        results = made.run()
    for actual, expected in zip(results, unchecked.run(), strict=True):
        assert_same_bits(actual, expected, name)


def test_skipped_slots_may_repeat_and_read_only_ones_too() -> None:
    with registry.overrides(GDN_CHECK=1):
        assert not ops.gated_delta_rule_(**step(state_indices=index(-1, -1, 2)))[:2].any()
        made = step(state_indices=index(1, 1, 1))
        o, *_ = ops.gated_delta_rule_verify(**made)
    one_each = made | {"state": made["state"][1:2].expand(3, -1, -1, -1), "state_indices": None}
    assert_same_bits(o, ops.gated_delta_rule_verify(**one_each)[0], "o")


# The contract's words once more, each on its own


def test_a_skipped_sequence_has_zero_rows_and_leaves_its_slot() -> None:
    for skip in (-1, SLOTS, FAR):
        made = step(state_indices=far(2, skip, 0))
        before = made["state"].clone()
        o, k_log, d_log, g_log = ops.gated_delta_rule_verify(**made)
        for rows in (o, k_log, d_log, g_log):
            assert not rows[1].any()
            assert rows[0].any()
        assert not ops.gated_delta_rule_(**made)[1].any()
        assert_same_bits(made["state"][[1, 3, 4]], before[[1, 3, 4]], "other slots")
        y = ops.causal_conv1d_(**conv(state_indices=far(2, skip, 0)))
        assert not y[1].any()
        assert y[0].any()


def test_a_fresh_start_zeroes_the_slot_of_an_empty_sequence() -> None:
    fresh = torch.tensor([False, True])
    made = packed(3, state=cases.state_pool(HEADS, 3), state_indices=index(2, 0), cu_seqlens=index(0, 0, 3))
    other = made["state"][1].clone()
    ops.gated_delta_rule_(**made, has_initial_state=fresh)
    assert not made["state"][2].any()
    assert made["state"][0].any()
    assert_same_bits(made["state"][1], other, "another slot")
    window = conv(1, 3, state_indices=index(2, 0), cu_seqlens=index(0, 0, 3))
    ops.causal_conv1d_(**window, has_initial_state=fresh)
    assert not window["state"][2].any()


def test_rows_of_no_sequence_are_zero() -> None:
    o, _ = ops.gated_delta_rule(**packed(9, cu_seqlens=index(2, 5, 7)))
    assert not o[:, :2].any()
    assert not o[:, 7:].any()
    assert (o[:, 2:7] != 0).any(-1).all()
    o, states = ops.gated_delta_rule(**packed(9, cu_seqlens=index(9)))
    assert not o.any()
    assert states.shape == (0, HEADS.HV, HEADS.K, HEADS.V)


def test_a_pool_without_slots_skips_everything() -> None:
    made = step(state_indices=index(0, 1, -1)) | {"state": torch.zeros(0, HEADS.HV, HEADS.K, HEADS.V)}
    assert not ops.gated_delta_rule_(**made).any()
    for result in ops.gated_delta_rule_verify(**made):
        assert not result.any()


def test_a_path_ends_at_the_first_wrong_row() -> None:
    made = commit(accepted=index(4, 4, 4), path=index([2, 0, -1, 1], [3, 4, 0, 1], [9, 0, 1, 2]))
    short = made | {"accepted": index(2, 1, 0), "state": made["state"].clone()}
    ops.gated_delta_rule_commit_(**made)
    ops.gated_delta_rule_commit_(**short)
    assert_same_bits(made["state"], short["state"], "state")
