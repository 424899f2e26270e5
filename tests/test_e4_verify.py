"""E4: verifying gives the bits of single steps, committing n tokens the states after n steps, for chains and trees."""

from __future__ import annotations

from typing import Any

import cases
import pytest
import torch
from cases import BF16, DTYPES, F16, F32, Heads, index
from compare import assert_same_bits
from torch import Tensor

ops = torch.ops.strata_gdn
LOGS = ("k_log", "d_log", "g_log")

# HV / H of 1, 2, 3, 4; long windows with small heads.
CHAINS = [
    (1, Heads(2, 2, 128, 128), BF16, "kv", "grouped"), (2, Heads(1, 2, 64, 128), F32, "vk", "grouped"),
    (3, Heads(2, 6, 128, 64), F16, "kv", "tiled"), (4, Heads(1, 4, 256, 64), BF16, "vk", "tiled"),
    (5, Heads(2, 2, 64, 256), F32, "kv", "grouped"), (6, Heads(2, 4, 64, 64), BF16, "vk", "tiled"),
    (7, Heads(1, 3, 128, 128), F32, "kv", "grouped"), (8, Heads(2, 8, 64, 64), BF16, "kv", "tiled"),
    (16, Heads(1, 2, 128, 64), F16, "vk", "grouped"), (64, Heads(1, 2, 64, 64), BF16, "kv", "grouped"),
    (128, Heads(1, 1, 64, 64), F32, "vk", "grouped"),
]  # fmt: skip


def token(inputs: dict[str, Tensor], t: int) -> dict[str, Tensor]:
    return {name: x[:, t : t + 1] for name, x in inputs.items()}


def steps(
    inputs: dict[str, Tensor], rows: list[int], state: Tensor, **options: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """Single steps over the given rows: the outputs, and the states after 0, 1, 2, ... of them."""
    pool, outputs, states = state.clone(), [], [state.clone()]
    for t in rows:
        outputs.append(ops.gated_delta_rule_(**token(inputs, t), state=pool, **options))
        states.append(pool.clone())
    return outputs, states


def lengths_to_try(tokens: int) -> list[int]:
    return list(range(tokens + 1)) if tokens <= 8 else [0, 1, tokens // 2, tokens - 1, tokens]


@pytest.mark.parametrize(("tokens", "heads", "dtype", "layout", "head_map"), CHAINS)
def test_chain(tokens: int, heads: Heads, dtype: torch.dtype, layout: str, head_map: str) -> None:
    batch = 2
    inputs, state = cases.recurrence(heads, batch, tokens, dtype), cases.state_pool(heads, batch, layout)
    where = {"state_layout": layout, "head_map": head_map}
    options = where | {"qk_l2norm": tokens % 2 == 0}
    before = state.clone()
    o, *logs = ops.gated_delta_rule_verify(**inputs, state=state, **options)
    assert_same_bits(state, before, "the state is only read")
    outputs, states = steps(inputs, list(range(tokens)), state, **options)
    assert_same_bits(o, torch.cat(outputs, 1), "o")
    for n in lengths_to_try(tokens):
        pool = state.clone()
        ops.gated_delta_rule_commit_(pool, *logs, index(n, tokens - n), **where)
        assert_same_bits(pool[0], states[n][0], f"state after {n}")
        assert_same_bits(pool[1], states[tokens - n][1], f"state after {tokens - n}")


@pytest.mark.parametrize(
    ("tokens", "heads", "dtype", "layout", "head_map"),
    [
        (4, Heads(2, 4, 64, 128), F32, "kv", "grouped"), (9, Heads(1, 3, 128, 64), BF16, "vk", "tiled"),
        (16, Heads(2, 8, 64, 64), F16, "kv", "tiled"), (33, Heads(1, 2, 64, 64), BF16, "vk", "grouped"),
        (128, Heads(1, 1, 64, 64), F32, "kv", "grouped"),
    ],
)  # fmt: skip
def test_every_path_of_a_tree(tokens: int, heads: Heads, dtype: torch.dtype, layout: str, head_map: str) -> None:
    inputs, state = cases.recurrence(heads, 1, tokens, dtype), cases.state_pool(heads, 1, layout)
    where = {"state_layout": layout, "head_map": head_map}
    parents = cases.tree(1, tokens)
    o, *logs = ops.gated_delta_rule_verify(**inputs, state=state, parents=parents, **where)
    leaves = sorted(set(range(tokens)) - set(parents[0].tolist()))
    assert len(leaves) > 1, "the tree branches"
    for leaf in leaves if tokens < 100 else leaves[:8]:
        rows = cases.path_to(parents[0], leaf)
        outputs, states = steps(inputs, rows, state, **where)
        path = index(cases.padded_path(rows, tokens))
        for i, row in enumerate(rows):
            assert_same_bits(o[:, row], outputs[i][:, 0], f"o of token {row}")
        for n in range(len(rows) + 1):
            pool = state.clone()
            ops.gated_delta_rule_commit_(pool, *logs, index(n), path=path, **where)
            assert_same_bits(pool, states[n], f"state after {n} tokens of {rows}")


def test_a_chain_as_a_tree() -> None:
    heads, tokens = Heads(2, 4, 64, 64), 9
    inputs, state = cases.recurrence(heads, 2, tokens, BF16), cases.state_pool(heads, 2)
    chain = torch.arange(-1, tokens - 1).expand(2, tokens)
    expected = ops.gated_delta_rule_verify(**inputs, state=state)
    for actual, want in zip(ops.gated_delta_rule_verify(**inputs, state=state, parents=chain), expected, strict=True):
        assert_same_bits(actual, want, "verify")


@pytest.mark.parametrize(
    ("dtype", "state_dtype", "width", "window"),
    [(F32, F32, 4, 3), (BF16, BF16, 4, 3), (F16, F32, 2, 1), (BF16, F32, 4, 7), (F32, F32, 1, 2)],
)
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8, 16])
def test_convolution_chain(tokens: int, dtype: torch.dtype, state_dtype: torch.dtype, width: int, window: int) -> None:
    """accepted = T, and accepted >= W, are among the lengths."""
    channels, batch = 70, 2
    made = cases.convolution(channels, width, batch, tokens, dtype)
    x, weights = made.pop("x"), made
    state = cases.window_pool(channels, batch, window, state_dtype)
    before = state.clone()
    y = ops.causal_conv1d_verify(x, **weights, state=state)
    assert_same_bits(state, before, "the window is only read")
    pool, windows, outputs = state.clone(), [state.clone()], []
    for t in range(tokens):
        outputs.append(ops.causal_conv1d_(x[:, t : t + 1], **weights, state=pool))
        windows.append(pool.clone())
    assert_same_bits(y, torch.cat(outputs, 1), "y")
    for n in range(tokens + 1):
        pool = state.clone()
        ops.causal_conv1d_commit_(pool, x, index(n, tokens - n))
        assert_same_bits(pool[0], windows[n][0], f"window after {n}")
        assert_same_bits(pool[1], windows[tokens - n][1], f"window after {tokens - n}")


