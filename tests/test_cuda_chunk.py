"""chunk_fp32 on a GPU: E2, E3, E5, E6 and E7 by its own bits, streams, graphs, states, a refused work buffer.

How far it is from the exact lane and from float64: test_parity_chunked.py and `python -m strata_gdn parity`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import cases
import pytest
import test_e7_containment as e7
import torch
from cases import BF16, DTYPES, F16, F32, Call, Heads, index
from compare import assert_same_bits, different_bits
from torch import Tensor

from strata_gdn import registry
from strata_gdn._launches import launches
from strata_gdn.parity.check import poisoned_memory

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.xdist_group("cuda"),
]

DEVICE = "cuda"
KERNEL = "chunk_fp32"
ROWS = ("q", "k", "v", "g", "beta")
CHUNK, WINDOW = 32, 2144  # tokens of a chunk, and of what fits into the work buffer for one sequence of LAYER
LAYER = Heads(16, 48, 128, 128)
SHAPES = [  # every block of the scan: value heads and K
    (Heads(2, 2, 128, 128), 70, BF16),
    (Heads(2, 4, 64, 256), 65, F32),
    (Heads(1, 3, 128, 64), 129, F16),
    (Heads(1, 4, 128, 128), 33, F32),
    (Heads(2, 16, 64, 64), 100, BF16),
    (Heads(1, 3, 64, 128), 64, F32),
    (Heads(1, 2, 256, 64), 97, BF16),
]


def prompt(heads: Heads, tokens: int, dtype: torch.dtype = BF16, batch: int = 1, **more: Any) -> dict[str, Any]:
    """Arguments of the op in place, on the GPU."""
    made = {
        **cases.recurrence(heads, batch, tokens, dtype),
        "state": cases.state_pool(heads, batch, more.get("state_layout", "kv")),
        "qk_l2norm": True,
        **more,
    }
    return Call("", made).copy(DEVICE).arguments


def run(arguments: dict[str, Any], op: str = "gated_delta_rule_", precision: str = "fp32") -> tuple[Tensor, ...]:
    """The call as it is, with a precision; it is chunk_fp32 that serves fp32."""
    with launches() as served:
        results = Call(op, arguments | {"precision": precision}).run()
    assert (served == {KERNEL: 1}) == (precision == "fp32"), served
    return results


def fresh(arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
    """In memory of their own."""
    return Call("", arguments | more).copy(DEVICE).arguments


def both(arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """o and the states of a call on copies."""
    made = fresh(arguments)
    return run(made)[0], made["state"]


def part(arguments: dict[str, Any], rows: slice = slice(None), tokens: slice = slice(None)) -> dict[str, Tensor]:
    return {name: arguments[name][rows, tokens] for name in ROWS}


def same(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...], name: str) -> None:
    for what, a, e in zip(("o", "state"), actual, expected, strict=True):
        assert_same_bits(a, e, f"{name}: {what}")


@pytest.mark.parametrize(("heads", "tokens", "dtype"), SHAPES)
def test_one_stage(heads: Heads, tokens: int, dtype: torch.dtype) -> None:
    """What cards run that have no shared memory for a second one."""
    made = prompt(heads, tokens, dtype, batch=2)
    expected = both(made)
    with registry.overrides(GDN_PIPELINE=0):
        same(both(made), expected, "GDN_PIPELINE=0")


# E2


@pytest.mark.parametrize(("heads", "tokens", "dtype"), SHAPES)
def test_alone_and_in_a_batch(heads: Heads, tokens: int, dtype: torch.dtype) -> None:
    batch = 5
    made = prompt(heads, tokens, dtype, batch)
    o, state = both(made)
    for n in range(batch):
        one = slice(n, n + 1)
        same(both(made | part(made, one) | {"state": made["state"][one]}), (o[one], state[one]), f"sequence {n}")


@pytest.mark.parametrize("layout", ["kv", "vk"])
@pytest.mark.parametrize(("heads", "tokens", "dtype"), SHAPES[:3])
def test_slots(heads: Heads, tokens: int, dtype: torch.dtype, layout: str) -> None:
    batch, slots = 3, 7
    made = prompt(heads, tokens, dtype, batch, state_layout=layout)
    expected = both(made)
    indices = torch.randperm(slots)[:batch]
    pool = cases.state_pool(heads, slots, layout).to(DEVICE)
    pool[indices.to(DEVICE)] = made["state"]
    o, after = both(made | {"state": pool, "state_indices": indices.to(DEVICE)})
    same((o, after[indices.to(DEVICE)]), expected, "slots")
    rest = sorted({*range(slots)} - {*indices.tolist()})
    assert_same_bits(after[rest], pool[rest], "other slots")
    indices[1] = -1
    skipped, after = both(made | {"state": pool, "state_indices": indices.to(DEVICE)})
    assert not skipped[1].any()
    kept = [0, 2]
    same((skipped[kept], after[indices[kept].to(DEVICE)]), (o[kept], expected[1][kept]), "beside a skipped one")


@pytest.mark.parametrize(("heads", "tokens", "dtype"), SHAPES)
def test_padded_and_packed(heads: Heads, tokens: int, dtype: torch.dtype) -> None:
    lengths = [tokens, 0, 1, tokens - 1, min(40, tokens)]
    made = prompt(heads, tokens, dtype, len(lengths))
    packed = {name: torch.cat([made[name][n, :t] for n, t in enumerate(lengths)])[None] for name in ROWS}
    o, state = both(made | packed | {"cu_seqlens": cases.cu_seqlens(*lengths).to(DEVICE)})
    begin = 0
    for n, length in enumerate(lengths):
        one = slice(n, n + 1)
        alone = both(made | part(made, one, slice(length)) | {"state": made["state"][one]})
        same((o[:, begin : begin + length], state[one]), alone, f"{length} tokens")
        begin += length


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides(dtype: torch.dtype) -> None:
    """Views of a packed row, contiguous tensors, rows on no vector boundary, and states with gaps."""
    made = prompt(Heads(2, 6, 128, 64), 70, dtype, 2)
    expected = both(made)
    same(both(made | {name: made[name].contiguous() for name in (*ROWS, "state")}), expected, "contiguous")
    odd = {}
    for name in ("q", "k", "v"):
        x = made[name]
        row = x[0, 0].numel() + 1
        room = torch.zeros(x.shape[0] * x.shape[1] * row + 1, dtype=dtype, device=DEVICE)
        odd[name] = room.as_strided(x.shape, (x.shape[1] * row, row, x.shape[-1], 1), 1).copy_(x)
    same(both(made | odd), expected, "odd addresses")


def test_sixteen_bits_are_the_float32_calls() -> None:
    for dtype in (BF16, F16):
        made = prompt(Heads(2, 6, 128, 128), 70, dtype)
        o, state = both(made | {name: made[name].float() for name in ("q", "k", "v")})
        same(both(made), (o.to(dtype), state), str(dtype))


# E3


@pytest.mark.parametrize(("heads", "tokens", "dtype"), SHAPES)
@pytest.mark.parametrize("piece", [32, 64])
def test_pieces(heads: Heads, tokens: int, dtype: torch.dtype, piece: int) -> None:
    in_pieces(prompt(heads, tokens, dtype, 2), [*range(0, tokens, piece), tokens])


def in_pieces(made: dict[str, Any], bounds: list[int]) -> None:
    cut = fresh(made)
    outputs = [run(cut | part(cut, tokens=slice(begin, end)))[0] for begin, end in pairwise(bounds)]
    same((torch.cat(outputs, 1), cut["state"]), both(made), f"cuts {bounds}")


def test_longer_than_a_window_of_the_work_buffer() -> None:
    """Pieces that end before, at and after a window's end."""
    tokens = 2 * WINDOW + 100
    made = prompt(LAYER, tokens)
    in_pieces(made, [0, WINDOW - CHUNK, WINDOW, WINDOW + 64, 2 * WINDOW, tokens])


