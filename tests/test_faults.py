"""Faults that users of other implementations reported: each is a test here. (Those of one GPU platform or of graph
capture are with the GPU kernels.)"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import cases
import pytest
import torch
import torch.utils.deterministic
from cases import BF16, F16, F32, Heads, cu_seqlens, index
from compare import assert_bound_can_fail, assert_close_to_float64, assert_same_bits, different_bits
from torch import Tensor

import strata_gdn
from strata_gdn import reference

ops = torch.ops.strata_gdn
ARITHMETIC = 1e-5  # of the largest value, in float32


def close_to_reference(
    inputs: dict[str, Tensor],
    state: Tensor | None = None,
    *,
    bound: float = ARITHMETIC,
    chunk_size: int | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """The op's results, after a comparison with the float64 recurrence (in chunks where that is much faster)."""
    results = ops.gated_delta_rule(**inputs, initial_state=state, **options)
    expected = reference.gated_delta_rule(**inputs, initial_state=state, chunk_size=chunk_size, **options)
    for name, actual, want in zip(("o", "final_state"), results, expected, strict=True):
        assert want.isfinite().all(), "the case itself is sound"
        assert_close_to_float64(actual, want, bound, name)
        assert_bound_can_fail(actual, want, bound)
    return results


# Numerics


@pytest.mark.parametrize("beta", [None, 1.0])
def test_no_decay_over_a_long_prompt(beta: float | None) -> None:
    heads = Heads(1, 2, 64, 64)
    inputs = cases.recurrence(heads, 1, 1000)
    inputs["g"] = torch.zeros(1, 1000, 2)
    if beta is not None:
        inputs["beta"] = torch.full((1, 1000, 2), beta)
    close_to_reference(inputs, cases.state_pool(heads, 1), qk_l2norm=True, chunk_size=50)


@pytest.mark.parametrize("tokens", [17, 64, 65, 129])
@pytest.mark.parametrize(
    "decay",
    [-316.0, -104.5, -16.5, -2.0, [-316.0, 0.0], [0.0, 0.0, -300.0], [-1e-30, -90.0], [-torch.inf, -1.0]],
    ids=str,
)
def test_strong_decay(decay: float | list[float], tokens: int) -> None:
    """Sums far below -1000, factors that would overflow as e^(-sum), and steps whose differences change sign."""
    heads = Heads(1, 2, 64, 64)
    inputs = cases.recurrence(heads, 1, tokens)
    pattern = torch.tensor(decay).reshape(-1)
    inputs["g"] = pattern.repeat(tokens)[:tokens].reshape(1, tokens, 1).expand(1, tokens, 2)
    close_to_reference(inputs, cases.state_pool(heads, 1))


@pytest.mark.parametrize("A_log", [88.0, 89.0, 100.0, 3e38, torch.inf])
def test_infinite_rate_of_no_time(A_log: float) -> None:
    """softplus(-200) is 0: the decay is +0, not inf * 0."""
    g, beta = ops.gdn_gates(torch.full((3, 2), -200.0), torch.zeros(3, 2), torch.full((2,), A_log), torch.zeros(2))
    assert_same_bits(g, torch.zeros(3, 2), "g")
    assert_same_bits(beta, torch.full((3, 2), 0.5), "beta")


def test_infinite_rate_forgets() -> None:
    g, _ = ops.gdn_gates(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2), torch.full((2,), 100.0), torch.zeros(2))
    assert_same_bits(g, torch.full((1, 2, 2), -torch.inf), "g")
    heads = Heads(1, 2, 64, 64)
    inputs = cases.recurrence(heads, 1, 2) | {"g": g}
    o, final = ops.gated_delta_rule(**inputs, initial_state=cases.state_pool(heads, 1))
    fresh_o, fresh = ops.gated_delta_rule(**inputs)
    assert o.isfinite().all()
    assert_close_to_float64(o, fresh_o.double(), 1e-6, "o")
    assert_close_to_float64(final, fresh.double(), 1e-6, "final_state")


