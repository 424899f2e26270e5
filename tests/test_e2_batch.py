"""E2: a sequence's bits depend on nothing but the sequence: not on batch, slot, packing, strides or dtype."""

from __future__ import annotations

from typing import Any

import cases
import pytest
import torch
from cases import BF16, DTYPES, F16, F32, Heads, cu_seqlens, index
from compare import assert_same_bits
from torch import Tensor

ops = torch.ops.strata_gdn
HEADS = [Heads(2, 2, 64, 64), Heads(2, 4, 128, 64), Heads(1, 3, 64, 128), Heads(1, 4, 64, 64)]
BATCHES = [(T, heads, DTYPES[i % 3]) for i, (T, heads) in enumerate(zip([1, 5, 17, 65], HEADS, strict=True))]


def rows_of(inputs: dict[str, Any], rows: slice, tokens: slice = slice(None)) -> dict[str, Any]:
    return {name: x[rows, tokens] for name, x in inputs.items()}


def packed_rows(inputs: dict[str, Tensor], lengths: list[int]) -> dict[str, Tensor]:
    """The first lengths[n] tokens of each row n, one after the other in one row."""
    return {name: torch.cat([x[n, :length] for n, length in enumerate(lengths)])[None] for name, x in inputs.items()}


@pytest.mark.parametrize(("tokens", "heads", "dtype"), BATCHES)
def test_alone_and_in_a_batch(tokens: int, heads: Heads, dtype: torch.dtype) -> None:
    batch = 5
    inputs, state = cases.recurrence(heads, batch, tokens, dtype), cases.state_pool(heads, batch)
    o, final = ops.gated_delta_rule(**inputs, initial_state=state)
    verified = ops.gated_delta_rule_verify(**inputs, state=state)
    for n in range(batch):
        one = slice(n, n + 1)
        alone_o, alone_final = ops.gated_delta_rule(**rows_of(inputs, one), initial_state=state[one])
        assert_same_bits(o[one], alone_o, f"o of {n}")
        assert_same_bits(final[one], alone_final, f"final_state of {n}")
        for together, alone in zip(
            verified, ops.gated_delta_rule_verify(**rows_of(inputs, one), state=state[one]), strict=True
        ):
            assert_same_bits(together[one], alone, f"verify of {n}")


@pytest.mark.parametrize(("tokens", "heads", "dtype"), BATCHES)
def test_a_sequence_among_others(tokens: int, heads: Heads, dtype: torch.dtype) -> None:
    """The same sequence at another place of another batch."""
    inputs, others = cases.recurrence(heads, 1, tokens, dtype), cases.recurrence(heads, 3, tokens, dtype)
    state, other_state = cases.state_pool(heads, 1), cases.state_pool(heads, 3)
    o, final = ops.gated_delta_rule(**inputs, initial_state=state)
    for place in range(4):
        mixed = {name: torch.cat([others[name][:place], x, others[name][place:]]) for name, x in inputs.items()}
        states = torch.cat([other_state[:place], state, other_state[place:]])
        mixed_o, mixed_final = ops.gated_delta_rule(**mixed, initial_state=states)
        assert_same_bits(mixed_o[place], o[0], f"o at {place}")
        assert_same_bits(mixed_final[place], final[0], f"final_state at {place}")


@pytest.mark.parametrize("layout", ["kv", "vk"])
@pytest.mark.parametrize(("tokens", "heads", "dtype"), BATCHES)
def test_slots(tokens: int, heads: Heads, dtype: torch.dtype, layout: str) -> None:
    batch, slots = 3, 7
    inputs, state = cases.recurrence(heads, batch, tokens, dtype), cases.state_pool(heads, batch, layout)
    expected = state.clone()
    o = ops.gated_delta_rule_(**inputs, state=expected, state_layout=layout)
    for _ in range(3):
        indices = torch.randperm(slots)[:batch]
        pool = cases.state_pool(heads, slots, layout)
        pool[indices] = state
        untouched = pool.clone()
        assert_same_bits(
            ops.gated_delta_rule_(**inputs, state=pool, state_indices=indices, state_layout=layout), o, "o"
        )
        assert_same_bits(pool[indices], expected, "state")
        rest = [s for s in range(slots) if s not in indices.tolist()]
        assert_same_bits(pool[rest], untouched[rest], "other slots")


@pytest.mark.parametrize("layout", ["kv", "vk"])
@pytest.mark.parametrize(("dtype", "heads"), [(F32, HEADS[1]), (BF16, HEADS[2]), (F16, HEADS[3])])
def test_padded_and_packed(dtype: torch.dtype, heads: Heads, layout: str) -> None:
    lengths = [9, 1, 0, 65, 17]
    inputs = cases.recurrence(heads, len(lengths), max(lengths), dtype)
    state = cases.state_pool(heads, len(lengths), layout)
    padded_o, _ = ops.gated_delta_rule(**inputs, initial_state=state, state_layout=layout)
    o, final = ops.gated_delta_rule(
        **packed_rows(inputs, lengths), initial_state=state, cu_seqlens=cu_seqlens(*lengths), state_layout=layout
    )
    begin = 0
    for n, length in enumerate(lengths):
        _, alone = ops.gated_delta_rule(
            **rows_of(inputs, slice(n, n + 1), slice(length)), initial_state=state[n : n + 1], state_layout=layout
        )
        assert_same_bits(o[0, begin : begin + length], padded_o[n, :length], f"o of {n}")
        assert_same_bits(final[n], alone[0], f"final_state of {n}")
        begin += length