def test_sequences_that_share_a_window() -> None:
    """A window's end in the middle of several sequences, padded and packed."""
    heads, tokens, batch = LAYER, 1290, 4
    made = prompt(heads, tokens, BF16, batch)
    o, state = both(made)
    packed = {name: made[name].flatten(0, 1)[None] for name in ROWS}
    bounds = index(*range(0, batch * tokens + 1, tokens)).to(DEVICE)
    packed_o, packed_state = both(made | packed | {"cu_seqlens": bounds})
    same((packed_o.view_as(o), packed_state), (o, state), "packed")
    for n in range(batch):
        one = slice(n, n + 1)
        same(both(made | part(made, one) | {"state": made["state"][one]}), (o[one], state[one]), f"sequence {n}")


# E5, and states


@pytest.mark.parametrize("layout", ["kv", "vk"])
@pytest.mark.parametrize(("heads", "tokens", "dtype"), SHAPES)
def test_no_state_is_zeros(heads: Heads, tokens: int, dtype: torch.dtype, layout: str) -> None:
    made = prompt(heads, tokens, dtype, 2, state_layout=layout)
    state = torch.zeros_like(made.pop("state").contiguous())
    expected = run(made | {"initial_state": state}, "gated_delta_rule")
    assert not state.any(), "initial_state is only read"
    same(run(made | {"initial_state": None}, "gated_delta_rule"), expected, "None")
    same(both(made | {"state": state}), expected, "in place")