@pytest.mark.parametrize("tokens", [9, 64, 257])
def test_identical_keys_with_full_steps(tokens: int) -> None:
    """One key for all tokens, beta = 1 and no decay: every token overwrites the last one."""
    heads = Heads(1, 1, 64, 64)
    inputs = cases.recurrence(heads, 1, tokens)
    inputs["k"] = inputs["k"][:, :1].expand(1, tokens, 1, 64)
    inputs |= {"beta": torch.ones(1, tokens, 1), "g": torch.zeros(1, tokens, 1)}
    _, final = close_to_reference(inputs, qk_l2norm=True)
    key = reference.qk_l2norm(inputs["k"], inputs["k"])[1][0, -1, 0]
    recalled = key @ final[0, 0].double()
    assert_close_to_float64(recalled, inputs["v"][0, -1, 0].double(), 1e-4, "the last value under the key")


def test_keys_that_are_not_normalised() -> None:
    """|k|^2 near 64 and the same two keys over and over: the state grows by some such factor every other token."""
    heads = Heads(1, 2, 64, 64)
    inputs = cases.recurrence(heads, 1, 10, gates="slow")
    inputs["k"] = (inputs["k"][:, :2] * 8).repeat(1, 5, 1, 1)
    _, final = close_to_reference(inputs, cases.state_pool(heads, 1))
    assert final.abs().max() > 1e3, "it does grow"


@pytest.mark.parametrize(
    ("dtype", "bound"), [(F32, ARITHMETIC), (BF16, 2.0**-8 + ARITHMETIC), (F16, 2.0**-11 + ARITHMETIC)]
)
def test_large_values(dtype: torch.dtype, bound: float) -> None:
    heads = Heads(1, 2, 128, 64)
    inputs = cases.recurrence(heads, 1, 257, dtype, gates="slow")
    inputs["v"] = (50 * torch.rand(1, 257, 2, 64) - 25).to(dtype)
    close_to_reference(inputs, bound=bound, qk_l2norm=True)


def test_the_state_does_not_drift_over_100_000_tokens() -> None:
    """In ten pieces: what is carried from one to the next is float32 too."""
    heads, tokens, piece = Heads(1, 1, 64, 64), 100_000, 10_000
    inputs = cases.recurrence(heads, 1, tokens, BF16, gates="slow")
    expected_o, expected = reference.gated_delta_rule(**inputs, qk_l2norm=True, chunk_size=100)
    pool, outputs = torch.zeros(1, 1, 64, 64), []
    for begin, end in pairwise(range(0, tokens + 1, piece)):
        part = {name: x[:, begin:end] for name, x in inputs.items()}
        outputs.append(ops.gated_delta_rule_(**part, state=pool, qk_l2norm=True))
    assert_close_to_float64(pool, expected, ARITHMETIC, "state")
    assert_close_to_float64(torch.cat(outputs, 1), expected_o, 2.0**-8 + ARITHMETIC, "o")
    assert_bound_can_fail(pool, expected, ARITHMETIC)


def test_nan_in_skipped_and_uncovered_rows_does_not_spread() -> None:
    heads = Heads(1, 2, 64, 64)
    inputs, state = cases.recurrence(heads, 3, 5), cases.state_pool(heads, 3)
    clean, expected = state.clone(), state.clone()
    where = {"state_indices": index(2, -1, 0)}
    o = ops.gated_delta_rule_(**inputs, state=expected, **where)
    for x in inputs.values():
        x[1] = torch.nan
    assert_same_bits(ops.gated_delta_rule_(**inputs, state=clean, **where), o, "o")
    assert not o[1].any()
    assert_same_bits(clean, expected, "state")
    rows = cases.recurrence(heads, 1, 9)
    for x in rows.values():
        x[:, 6:] = torch.nan
    o, final = ops.gated_delta_rule(**rows, cu_seqlens=index(0, 4, 6))
    assert not o[:, 6:].any()
    assert o.isfinite().all()
    assert final.isfinite().all()


# Shapes


