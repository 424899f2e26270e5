"""The CUDA kernels: E1 against the CPU bit for bit, and what only a GPU can break: streams, graphs, synchronisation."""

from __future__ import annotations

from typing import Any

import cases
import pytest
import torch
from cases import BF16, CALLS, DTYPES, F32, Call, Heads, call, cu_seqlens, index
from compare import assert_same_bits
from torch import Tensor

from strata_gdn import registry

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.xdist_group("cuda"),
]

ops = torch.ops.strata_gdn


def same_on_both(made: Call, what: str) -> None:
    """Results and all argument memory of a call on the CPU and of the same call on the GPU."""
    here, there = made.copy(), made.copy("cuda")
    for i, (actual, expected) in enumerate(zip(there.run(), here.run(), strict=True)):
        assert_same_bits(actual.cpu(), expected, f"{what}: result {i}")
    for (name, actual), (_, expected) in zip(there.buffers(), here.buffers(), strict=True):
        assert_same_bits(actual.cpu(), expected, f"{what}: {name}")


@pytest.mark.parametrize("name", CALLS)
def test_every_op_gives_the_cpus_bits(name: str) -> None:
    same_on_both(call(name), name)


def prompt(heads: Heads, tokens: int, dtype: torch.dtype = BF16, batch: int = 1, **options: Any) -> dict[str, Any]:
    layout = options.get("state_layout", "kv")
    return {
        **cases.recurrence(heads, batch, tokens, dtype),
        "state": cases.state_pool(heads, batch, layout),
        "qk_l2norm": True,
        **options,
    }


RECURRENCES = [
    *((Heads(1, 2, 128, 128), tokens) for tokens in cases.ODD_TOKENS),
    *((Heads(2, 2 * group, 128, 64), 37) for group in (1, 2, 3, 4, 6, 8)),
    *((Heads(1, group, K, V), 21) for K in (64, 128, 256) for V in (64, 128, 256) for group in (2, 3, 4)),
]


@pytest.mark.parametrize("keyhead", [0, 1])
@pytest.mark.parametrize(("heads", "tokens"), RECURRENCES)
def test_both_recurrences(heads: Heads, tokens: int, keyhead: int) -> None:
    with registry.overrides(GDN_STEP=0, GDN_KEYHEAD=keyhead):
        same_on_both(Call("gated_delta_rule_", prompt(heads, tokens)), f"{heads}, T={tokens}")


@pytest.mark.parametrize("keyhead", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("layout", "head_map"), [("kv", "tiled"), ("vk", "grouped")])
def test_dtypes_layouts_and_maps(dtype: torch.dtype, layout: str, head_map: str, keyhead: int) -> None:
    heads = Heads(2, 6, 128, 128)
    with registry.overrides(GDN_STEP=0, GDN_KEYHEAD=keyhead):
        made = prompt(heads, 19, dtype, 2, state_layout=layout, head_map=head_map, qk_l2norm=False)
        same_on_both(Call("gated_delta_rule_", made), "padded")


@pytest.mark.parametrize("keyhead", [0, 1])
def test_packed_sequences_with_gaps(keyhead: int) -> None:
    heads = Heads(2, 4, 128, 64)
    made = {
        **cases.recurrence(heads, 1, 60, F32),
        "state": cases.state_pool(heads, 6),
        "state_indices": index(3, -1, 0, 9, 2),
        "cu_seqlens": index(4, 21, 21, 30, 22, 50),  # a step back, an empty sequence, rows that no sequence covers
        "has_initial_state": torch.tensor([True, True, False, True, False]),
    }
    with registry.overrides(GDN_STEP=0, GDN_KEYHEAD=keyhead):
        same_on_both(Call("gated_delta_rule_", made), "packed")


def test_switch_names_the_kernel() -> None:
    made = Call("gated_delta_rule_", prompt(Heads(1, 3, 128, 64), 5)).copy("cuda")
    for keyhead, kernel in ((0, "rec_columns"), (1, "rec_keyhead")):
        registry.reset_served()
        with registry.overrides(GDN_STEP=0, GDN_KEYHEAD=keyhead):
            made.run()
        assert registry.served() == {kernel: 1}


def test_without_loads_ahead() -> None:
    for keyhead in (0, 1):
        with registry.overrides(GDN_PIPELINE=0, GDN_KEYHEAD=keyhead):
            same_on_both(Call("gated_delta_rule_", prompt(Heads(1, 3, 128, 128), 70)), f"GDN_KEYHEAD={keyhead}")


def test_odd_addresses() -> None:
    """Views whose rows start on no vector boundary."""
    heads = Heads(1, 2, 128, 64)
    made = prompt(heads, 12)
    for name in ("q", "k", "v"):
        x = made[name]
        shifted = torch.empty(x.numel() + 2 * x.shape[1] + 1, dtype=x.dtype)[1:]
        made[name] = shifted.as_strided(x.shape, (x.numel(), x[0, 0].numel() + 1, x.shape[-1], 1)).copy_(x)
    same_on_both(Call("gated_delta_rule_", made), "odd addresses")