def test_out_of_place_is_in_place() -> None:
    made = prompt(Heads(2, 6, 128, 128), 70, BF16, 2, state_layout="vk", head_map="tiled")
    initial = fresh(made).pop("state")
    given = {name: x for name, x in made.items() if name != "state"} | {"initial_state": initial}
    same(run(given, "gated_delta_rule"), both(made), "out of place")
    assert_same_bits(initial, made["state"], "initial_state")


def test_sequences_that_start_from_nothing() -> None:
    """Also empty ones: their slot is zero afterwards, that of an empty one that goes on is as it was."""
    heads, lengths = Heads(2, 6, 128, 64), (40, 0, 33, 0)
    made = prompt(heads, sum(lengths), F32, cu_seqlens=cases.cu_seqlens(*lengths))
    made["state"] = cases.state_pool(heads, len(lengths)).to(DEVICE)
    starts = torch.tensor([False, False, True, True], device=DEVICE)
    zeroed = fresh(made)["state"].masked_fill(~starts[:, None, None, None], 0.0)
    o, state = both(made | {"has_initial_state": starts})
    same((o, state), both(made | {"state": zeroed}), "from nothing")
    assert not state[1].any()
    assert_same_bits(state[3], made["state"][3], "an empty one")


def test_rows_that_no_sequence_covers_and_odd_bounds() -> None:
    heads = Heads(2, 4, 128, 64)
    made = prompt(heads, 90, F32)
    made["state"] = cases.state_pool(heads, 6).to(DEVICE)
    before = fresh(made)["state"]
    made |= {
        "state_indices": index(3, -1, 0, 9, 2).to(DEVICE),
        "cu_seqlens": index(4, 41, 41, 50, 42, 80).to(DEVICE),  # empty, a step back
    }
    o, state = both(made)
    covered = torch.zeros(90, dtype=torch.bool, device=DEVICE)
    for slot, begin, end in ((3, 4, 41), (0, 41, 50), (2, 50, 80)):
        covered[begin:end] = True
        alone = made | part(made, tokens=slice(begin, end)) | {"state": before[slot : slot + 1]}
        del alone["state_indices"], alone["cu_seqlens"]
        same((o[:, begin:end], state[slot : slot + 1]), both(alone), f"slot {slot}")
    assert not o[:, ~covered].any()
    rest = [1, 4, 5]
    assert_same_bits(state[rest], before[rest], "slots of nobody")


def test_no_tokens_and_no_sequences() -> None:
    heads = Heads(1, 2, 128, 64)
    made = prompt(heads, 0, BF16, 2)
    o, state = both(made)
    assert o.shape == (2, 0, 2, 64)
    assert_same_bits(state, made["state"], "after no tokens")
    given = {name: x for name, x in made.items() if name != "state"}
    _, final = run(given, "gated_delta_rule")
    assert not final.any()
    none = given | part(prompt(heads, 40)) | {"cu_seqlens": index(3).to(DEVICE)}
    o, final = Call("gated_delta_rule", none | {"precision": "fp32"}).run()
    assert not o.any()
    assert final.shape == (0, 2, 128, 64)