@pytest.mark.parametrize("lengths", [[0], [0, 0, 0], [3, 0, 0, 4], [0, 7], [7, 0]], ids=str)
def test_repeated_bounds(lengths: list[int]) -> None:
    """An empty sequence keeps its state."""
    heads = Heads(1, 2, 64, 64)
    state = cases.state_pool(heads, len(lengths))
    inputs, bounds = cases.recurrence(heads, 1, sum(lengths)), cu_seqlens(*lengths)
    pool = state.clone()
    o = ops.gated_delta_rule_(**inputs, state=pool, cu_seqlens=bounds)
    assert o.isfinite().all()
    assert_same_bits(ops.gated_delta_rule(**inputs, initial_state=state, cu_seqlens=bounds)[1], pool, "final_state")
    x = cases.convolution(70, 4, 1, sum(lengths))
    window = cases.window_pool(70, len(lengths), 3, F32)
    _, final_window = ops.causal_conv1d(**x, initial_state=window, cu_seqlens=bounds)
    for n, length in enumerate(lengths):
        for name, before, after in (("state", state, pool), ("window", window, final_window)):
            if length == 0:
                assert_same_bits(after[n], before[n], name)
            else:
                assert different_bits(after[n], before[n])


def test_one_token_through_the_prompt_op() -> None:
    for precision in ("auto", "exact"):
        heads = Heads(2, 4, 128, 128)
        inputs, state = cases.recurrence(heads, 2, 1), cases.state_pool(heads, 2)
        close_to_reference(inputs, state)
        o, _ = ops.gated_delta_rule(**inputs, initial_state=state, precision=precision)
        assert_same_bits(ops.gated_delta_rule_(**inputs, state=state), o, "o")


@pytest.mark.parametrize(("heads", "symbol"), [(Heads(1, 1, 48, 64), "K"), (Heads(1, 1, 64, 48), "V")])
def test_head_dimension_48_is_refused(heads: Heads, symbol: str) -> None:
    with pytest.raises(ValueError, match=rf"{symbol}.* 64, 128 or 256.*48"):
        ops.gated_delta_rule(**cases.recurrence(heads, 1, 3))


@pytest.mark.parametrize("tokens", [63, 65, 127, 129, 193, 255])
def test_tails_of_chunks(tokens: int) -> None:
    heads = Heads(1, 2, 64, 64)
    close_to_reference(cases.recurrence(heads, 1, tokens), cases.state_pool(heads, 1))


def test_batch_of_none() -> None:
    heads = Heads(2, 4, 64, 128)
    inputs, nobody = cases.recurrence(heads, 0, 5), cases.state_pool(heads, 0)
    o, final = ops.gated_delta_rule(**inputs)
    assert (o.shape, final.shape) == ((0, 5, 4, 128), (0, 4, 64, 128))
    o, *logs = ops.gated_delta_rule_verify(**inputs, state=nobody)
    assert [tuple(x.shape) for x in (o, *logs)] == [(0, 5, 4, 128), (0, 5, 2, 64), (0, 5, 4, 128), (0, 5, 4)]
    none = torch.zeros(0, dtype=torch.int32)
    ops.gated_delta_rule_commit_(nobody, *logs, none)
    ops.gated_delta_rule_commit_layers_([nobody], *([x] for x in logs), none)
    y, window = ops.causal_conv1d(**cases.convolution(70, 4, 0, 5))
    assert (y.shape, window.shape) == ((0, 5, 70), (0, 70, 3))
    ops.causal_conv1d_commit_(window, y, none)
    layer = cases.layer(heads, 0, 3, slots=2)
    assert ops.gdn_decode_layer_(**layer).shape == (0, 3, 4, 128)
    assert ops.gdn_verify_layer(**layer)[0].shape == (0, 3, 4, 128)