@pytest.mark.parametrize(
    ("dtype", "state_dtype", "width", "window"),
    [(F32, F32, 4, 3), (BF16, BF16, 4, 3), (F16, F32, 3, 6), (BF16, F32, 1, 1)],
)
@pytest.mark.parametrize("tokens", [3, 9, 24])
def test_convolution_tree(tokens: int, dtype: torch.dtype, state_dtype: torch.dtype, width: int, window: int) -> None:
    channels = 70
    made = cases.convolution(channels, width, 1, tokens, dtype)
    x, weights = made.pop("x"), made
    state, parents = cases.window_pool(channels, 1, window, state_dtype), cases.tree(1, tokens)
    y = ops.causal_conv1d_verify(x, **weights, state=state, parents=parents)
    for leaf in range(tokens):
        rows, pool = cases.path_to(parents[0], leaf), state.clone()
        for row in rows:
            stepped = ops.causal_conv1d_(x[:, row : row + 1], **weights, state=pool)
        assert_same_bits(y[:, leaf : leaf + 1], stepped, f"y of token {leaf}")
        committed = state.clone()
        ops.causal_conv1d_commit_(committed, x, index(len(rows)), path=index(cases.padded_path(rows, tokens)))
        assert_same_bits(committed, pool, f"window after {rows}")