# E6


RERUNS = [
    (Heads(16, 48, 128, 128), 130, BF16),
    (Heads(2, 8, 128, 128), 257, F32),
    (Heads(2, 2, 256, 64), 640, F16),
    (Heads(2, 6, 64, 256), 1000, BF16),
    (Heads(16, 32, 128, 128), 2049, BF16),
    (Heads(1, 4, 128, 64), 4099, F32),
    (Heads(16, 48, 128, 128), 8192, BF16),
]


@pytest.mark.parametrize(("heads", "tokens", "dtype"), RERUNS)
def test_reruns(heads: Heads, tokens: int, dtype: torch.dtype) -> None:
    """200; before every other one outputs and the work buffer are full of NaN, else as the last run left them."""
    made = prompt(heads, tokens, dtype)
    expected = both(made)
    start = made["state"].clone()
    for rerun in range(200):
        made["state"].copy_(start)
        with poisoned_memory(rerun % 2 == 0):
            (o,) = run(made)
        # (Compared on the GPU; only what differs is looked at.)
        if different_bits(o, expected[0]) or different_bits(made["state"], expected[1]):
            same((o, made["state"]), expected, f"rerun {rerun}")


def test_the_work_buffer_is_poisoned() -> None:
    """Memory that is allocated in a rerun is NaN, whatever it was before."""
    for poisoned in (True, False, True):
        torch.full((1 << 20,), 7.0, device=DEVICE)
        with poisoned_memory(poisoned):
            found = torch.empty(1 << 20, device=DEVICE).isnan().all()
        assert bool(found) or not poisoned


# E7


@pytest.mark.parametrize("poison", e7.POISONS)
@pytest.mark.parametrize("head_map", ["grouped", "tiled"])
@pytest.mark.parametrize("argument", e7.RECURRENCE_ARGUMENTS)
def test_containment(argument: str, head_map: str, poison: str) -> None:
    head, token = 1, 37
    made = {
        **cases.recurrence(e7.HEADS, e7.N, 70, F32, gates="slow"),  # so that it still shows in the end
        "state": cases.state_pool(e7.HEADS, e7.N, gap=False),
        "head_map": head_map,
    }
    bad = e7.BAD_SEQUENCE
    where = (bad, head, 5) if argument == "state" else (bad, token, head)
    spoilt = e7.poisoned(Call("", made), argument, where, e7.POISONS[poison])
    o, state = both(fresh(made))
    bad_o, bad_state = both(fresh(spoilt.arguments))
    heads = e7.spoilt_heads(argument, head, head_map)
    e7.assert_only_heads_change(o, bad_o, heads, 2, "o")
    if argument != "q":  # which the state does not depend on
        e7.assert_only_heads_change(state, bad_state, heads, 1, "state")


# Streams, graphs, synchronisation


def test_two_streams() -> None:
    calls = [prompt(LAYER, 500) for _ in range(2)]
    expected = [both(made) for made in calls]
    torch.cuda.synchronize()
    outputs = []
    for made in calls:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(1_000_000)
            outputs += run(made)
    torch.cuda.synchronize()
    for o, made, of_one in zip(outputs, calls, expected, strict=True):
        same((o, made["state"]), of_one, "side stream")


def test_graph_replay_with_changed_inputs_and_slots() -> None:
    heads = Heads(2, 6, 128, 128)
    made = prompt(heads, 100, BF16, 2)
    made["state"] = cases.state_pool(heads, 4).to(DEVICE)
    made["state_indices"] = torch.tensor([0, 1], device=DEVICE)
    both(made)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (o,) = run(made)
    for slots in ([3, 0], [-1, 2]):
        made["v"].normal_()
        made["g"].uniform_(-1, 0)
        made["state_indices"].copy_(torch.tensor(slots))
        expected = both(made)
        graph.replay()
        same((o, made["state"]), expected, f"graph, slots {slots}")