@pytest.mark.parametrize(("dtype", "state_dtype", "window"), [(F32, F32, 3), (BF16, BF16, 3), (F16, F32, 5)])
def test_convolution(dtype: torch.dtype, state_dtype: torch.dtype, window: int) -> None:
    """Alone, in a batch, in another slot, padded or packed."""
    lengths, channels = [33, 1, 0, 5], 70
    made = cases.convolution(channels, 4, len(lengths), max(lengths), dtype)
    x, weights = made.pop("x"), made
    state = cases.window_pool(channels, len(lengths), window, state_dtype)
    padded, _ = ops.causal_conv1d(x, **weights, initial_state=state)
    rows = packed_rows({"x": x}, lengths)["x"]
    y, final = ops.causal_conv1d(rows, **weights, initial_state=state, cu_seqlens=cu_seqlens(*lengths))
    pool = cases.window_pool(channels, 6, window, state_dtype)
    indices = index(5, 0, 3, 1)
    pool[indices.long()] = state
    in_pool = ops.causal_conv1d_(rows, **weights, state=pool, state_indices=indices, cu_seqlens=cu_seqlens(*lengths))
    assert_same_bits(in_pool, y, "y with a pool")
    assert_same_bits(pool[indices.long()], final, "windows in a pool")
    begin = 0
    for n, length in enumerate(lengths):
        alone_y, alone = ops.causal_conv1d(x[n : n + 1, :length], **weights, initial_state=state[n : n + 1])
        assert_same_bits(y[0, begin : begin + length], padded[n, :length], f"y of {n}")
        assert_same_bits(y[0, begin : begin + length], alone_y[0], f"y of {n} alone")
        assert_same_bits(final[n], alone[0], f"window of {n}")
        begin += length


@pytest.mark.parametrize("layout", ["kv", "vk"])
@pytest.mark.parametrize(("tokens", "heads", "dtype"), BATCHES)
def test_strides(tokens: int, heads: Heads, dtype: torch.dtype, layout: str) -> None:
    """Views into packed rows and pools with gaps against contiguous tensors, and against a head-first memory order."""
    inputs, state = cases.recurrence(heads, 2, tokens, dtype), cases.state_pool(heads, 2, layout)
    options = {"state_layout": layout, "qk_l2norm": True}
    o, final = ops.gated_delta_rule(**inputs, initial_state=state, **options)
    contiguous = {name: x.contiguous() for name, x in inputs.items()}
    head_first = {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in inputs.items()}
    for other in (contiguous, head_first):
        other_o, other_final = ops.gated_delta_rule(**other, initial_state=state.contiguous(), **options)
        assert_same_bits(other_o, o, "o")
        assert_same_bits(other_final, final, "final_state")


def test_one_key_for_all_heads() -> None:
    """Read-only inputs may overlap themselves."""
    heads = Heads(3, 3, 64, 64)
    inputs = cases.recurrence(heads, 2, 5)
    inputs["k"] = inputs["k"][:, :, :1].expand(2, 5, 3, 64)
    inputs["g"] = inputs["g"][:1, :, :1].expand(2, 5, 3)
    o, final = ops.gated_delta_rule(**inputs)
    other_o, other_final = ops.gated_delta_rule(**{name: x.clone() for name, x in inputs.items()})
    assert_same_bits(o, other_o, "o")
    assert_same_bits(final, other_final, "final_state")


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_sixteen_bit_inputs_are_widened_exactly(dtype: torch.dtype) -> None:
    heads = HEADS[1]
    inputs, state = cases.recurrence(heads, 2, 17, dtype), cases.state_pool(heads, 2)
    wide = {name: x.float() for name, x in inputs.items()}
    o, final = ops.gated_delta_rule(**inputs, initial_state=state, qk_l2norm=True)
    wide_o, wide_final = ops.gated_delta_rule(**wide, initial_state=state, qk_l2norm=True)
    assert_same_bits(o, wide_o.to(dtype), "o")
    assert_same_bits(final, wide_final, "final_state")


@pytest.mark.parametrize("tokens", [1, 4])
def test_layer(tokens: int) -> None:
    batch, heads = 4, Heads(2, 6, 64, 64)
    arguments = cases.layer(heads, batch, tokens, slots=6) | {"state_indices": index(4, 0, -1, 2)}
    together = {name: x.clone() if isinstance(x, Tensor) else x for name, x in arguments.items()}
    y = ops.gdn_decode_layer_(**together)
    for n in range(batch):
        alone = {name: x.clone() if isinstance(x, Tensor) else x for name, x in arguments.items()}
        for name in ("qkv", "z", "a", "b", "state_indices"):
            alone[name] = arguments[name][n : n + 1]
        assert_same_bits(ops.gdn_decode_layer_(**alone), y[n : n + 1], f"y of {n}")
        slot = int(arguments["state_indices"][n])
        if slot >= 0:
            assert_same_bits(alone["state"][slot], together["state"][slot], f"state of {n}")
            assert_same_bits(alone["conv_state"][slot], together["conv_state"][slot], f"window of {n}")