@pytest.mark.parametrize("branches", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize(("before", "tokens", "layout"), [(1, 1, "kv"), (5, 3, "vk"), (8, 8, "kv"), (2, 16, "vk")])
def test_commit_and_verify_in_one(before: int, tokens: int, layout: str, branches: bool) -> None:
    heads, batch = Heads(2, 4, 64, 128), 3
    options = {"state_layout": layout, "head_map": "tiled"}
    last, state = cases.recurrence(heads, batch, before, BF16), cases.state_pool(heads, 4, layout)
    slots = {"state_indices": index(3, 0, -1)}
    _, *logs = ops.gated_delta_rule_verify(**last, state=state, **slots, **options)
    log = dict(zip(LOGS, logs, strict=True))
    window = {
        **cases.recurrence(heads, batch, tokens, BF16), **slots,
        "parents": cases.tree(batch, tokens) if branches else None,
    }  # fmt: skip
    for accepted in ((0, before, 1), (before, 0, 0)):
        apart, together = state.clone(), state.clone()
        ops.gated_delta_rule_commit_(apart, **log, accepted=index(*accepted), **slots, **options)
        expected = ops.gated_delta_rule_verify(**window, state=apart, **options)
        actual = ops.gated_delta_rule_commit_verify_(together, **log, accepted=index(*accepted), **window, **options)
        assert_same_bits(together, apart, "state")
        for a, e in zip(actual, expected, strict=True):
            assert_same_bits(a, e, "verify")


@pytest.mark.parametrize("branches", [False, True], ids=["chain", "path"])
@pytest.mark.parametrize("layers", [1, 2, 7])
def test_all_layers_at_once(layers: int, branches: bool) -> None:
    heads, batch, tokens, channels = Heads(1, 2, 64, 64), 3, 5, 70
    choice = cases.window_choice(batch, tokens, branches) | {"state_indices": index(2, 0, 3)}
    logs = [cases.logs(heads, batch, tokens) for _ in range(layers)]
    states = [cases.state_pool(heads, 4) for _ in range(layers)]
    xs = [torch.randn(batch, tokens, channels).to(BF16) for _ in range(layers)]
    windows = [cases.window_pool(channels, 4, 3, BF16) for _ in range(layers)]
    one_by_one, one_window = [state.clone() for state in states], [window.clone() for window in windows]
    for state, log, window, x in zip(one_by_one, logs, one_window, xs, strict=True):
        ops.gated_delta_rule_commit_(state, **log, **choice)
        ops.causal_conv1d_commit_(window, x, **choice)
    ops.gated_delta_rule_commit_layers_(states, *([log[name] for log in logs] for name in LOGS), **choice)
    ops.causal_conv1d_commit_layers_(windows, xs, **choice)
    for actual, expected in zip(states + windows, one_by_one + one_window, strict=True):
        assert_same_bits(actual, expected, "layer")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 4, 8])
def test_layer(tokens: int, dtype: torch.dtype) -> None:
    """gdn_verify_layer and the two commits against gdn_decode_layer_ a token at a time."""
    heads, batch = Heads(1, 3, 64, 64), 2
    arguments = cases.layer(heads, batch, tokens, dtype, slots=batch)
    y, *logs = ops.gdn_verify_layer(**arguments)
    windows, states = arguments.pop("conv_state"), arguments.pop("state")
    pools = {"conv_state": windows.clone(), "state": states.clone()}
    for n in range(tokens + 1):
        window, state = windows.clone(), states.clone()
        ops.gated_delta_rule_commit_(state, *logs, index(n, n))
        ops.causal_conv1d_commit_(window, arguments["qkv"], index(n, n))
        assert_same_bits(state, pools["state"], f"state after {n}")
        assert_same_bits(window, pools["conv_state"], f"window after {n}")
        if n < tokens:
            one = {name: arguments[name][:, n : n + 1] for name in ("qkv", "z", "a", "b")}
            stepped = ops.gdn_decode_layer_(**arguments | one, **pools)
            assert_same_bits(y[:, n : n + 1], stepped, f"y of token {n}")


def test_layer_tree() -> None:
    heads, tokens = Heads(1, 2, 64, 64), 8
    arguments = cases.layer(heads, 1, tokens, slots=1)
    parents = cases.tree(1, tokens)
    y, *logs = ops.gdn_verify_layer(**arguments, parents=parents)
    windows, states = arguments.pop("conv_state"), arguments.pop("state")
    for leaf in range(tokens):
        pools = {"conv_state": windows.clone(), "state": states.clone()}
        rows = cases.path_to(parents[0], leaf)
        for row in rows:
            one = {name: arguments[name][:, row : row + 1] for name in ("qkv", "z", "a", "b")}
            stepped = ops.gdn_decode_layer_(**arguments | one, **pools)
        assert_same_bits(y[:, leaf : leaf + 1], stepped, f"y of token {leaf}")
        window, state = windows.clone(), states.clone()
        choice = {"accepted": index(len(rows)), "path": index(cases.padded_path(rows, tokens))}
        ops.gated_delta_rule_commit_(state, *logs, **choice)
        ops.causal_conv1d_commit_(window, arguments["qkv"], **choice)
        assert_same_bits(state, pools["state"], f"state after {rows}")
        assert_same_bits(window, pools["conv_state"], f"window after {rows}")