def test_graph_of_packed_sequences_whose_lengths_change() -> None:
    heads = Heads(2, 6, 128, 64)
    made = prompt(heads, 200, BF16, cu_seqlens=index(0, 100, 200))
    made["state"] = cases.state_pool(heads, 2).to(DEVICE)
    both(made)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (o,) = run(made)
    for bounds in ([0, 1, 200], [0, 200, 200], [10, 75, 140]):
        made["cu_seqlens"].copy_(torch.tensor(bounds))
        expected = both(made)
        graph.replay()
        same((o, made["state"]), expected, f"bounds {bounds}")


def test_no_synchronisation() -> None:
    made = prompt(LAYER, 300, cu_seqlens=index(0, 150, 300))
    made["state"] = cases.state_pool(LAYER, 2).to(DEVICE)
    run(made)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(made)
    finally:
        torch.cuda.set_sync_debug_mode("default")


# Who serves


@pytest.mark.parametrize("chunked", [None, 0])
def test_without_the_switch_nothing_changes(chunked: int | None) -> None:
    made = prompt(LAYER, 2048)
    exact, default = fresh(made), fresh(made)
    expected = run(exact, precision="exact")
    with registry.overrides(GDN_CHUNKED=chunked):
        actual = run(default, precision="auto")
    same((*actual, default["state"]), (*expected, exact["state"]), "auto")


def test_the_switch_is_the_precision() -> None:
    made = prompt(LAYER, 2048)
    switched = fresh(made)
    with registry.overrides(GDN_CHUNKED=2), launches() as served:
        results = Call("gated_delta_rule_", switched).run()
    assert served == {KERNEL: 1}
    same((*results, switched["state"]), both(made), "GDN_CHUNKED=2")


@contextmanager
def no_room(more_than: int) -> Iterator[None]:
    """The allocator has a few megabytes, and nothing like `more_than` bytes."""
    room = torch.empty(8 << 20, dtype=torch.uint8, device=DEVICE)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (1 << 20)) / total)
    del room
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(more_than, dtype=torch.uint8, device=DEVICE)
        # That gave all free memory back to the driver: what outputs need is there, and is kept.
        torch.empty(8 << 20, dtype=torch.uint8, device=DEVICE)
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


REFUSED = Heads(1, 1, 256, 64)  # 100 KB of work a chunk, 4 KB of output
REFUSED_TOKENS = 16384
REFUSED_BYTES = REFUSED_TOKENS // CHUNK * (3 * CHUNK * 256 + CHUNK * CHUNK + 3 * CHUNK) * 4


def test_a_refused_work_buffer_under_the_switch() -> None:
    """The next kernel serves, with the exact lane's bits: nothing is lost."""
    made = prompt(REFUSED, REFUSED_TOKENS)
    exact, switched = fresh(made), fresh(made)
    (expected,) = run(exact, precision="exact")
    with registry.overrides(GDN_CHUNKED=2), no_room(REFUSED_BYTES), launches() as served:
        (o,) = Call("gated_delta_rule_", switched).run()
    assert sum(served.values()) == 1
    assert set(served) <= {"rec_columns", "rec_keyhead"}
    same((o, switched["state"]), (expected, exact["state"]), "the next kernel")
    after = fresh(made)  # and there is room again
    with registry.overrides(GDN_CHUNKED=2), launches() as served:
        Call("gated_delta_rule_", after).run()
    assert served == {KERNEL: 1}


def test_a_refused_work_buffer_under_the_order() -> None:
    made = prompt(REFUSED, REFUSED_TOKENS)
    ordered = fresh(made, precision="fp32")
    with no_room(REFUSED_BYTES), launches() as served, pytest.raises(RuntimeError):
        Call("gated_delta_rule_", ordered).run()
    assert served == {}
    for (name, actual), (_, before) in zip(Call("", ordered).buffers(), Call("", made).buffers(), strict=True):
        assert_same_bits(actual, before, name)
    same(both(ordered | {"precision": "fp32"}), both(made), "with room again")
