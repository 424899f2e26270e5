"""E7: NaN, infinity or a positive log decay in one (sequence, head) changes nothing in any other."""

from __future__ import annotations

import cases
import pytest
import torch
from cases import BF16, F16, F32, Call, Heads, index
from compare import assert_same_bits, different_bits
from torch import Tensor

N, T, BAD_SEQUENCE = 3, 6, 1
HEADS = Heads(2, 4, 64, 64)
POISONS = {"nan": torch.nan, "inf": torch.inf, "-inf": -torch.inf, "200": 200.0}


def spoilt_heads(argument: str, head: int, head_map: str) -> list[int]:
    """The value heads that read `head` of an argument."""
    if argument not in ("q", "k", "k_log"):
        return [head]
    grouped = {"grouped": lambda h: h // (HEADS.HV // HEADS.H), "tiled": lambda h: h % HEADS.H}[head_map]
    return [h for h in range(HEADS.HV) if grouped(h) == head]


def assert_only_heads_change(clean: Tensor, spoilt: Tensor, heads: list[int], head_dim: int, name: str) -> None:
    """[N, ...] with value heads in dimension head_dim; nothing but `heads` of BAD_SEQUENCE differs, and that does."""
    clean, spoilt = (x.transpose(1, head_dim).clone() for x in (clean, spoilt))
    changed = different_bits(spoilt[BAD_SEQUENCE, heads], clean[BAD_SEQUENCE, heads])
    assert changed, f"{name}: the poison has no effect, so the test says nothing"
    for x in (clean, spoilt):
        x[BAD_SEQUENCE, heads] = 0.0
    assert_same_bits(spoilt, clean, name)


def poisoned(call: Call, argument: str, where: tuple, value: float) -> Call:
    copy = call.copy()
    copy.arguments[argument][where] = value
    return copy


# argument, its element in BAD_SEQUENCE: a token in the middle, one head
RECURRENCE_ARGUMENTS = ["q", "k", "v", "g", "beta", "state"]


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("head_map", ["grouped", "tiled"])
@pytest.mark.parametrize("layout", ["kv", "vk"])
@pytest.mark.parametrize("argument", RECURRENCE_ARGUMENTS)
@pytest.mark.parametrize("op", ["gated_delta_rule_", "gated_delta_rule_verify"])
def test_recurrence(op: str, argument: str, layout: str, head_map: str, poison: str) -> None:
    made = Call(
        op,
        {
            **cases.recurrence(HEADS, N, T, F32),
            "state": cases.state_pool(HEADS, N, layout, gap=False),
            "state_layout": layout,
            "head_map": head_map,
        },
    )
    head = 1
    where = (BAD_SEQUENCE, head, 5) if argument == "state" else (BAD_SEQUENCE, 2, head)
    spoilt = poisoned(made, argument, where, POISONS[poison])
    clean = made.copy()
    heads = spoilt_heads(argument, head, head_map)
    results, clean_results = spoilt.run(), clean.run()
    assert_only_heads_change(clean_results[0], results[0], heads, 2, "o")
    if op == "gated_delta_rule_":
        if argument != "q":  # which the state does not depend on
            assert_only_heads_change(clean.arguments["state"], spoilt.arguments["state"], heads, 1, "state")
        return
    for name, got, want in zip(("k_log", "d_log", "g_log"), results[1:], clean_results[1:], strict=True):
        spoilt_ones = {"k_log": [head] if argument == "k" else [], "g_log": [head] if argument == "g" else []}
        if name == "d_log" and argument != "q":
            assert_only_heads_change(want, got, heads, 2, name)
        elif spoilt_ones.get(name):
            assert_only_heads_change(want, got, spoilt_ones[name], 2, name)
        else:
            assert_same_bits(got, want, name)


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("argument", ["q", "k", "v", "g", "beta"])
def test_packed_prompt(argument: str, poison: str) -> None:
    """Neighbours in one packed row, a normalisation included."""
    lengths = [9, 4, 11]
    begin, end = 9, 13
    made = Call(
        "gated_delta_rule",
        {
            **cases.recurrence(HEADS, 1, sum(lengths), BF16),
            "initial_state": cases.state_pool(HEADS, 3),
            "cu_seqlens": cases.cu_seqlens(*lengths),
            "qk_l2norm": True,
        },
    )
    o, final = made.copy().run()
    bad_o, bad_final = poisoned(made, argument, (0, begin + 1, 1, ...), POISONS[poison]).run()
    heads = spoilt_heads(argument, 1, "grouped")
    for x in (o, bad_o):
        x[:, begin:end, heads] = 0.0
    for x in (final, bad_final):
        x[1, heads] = 0.0
    assert_same_bits(bad_o, o, "o")
    assert_same_bits(bad_final, final, "final_state")


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("argument", ["k_log", "d_log", "g_log", "state"])
@pytest.mark.parametrize("op", ["gated_delta_rule_commit_", "gated_delta_rule_commit_layers_"])
def test_commit(op: str, argument: str, poison: str) -> None:
    one = {"state": cases.state_pool(HEADS, N, gap=False), **cases.logs(HEADS, N, T)}
    shared = {"accepted": index(T, T - 1, 1)}
    head = 1
    where = (BAD_SEQUENCE, head, 5) if argument == "state" else (BAD_SEQUENCE, 2, head)
    bad = {name: x.clone() for name, x in one.items()}
    bad[argument][where] = POISONS[poison]
    clean = {name: x.clone() for name, x in one.items()}
    if op.endswith("layers_"):
        for pools in (bad, clean):
            beside = {name: x.clone() for name, x in one.items()}
            getattr(torch.ops.strata_gdn, op)(*([pools[name], beside[name]] for name in one), **shared)
            if pools is clean:
                assert_same_bits(beside["state"], clean["state"], "the other layer")
    else:
        for pools in (bad, clean):
            getattr(torch.ops.strata_gdn, op)(**pools, **shared)
    heads = spoilt_heads(argument, head, "grouped")
    assert_only_heads_change(clean["state"], bad["state"], heads, 1, "state")


@pytest.mark.parametrize("poison", ["nan", "inf"])
def test_rejected_tokens_leave_no_trace(poison: str) -> None:
    """What was drafted after the accepted tokens may hold anything."""
    logs, state = cases.logs(HEADS, N, T), cases.state_pool(HEADS, N)
    expected, pool = state.clone(), state.clone()
    accepted = index(2, 0, 3)
    torch.ops.strata_gdn.gated_delta_rule_commit_(expected, **logs, accepted=accepted)
    for n, count in enumerate(accepted.tolist()):
        for log in logs.values():
            log[n, count:] = POISONS[poison]
    torch.ops.strata_gdn.gated_delta_rule_commit_(pool, **logs, accepted=accepted)
    assert_same_bits(pool, expected, "state")


def test_a_branch_of_a_tree_does_not_touch_its_siblings() -> None:
    parents = torch.tensor([[-1, 0, 0, 1, 2, -1]])
    bad_token, descendants = 1, [1, 3]
    inputs, state = cases.recurrence(HEADS, 1, 6), cases.state_pool(HEADS, 1)
    clean = torch.ops.strata_gdn.gated_delta_rule_verify(**inputs, state=state, parents=parents)
    inputs["v"][0, bad_token] = torch.nan
    spoilt = torch.ops.strata_gdn.gated_delta_rule_verify(**inputs, state=state, parents=parents)
    assert spoilt[0][0, descendants].isnan().all()
    others = [t for t in range(6) if t not in descendants]
    assert_same_bits(spoilt[0][:, others], clean[0][:, others], "o")
    x, window = torch.randn(1, 6, 70), torch.randn(1, 70, 3)
    weight, bias = torch.randn(70, 4), torch.randn(70)
    clean_y = torch.ops.strata_gdn.causal_conv1d_verify(x, weight, bias, window, parents=parents)
    x[0, bad_token] = torch.nan
    y = torch.ops.strata_gdn.causal_conv1d_verify(x, weight, bias, window, parents=parents)
    assert y[0, descendants].isnan().all()
    assert_same_bits(y[:, others], clean_y[:, others], "y")


@pytest.mark.parametrize("argument", ["x", "weight", "bias", "state"])
@pytest.mark.parametrize("op", ["causal_conv1d_", "causal_conv1d_verify"])
def test_convolution(op: str, argument: str) -> None:
    """A channel of one sequence; a channel's weights spoil that channel of all sequences, and no other channel."""
    channels, bad_channel = 70, 66
    made = Call(op, {**cases.convolution(channels, 4, N, T), "state": cases.window_pool(channels, N, 3, F32)})
    of_one_sequence = argument in ("x", "state")
    where = {
        "x": (BAD_SEQUENCE, 2, bad_channel), "state": (BAD_SEQUENCE, bad_channel, 2), "weight": (bad_channel, 1),
        "bias": (bad_channel,),
    }[argument]  # fmt: skip
    spoilt, clean = poisoned(made, argument, where, torch.nan), made.copy()
    (y,), (clean_y,) = spoilt.run(), clean.run()
    assert y[BAD_SEQUENCE, 2, bad_channel].isnan()
    sequences = [BAD_SEQUENCE] if of_one_sequence else list(range(N))
    for n in sequences:
        for x in (y, clean_y):
            x[n, :, bad_channel] = 0.0
        for call in (spoilt, clean):
            call.arguments["state"][n, bad_channel] = 0.0
    assert_same_bits(y, clean_y, "y")
    assert_same_bits(spoilt.arguments["state"], clean.arguments["state"], "window")


@pytest.mark.parametrize(("argument", "where"), [("o", (1, 1)), ("z", (1, 1, 3))])
def test_norm(argument: str, where: tuple) -> None:
    made = Call("gated_rms_norm", {"o": torch.randn(4, 3, 64), "z": torch.randn(4, 3, 64), "weight": torch.randn(64)})
    (clean,), (spoilt,) = made.copy().run(), poisoned(made, argument, where, torch.nan).run()
    assert spoilt[where].isnan().all()
    for x in (clean, spoilt):
        x[1, 1] = 0.0
    assert_same_bits(spoilt, clean, "y")


@pytest.mark.parametrize("argument", ["a", "b", "A_log", "dt_bias"])
def test_gates(argument: str) -> None:
    made = Call(
        "gdn_gates",
        {"a": torch.randn(4, 9), "b": torch.randn(4, 9), "A_log": torch.randn(9), "dt_bias": torch.randn(9)},
    )
    where = (2, 5) if argument in "ab" else (5,)
    results, expected = poisoned(made, argument, where, torch.nan).run(), made.copy().run()
    for name, got, want in zip(("g", "beta"), results, expected, strict=True):
        is_spoilt = (argument == "b") == (name == "beta")
        rows = slice(2, 3) if argument in "ab" else slice(None)
        assert bool(got[rows, 5].isnan().all()) == is_spoilt
        for x in (got, want):
            x[rows, 5] = 0.0
        assert_same_bits(got, want, name)


def test_qk_l2norm() -> None:
    made = Call("qk_l2norm", {"q": torch.randn(3, 4, 64), "k": torch.randn(3, 2, 64)})
    (q, k), (bad_q, bad_k) = made.copy().run(), poisoned(made, "q", (1, 2, 7), torch.nan).run()
    assert bad_q[1, 2].isnan().all()
    for x in (q, bad_q):
        x[1, 2] = 0.0
    assert_same_bits(bad_q, q, "q")
    assert_same_bits(bad_k, k, "k")


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("argument", ["qkv", "z", "a", "b", "conv_state", "state"])
def test_decode_layer(argument: str, dtype: torch.dtype) -> None:
    """One value head of one sequence; of qkv and conv_state: a channel of v."""
    head, token = 2, 1
    made = Call("gdn_decode_layer_", cases.layer(HEADS, N, 3, dtype, slots=N))
    channel = 2 * HEADS.H * HEADS.K + head * HEADS.V + 7
    where = {
        "qkv": (BAD_SEQUENCE, token, channel), "z": (BAD_SEQUENCE, token, head, 3), "a": (BAD_SEQUENCE, token, head),
        "b": (BAD_SEQUENCE, token, head), "conv_state": (BAD_SEQUENCE, channel, 2), "state": (BAD_SEQUENCE, head, 4, 9),
    }[argument]  # fmt: skip
    spoilt, clean = poisoned(made, argument, where, torch.nan), made.copy()
    (y,), (clean_y,) = spoilt.run(), clean.run()
    assert_only_heads_change(clean_y, y, [head], 2, "y")
    for call in (spoilt, clean):
        call.arguments["state"][BAD_SEQUENCE, head] = 0.0
        call.arguments["conv_state"][BAD_SEQUENCE, channel] = 0.0
    assert_same_bits(spoilt.arguments["state"], clean.arguments["state"], "state")
    assert_same_bits(spoilt.arguments["conv_state"], clean.arguments["conv_state"], "conv_state")