def test_cuts_batches_and_reruns() -> None:
    """E2, E3 and E6 on the GPU itself."""
    heads = Heads(2, 6, 128, 128)
    made = Call("gated_delta_rule_", prompt(heads, 70, BF16, 3))
    whole = made.copy("cuda")
    (o,) = whole.run()
    for _ in range(200):
        again = made.copy("cuda")
        assert_same_bits(again.run()[0], o, "rerun")
        assert_same_bits(again.arguments["state"], whole.arguments["state"], "state of a rerun")
    cut = made.copy("cuda")
    arguments = dict(cut.arguments)
    pieces = []
    for begin, end in ((0, 1), (1, 33), (33, 64), (64, 70)):
        piece = {n: arguments[n][:, begin:end] for n in ("q", "k", "v", "g", "beta")}
        pieces += Call(made.op, arguments | piece).run()
    assert_same_bits(torch.cat(pieces, 1), o, "cut")
    assert_same_bits(arguments["state"], whole.arguments["state"], "state after pieces")
    alone = made.copy("cuda").arguments
    one = {n: alone[n][1:2] for n in ("q", "k", "v", "g", "beta", "state")}
    assert_same_bits(Call(made.op, alone | one).run()[0], o[1:2], "alone")


def test_nan_stays_in_its_head() -> None:
    heads = Heads(2, 4, 128, 64)
    made = Call("gated_delta_rule_", prompt(heads, 20, F32, 2))
    clean, dirty = made.copy("cuda"), made.copy("cuda")
    dirty.arguments["v"][0, 3, 1, 5] = float("nan")
    dirty.arguments["g"][0, 7, 1] = float("inf")
    (expected,), (actual,) = clean.run(), dirty.run()
    keep = torch.ones(2, 4, dtype=torch.bool)
    keep[0, 1] = False
    assert_same_bits(actual.transpose(1, 2)[keep], expected.transpose(1, 2)[keep], "other heads")
    assert torch.isnan(actual[0, 8:, 1]).all()


def step(device: str = "cuda") -> Call:
    return Call("gated_delta_rule_", prompt(Heads(2, 6, 128, 128), 3, BF16, 2)).copy(device)


def test_side_streams() -> None:
    calls = [step() for _ in range(2)]
    plain = [made.copy("cuda") for made in calls]
    expected = [made.run()[0] for made in plain]
    streams = [torch.cuda.Stream() for _ in calls]
    results: list[Tensor] = []
    torch.cuda.synchronize()
    for made, stream in zip(calls, streams, strict=True):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000)
            results += made.run()
    torch.cuda.synchronize()
    for made, same, result, o in zip(calls, plain, results, expected, strict=True):
        assert_same_bits(result, o, "side stream")
        assert_same_bits(made.arguments["state"], same.arguments["state"], "state of a side stream")


def test_graph_replay_with_changed_inputs_and_slots() -> None:
    made = step()
    made.arguments["state_indices"] = torch.tensor([0, 1], device="cuda")
    made.arguments["state"] = made.arguments["state"].repeat(2, 1, 1, 1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (o,) = made.run()
    for slots in ([3, 0], [-1, 2]):
        made.arguments["v"].normal_()
        made.arguments["state_indices"].copy_(torch.tensor(slots))
        plain = made.copy("cuda")
        graph.replay()
        assert_same_bits(o, plain.run()[0], f"graph, slots {slots}")
        assert_same_bits(made.arguments["state"], plain.arguments["state"], f"state, slots {slots}")


@pytest.mark.parametrize("name", CALLS)
def test_no_synchronisation(name: str) -> None:
    made = call(name).copy("cuda")
    made.run()
    torch.cuda.set_sync_debug_mode("error")
    try:
        made.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_offsets_beyond_2_to_the_31() -> None:
    heads = Heads(1, 2, 128, 128)
    slots = 2**31 // (2 * 128 * 128) + 2
    made = prompt(heads, 4, F32)
    pool = torch.empty(slots, 2, 128, 128, device="cuda")
    pool[-1] = made["state"][0].cuda()
    arguments = {n: x.cuda() if isinstance(x, Tensor) else x for n, x in made.items()}
    (o,) = Call(
        "gated_delta_rule_", arguments | {"state": pool, "state_indices": torch.tensor([slots - 1]).cuda()}
    ).run()
    assert_same_bits(o.cpu(), Call("gated_delta_rule_", made).run()[0], "last slot")
    assert_same_bits(pool[-1].cpu(), made["state"][0], "last slot's state")


def test_long_prompt_and_empty_ones() -> None:
    same_on_both(Call("gated_delta_rule_", prompt(Heads(1, 3, 128, 64), 4099)), "T=4099")
    for tokens in (0, 1):
        made = {**cases.recurrence(Heads(1, 2, 128, 64), 1, tokens), "cu_seqlens": cu_seqlens(0, tokens, 0)}
        same_on_both(Call("gated_delta_rule", made), f"T={tokens}")


@pytest.mark.parametrize("op", ["gated_delta_rule", "causal_conv1d"])
def test_no_sequences_at_all(op: str) -> None:
    """Rows that no sequence covers are zero, also where there is none."""
    heads = Heads(1, 2, 128, 64)
    rows = cases.recurrence(heads, 1, 40) if op == "gated_delta_rule" else {"x": torch.randn(1, 40, 70),
                                                                              "weight": torch.randn(70, 4)}  # fmt: skip
    same_on_both(Call(op, rows | {"cu_seqlens": index(3)}), op)


def test_packed_convolution_of_many_stages() -> None:
    """The grid has stages for all rows: most lie beyond the end of every sequence, and of x."""
    made = {"x": torch.randn(1, 8192, 64), "weight": torch.randn(64, 4), "cu_seqlens": index(0, 4096, 8192)}
    same_on_both(Call("causal_conv1d", made), "packed")