def test_every_input_a_view() -> None:
    """q, k, v, a, b and the gates in the odd memory orders that projections and transposes leave behind."""
    heads, tokens = Heads(2, 4, 64, 64), 7
    inputs = cases.recurrence(heads, 2, tokens)
    backing = {name: x.permute(2, 0, 1, *range(3, x.dim())).contiguous() for name, x in inputs.items()}
    views = {name: x.permute(1, 2, 0, *range(3, x.dim())) for name, x in backing.items()}
    for actual, expected in zip(
        ops.gated_delta_rule(**views), ops.gated_delta_rule(**{n: x.clone() for n, x in inputs.items()}), strict=True
    ):
        assert_same_bits(actual, expected, "gated_delta_rule")
    a, b = torch.randn(4, 7, 2), torch.randn(7, 2, 12)
    A_log, dt_bias = torch.randn(4), torch.randn(4)
    views = (a.permute(2, 1, 0), b.transpose(0, 1)[..., ::3])
    for actual, expected in zip(
        ops.gdn_gates(*views, A_log, dt_bias),
        ops.gdn_gates(*(x.contiguous() for x in views), A_log, dt_bias),
        strict=True,
    ):
        assert_same_bits(actual, expected, "gdn_gates")


def test_a_far_slot_of_a_pool() -> None:
    """Slot 4099, with logs and outputs of two rows: none of them may be indexed by the slot."""
    heads, slots = Heads(1, 1, 64, 64), 4100
    inputs, pool = cases.recurrence(heads, 2, 3), torch.zeros(slots, 1, 64, 64)
    near = cases.state_pool(heads, 2)
    where = {"state_indices": index(4099, 4096)}
    pool[[4099, 4096]] = near
    expected = ops.gated_delta_rule_verify(**inputs, state=near)
    for actual, want in zip(ops.gated_delta_rule_verify(**inputs, state=pool, **where), expected, strict=True):
        assert_same_bits(actual, want, "verify")
    ops.gated_delta_rule_commit_(pool, *expected[1:], index(3, 2), **where)
    ops.gated_delta_rule_commit_(near, *expected[1:], index(3, 2))
    assert_same_bits(pool[[4099, 4096]], near, "state")
    assert pool.count_nonzero() == near.count_nonzero(), "another slot is touched"


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def untouched_memory() -> Iterator[None]:
    """Tensors of more than 2^31 elements, of which the system gives only the pages that are used."""
    gibibytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    if gibibytes < 12 or not Path("/proc/self/statm").exists():
        pytest.skip("needs Linux and 12 GiB of memory")
    torch.utils.deterministic.fill_uninitialized_memory = False
    before = _resident_bytes()
    yield
    assert _resident_bytes() - before < 2**28, "the whole pool was touched"


@pytest.mark.parametrize("layout", ["kv", "vk"])
def test_a_pool_of_more_than_2_31_elements(untouched_memory: None, layout: str) -> None:
    heads = Heads(1, 2, 256, 256)
    slots = 2**31 // (2 * 256 * 256) + 3
    inputs, near = cases.recurrence(heads, 1, 2), cases.state_pool(heads, 1, layout)
    pool = torch.empty(slots, 2, 256, 256)
    assert pool.numel() > 2**31
    pool[-1] = near[0]
    where = {"state_indices": index(slots - 1)}
    options = {"state_layout": layout}
    expected = ops.gated_delta_rule_verify(**inputs, state=near, **options)
    for actual, want in zip(
        ops.gated_delta_rule_verify(**inputs, state=pool, **where, **options), expected, strict=True
    ):
        assert_same_bits(actual, want, "verify")
    for state, slot in ((pool, where), (near, {})):
        ops.gated_delta_rule_commit_(state, *expected[1:], index(2), **slot, **options)
        ops.gated_delta_rule_(**inputs, state=state, **slot, **options)
    assert_same_bits(pool[-1], near[0], "state")


def test_windows_and_rows_beyond_2_31_elements(untouched_memory: None) -> None:
    """A pool of windows with that many elements; rows of x, q, k and v that far apart."""
    channels, slots = 4096, 2**31 // (4096 * 3) + 3
    inputs = cases.convolution(channels, 4, 1, 5)
    pool, near = torch.empty(slots, channels, 3), torch.randn(1, channels, 3)
    assert pool.numel() > 2**31
    pool[-1] = near[0]
    y = ops.causal_conv1d_(**inputs, state=pool, state_indices=index(slots - 1))
    assert_same_bits(y, ops.causal_conv1d_(**inputs, state=near), "y")
    assert_same_bits(pool[-1], near[0], "window")
    far_rows = torch.empty(3 * 2**30, dtype=BF16).view(3, 2**30)
    heads = Heads(1, 1, 64, 64)
    far_rows[:, : heads.channels] = torch.randn(3, heads.channels)
    mixed = far_rows[None, :, : heads.channels]
    gates = {"g": cases.log_decay((1, 3, 1)), "beta": torch.rand(1, 3, 1)}
    near_mixed = mixed.clone(memory_format=torch.contiguous_format)
    for actual, expected in zip(
        ops.gated_delta_rule(**cases.split(mixed, heads), **gates),
        ops.gated_delta_rule(**cases.split(near_mixed, heads), **gates),
        strict=True,
    ):
        assert_same_bits(actual, expected, "gated_delta_rule")
    weight = torch.randn(heads.channels, 4)
    assert_same_bits(ops.causal_conv1d(mixed, weight)[0], ops.causal_conv1d(near_mixed, weight)[0], "y")


def test_skipping_in_every_op() -> None:
    """Slot -1: the pools keep all their bits."""
    heads, batch = Heads(1, 2, 64, 64), 2
    skip = {"state_indices": index(-1, -1)}
    inputs, state = cases.recurrence(heads, batch, 3), cases.state_pool(heads, 3)
    x, window = cases.convolution(70, 4, batch, 3), cases.window_pool(70, 3, 3, F32)
    logs, accepted = cases.logs(heads, batch, 3), index(3, 3)
    layer = cases.layer(heads, batch, 3, slots=3)
    pools = [state, window, layer["state"], layer["conv_state"]]
    before = [pool.clone() for pool in pools]
    ops.gated_delta_rule_(**inputs, state=state, **skip)
    ops.gated_delta_rule_commit_(state, **logs, accepted=accepted, **skip)
    ops.gated_delta_rule_commit_layers_([state], *([log] for log in logs.values()), accepted, **skip)
    ops.gated_delta_rule_commit_verify_(state, **logs, accepted=accepted, **inputs, **skip)
    ops.causal_conv1d_(**x, state=window, **skip)
    ops.causal_conv1d_commit_(window, x["x"], accepted, **skip)
    ops.causal_conv1d_commit_layers_([window], [x["x"]], accepted, **skip)
    ops.gdn_decode_layer_(**layer, **skip)
    for pool, expected in zip(pools, before, strict=True):
        assert_same_bits(pool, expected, "pool")


@pytest.mark.parametrize(("head_map", "key_head_of"), [("grouped", [0, 0, 0, 1, 1, 1]), ("tiled", [0, 1, 0, 1, 0, 1])])
def test_head_maps_are_not_swapped(head_map: str, key_head_of: list[int]) -> None:
    heads = Heads(2, 6, 64, 64)
    inputs, state = cases.recurrence(heads, 2, 5), cases.state_pool(heads, 2)
    each = inputs | {"q": inputs["q"][:, :, key_head_of], "k": inputs["k"][:, :, key_head_of]}
    expected = ops.gated_delta_rule(**each, initial_state=state)
    actual = ops.gated_delta_rule(**inputs, initial_state=state, head_map=head_map)
    other = ops.gated_delta_rule(
        **inputs, initial_state=state, head_map={"grouped": "tiled", "tiled": "grouped"}[head_map]
    )
    for a, e, o in zip(actual, expected, other, strict=True):
        assert_same_bits(a, e, head_map)
        assert different_bits(a, o), "the other map gives something else"


# Speculation


@pytest.mark.parametrize("accepted", [0, 1, 3, 4, 5, 8])
def test_rollback_of_a_round(accepted: int) -> None:
    """Eight drafts verified, `accepted` kept (all of them, and at least W, among these), other tokens after that."""
    heads, batch, tokens = Heads(1, 2, 64, 64), 2, 8
    layer = cases.layer(heads, batch, tokens, slots=4)
    layer["state_indices"] = index(3, 1)
    after = {name: layer[name].flip(1) for name in ("qkv", "z", "a", "b")}
    pools = ("conv_state", "state")
    plain = layer | {name: layer[name].clone() for name in pools}
    if accepted:
        kept = {name: layer[name][:, :accepted] for name in after}
        ops.gdn_decode_layer_(**plain | kept)
    expected = ops.gdn_decode_layer_(**plain | after)
    _, *logs = ops.gdn_verify_layer(**layer)
    counts = index(accepted, accepted)
    ops.gated_delta_rule_commit_(layer["state"], *logs, counts, layer["state_indices"])
    ops.causal_conv1d_commit_(layer["conv_state"], layer["qkv"], counts, layer["state_indices"])
    assert_same_bits(ops.gdn_decode_layer_(**layer | after), expected, "y after the rollback")
    for name in pools:
        assert_same_bits(layer[name], plain[name], name)


def test_replay_goes_to_its_own_slots_and_layer() -> None:
    heads, batch, tokens, layers = Heads(1, 2, 64, 64), 2, 4, 3
    states = [cases.state_pool(heads, 5) for _ in range(layers)]
    inputs = [cases.recurrence(heads, batch, tokens) for _ in range(layers)]
    slots = index(4, 2)
    verified = [
        ops.gated_delta_rule_verify(**x, state=state, state_indices=slots)
        for x, state in zip(inputs, states, strict=True)
    ]
    stepped = [state.clone() for state in states]
    for x, state in zip(inputs, stepped, strict=True):
        ops.gated_delta_rule_(**{name: y[:, :3] for name, y in x.items()}, state=state, state_indices=slots)
    ops.gated_delta_rule_commit_layers_(
        states, *([v[i] for v in verified] for i in (1, 2, 3)), index(3, 3), state_indices=slots
    )
    for state, expected in zip(states, stepped, strict=True):
        assert_same_bits(state, expected, "state")


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_sixteen_bit_states_are_refused(dtype: torch.dtype) -> None:
    heads = Heads(1, 2, 64, 64)
    inputs, state = cases.recurrence(heads, 1, 3, BF16), cases.state_pool(heads, 1).to(dtype)
    for op in (ops.gated_delta_rule_, ops.gated_delta_rule_verify):
        with pytest.raises(ValueError, match="state must be float32"):
            op(**inputs, state=state)
    with pytest.raises(ValueError, match="state must be float32"):
        ops.gated_delta_rule_commit_(state, **cases.logs(heads, 1, 3), accepted=index(1))


# Determinism


def test_long_prompts_are_not_split_by_their_length_or_company(threads: None) -> None:
    heads, tokens = Heads(1, 1, 64, 64), 4099
    long, short = (cases.recurrence(heads, 1, T, BF16) for T in (tokens, 40))
    alone = ops.gated_delta_rule(**long)
    both = {name: torch.cat([long[name], short[name]], 1) for name in long}
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        o, final = ops.gated_delta_rule(**both, cu_seqlens=cu_seqlens(tokens, 40))
        assert_same_bits(o[:, :tokens], alone[0], "o")
        assert_same_bits(final[:1], alone[1], "final_state")
        prefix = ops.gated_delta_rule(**{name: x[:, :1000] for name, x in long.items()})
        assert_same_bits(prefix[0], alone[0][:, :1000], "a prompt's beginning")


# Platforms


@pytest.mark.parametrize("arch", ["sm_75", "sm_120", "sm_121", "gfx1030", "gfx1151", "gfx1201"])
def test_import_and_cpu_ops_on_any_card(arch: str) -> None:
    """Nothing is dispatched at import, and a card's architecture does not change what CPU tensors get."""
    code = (
        "import torch, strata_gdn; x = torch.ones(1, 2, 1, 64); g = torch.zeros(1, 2, 1);"
        "o, S = strata_gdn.gated_delta_rule(x, x, x, g, g + 0.5); assert o.isfinite().all() and o.any()"
    )
    folder = Path(strata_gdn.__file__).parent.parent
    environment = os.environ | {"GDN_EMULATE": arch, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
