"""Decode steps, speculative windows, trees and commits on the GPU: the CPU's bits, and E4 on the GPU itself."""

from __future__ import annotations

from typing import Any

import cases
import pytest
import torch
from cases import BF16, DTYPES, F32, Call, Heads, index
from compare import assert_same_bits
from test_cuda import same_on_both
from torch import Tensor

from strata_gdn import _devices, ops, registry
from strata_gdn.parity import calls
from strata_gdn.parity.kernels import shape_of

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.xdist_group("cuda"),
]

SHAPES = [Heads(1, 3, 128, 128), Heads(2, 4, 128, 64), *(Heads(1, 2, K, V) for K in (64, 256) for V in (64, 128, 256))]
WHERE = [("kv", "grouped"), ("vk", "tiled")]


def window(
    heads: Heads, tokens: int, dtype: torch.dtype = BF16, batch: int = 2, layout: str = "kv", head_map: str = "grouped"
) -> dict[str, Any]:
    """Arguments of a step or a verify on a pool with one slot more than sequences, the last sequence in the first."""
    slots = [*range(1, batch), 0]
    return {
        **cases.recurrence(heads, batch, tokens, dtype),
        "state": cases.state_pool(heads, batch + 1, layout),
        "state_indices": index(*slots),
        "qk_l2norm": tokens % 2 == 1,
        "state_layout": layout,
        "head_map": head_map,
    }


def on_cuda(arguments: dict[str, Any]) -> dict[str, Any]:
    return Call("", arguments).copy("cuda").arguments


@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16])
def test_steps(tokens: int, split: int) -> None:
    with registry.overrides(GDN_SPLIT=split):
        registry.reset_served()
        same_on_both(Call("gated_delta_rule_", window(Heads(1, 3, 128, 128), tokens)), f"T={tokens}")
        assert "step" in registry.served()


@pytest.mark.parametrize("op", ["gated_delta_rule_", "gated_delta_rule_verify"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("layout", "head_map"), WHERE)
@pytest.mark.parametrize("heads", SHAPES)
def test_shapes(heads: Heads, layout: str, head_map: str, dtype: torch.dtype, op: str) -> None:
    same_on_both(Call(op, window(heads, 3, dtype, 3, layout, head_map)), f"{op} {heads}")


@pytest.mark.parametrize("tokens", [1, 3, 8, 9])
@pytest.mark.parametrize("layout", ["kv", "vk"])
@pytest.mark.parametrize("heads", [Heads(2, 8, 128, 128), Heads(1, 4, 64, 256), Heads(1, 4, 256, 64)])
def test_value_heads_a_block(heads: Heads, layout: str, tokens: int) -> None:
    """1, 2 and 4 of them one after another: the same bits, skipped slots included."""
    made = window(heads, tokens, BF16, 3, layout)
    made["state_indices"][1] = -1
    round_ = calls.commit_verify(heads, 3, 3, tokens, BF16, layout, False)
    for count in (1, 2, 4):
        with registry.overrides(GDN_STEP_HEADS=count):
            same_on_both(Call("gated_delta_rule_", made), f"step, {count}")
            same_on_both(Call("gated_delta_rule_verify", made), f"verify, {count}")
            same_on_both(Call("gated_delta_rule_commit_verify_", round_), f"commit and verify, {count}")


def test_a_full_card() -> None:
    """So many sequences that the registry puts all value heads of a key head into a block."""
    heads, tokens = Heads(1, 3, 128, 128), 2
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    made = window(heads, tokens, BF16, 6 * multiprocessors)
    arch = _devices.arch(torch.device("cuda"))
    decision = registry.decide("gated_delta_rule_verify", arch=arch, sms=multiprocessors, **shape_of(made))
    assert decision.config["heads"] == "3"
    same_on_both(Call("gated_delta_rule_verify", made), "verify")
    same_on_both(Call("gated_delta_rule_", made), "step")


@pytest.mark.parametrize("tokens", [1, 2, 8, 9, 17, 65, 128])
def test_chains(tokens: int) -> None:
    same_on_both(Call("gated_delta_rule_verify", window(Heads(2, 6, 128, 128), tokens)), f"T={tokens}")


@pytest.mark.parametrize("tokens", [1, 2, 7, 16, 33, 128])
@pytest.mark.parametrize(("layout", "head_map"), WHERE)
def test_trees(tokens: int, layout: str, head_map: str) -> None:
    made = window(Heads(1, 2, 128, 128), tokens, layout=layout, head_map=head_map)
    made["parents"] = cases.tree(2, tokens)
    same_on_both(Call("gated_delta_rule_verify", made), f"T={tokens}")
    made["parents"] = torch.full((2, tokens), -1, dtype=torch.int32)  # all from the root
    same_on_both(Call("gated_delta_rule_verify", made), f"T={tokens}, a bush")


@pytest.mark.parametrize("heads", SHAPES)
def test_trees_of_every_shape(heads: Heads) -> None:
    for dtype in DTYPES:
        made = window(heads, 9, dtype)
        made["parents"] = index(-7, 0, 1, 0, 99, 2, 5, 3, 7).repeat(2, 1)  # what is no earlier token counts as -1
        same_on_both(Call("gated_delta_rule_verify", made), f"{heads} {dtype}")


def verified(made: dict[str, Any]) -> dict[str, Tensor]:
    """The logs of a verify on the GPU."""
    _, k_log, d_log, g_log = ops.gated_delta_rule_verify(**made)
    return {"k_log": k_log, "d_log": d_log, "g_log": g_log}


def options(made: dict[str, Any]) -> dict[str, Any]:
    return {name: made[name] for name in ("state_indices", "state_layout", "head_map")}


@pytest.mark.parametrize("tokens", [1, 4, 16])
@pytest.mark.parametrize(("layout", "head_map"), WHERE)
@pytest.mark.parametrize("heads", SHAPES[:3])
def test_verify_and_commit_are_the_steps(heads: Heads, layout: str, head_map: str, tokens: int) -> None:
    made = on_cuda(window(heads, tokens, BF16, 3, layout, head_map))
    plain = {**made, "state": made["state"].clone()}
    o, *_ = ops.gated_delta_rule_verify(**made)
    logs = verified(made)
    accepted = torch.tensor([0, 1, tokens], device="cuda")
    steps = []
    states = [plain["state"].clone()]
    for t in range(tokens):
        token = {n: plain[n][:, t : t + 1] for n in ("q", "k", "v", "g", "beta")}
        steps.append(ops.gated_delta_rule_(**(plain | token)))
        states.append(plain["state"].clone())
    assert_same_bits(o, torch.cat(steps, 1), "drafted = plain")
    before = made["state"].clone()
    ops.gated_delta_rule_commit_(made["state"], **logs, accepted=accepted, **options(made))
    for n, count in enumerate(accepted.tolist()):
        slot = made["state_indices"][n]
        assert_same_bits(made["state"][slot], states[count][slot], f"{count} of {tokens} committed")
    assert_same_bits(made["state"][-1], before[-1], "a slot of nobody")


@pytest.mark.parametrize("tree", [False, True])
def test_a_round_in_one_pass(tree: bool) -> None:
    heads = Heads(2, 6, 128, 128)
    made = on_cuda(window(heads, 4, BF16, 3))
    logs = verified(made)
    drafts = on_cuda(cases.recurrence(heads, 3, 4, BF16)) | {"parents": cases.tree(3, 4).cuda() if tree else None}
    accepted = torch.tensor([2, 0, 4], device="cuda")
    apart = made["state"].clone()
    ops.gated_delta_rule_commit_(apart, **logs, accepted=accepted, **options(made))
    expected = ops.gated_delta_rule_verify(**drafts, state=apart, **options(made))
    actual = ops.gated_delta_rule_commit_verify_(made["state"], **logs, accepted=accepted, **drafts, **options(made))
    for name, x, y in zip(("o", "k_log", "d_log", "g_log"), actual, expected, strict=True):
        assert_same_bits(x, y, name)
    assert_same_bits(made["state"], apart, "state")


def many_layers(layers: int, odd_one: bool) -> dict[str, Any]:
    heads, batch, tokens = Heads(1, 2, 128, 64), 2, 5
    logs = [cases.logs(heads, batch, tokens) for _ in range(layers)]
    states = [cases.state_pool(heads, batch) for _ in range(layers)]
    if odd_one:  # strides of its own
        wide = torch.randn(batch, 3, 128, 64)
        states[layers // 2] = wide[:, 1:]
    return {
        "states": states,
        **{f"{name}s": [log[name] for log in logs] for name in ("k_log", "d_log", "g_log")},
        "accepted": index(5, 2),
    }


@pytest.mark.parametrize("odd_one", [False, True])
@pytest.mark.parametrize("commit_split", [None, 0, 1])
@pytest.mark.parametrize("layers", [1, 36, 100])
def test_all_layers(layers: int, commit_split: int | None, odd_one: bool) -> None:
    with registry.overrides(GDN_COMMIT_SPLIT=commit_split):
        same_on_both(Call("gated_delta_rule_commit_layers_", many_layers(layers, odd_one)), f"{layers} layers")


def launches(call: Call, kernel: str) -> int:
    """How often a call launches a kernel."""
    call.run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call.run()
        torch.cuda.synchronize()
    return sum(kernel in event.name for event in profile.events())


@pytest.mark.parametrize(("switches", "expected"), [({}, 1), ({"GDN_SPLIT": 1}, 1), ({"GDN_COMMIT_SPLIT": 0}, 36)])
def test_all_layers_are_one_launch_unless_asked_otherwise(switches: dict[str, int], expected: int) -> None:
    """The lesson of an engine that lost its batched commit when the step was split, without a word."""
    with registry.overrides(**switches):
        made = Call("gated_delta_rule_commit_layers_", many_layers(36, odd_one=False)).copy("cuda")
        assert launches(made, "commit_kernel") == expected


def test_counts_change_between_replays() -> None:
    heads = Heads(1, 2, 128, 128)
    made = on_cuda(window(heads, 4, BF16, 3))
    logs, accepted = verified(made), torch.tensor([4, 4, 4], device="cuda")
    start = made["state"].clone()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        ops.gated_delta_rule_commit_(made["state"], **logs, accepted=accepted, **options(made))
        o, *_ = ops.gated_delta_rule_verify(**made)
    for counts in ([0, 1, 2], [3, 4, -1], [9, 0, 0]):
        accepted.copy_(torch.tensor(counts))
        made["state"].copy_(start)
        plain = start.clone()
        graph.replay()
        ops.gated_delta_rule_commit_(plain, **logs, accepted=accepted, **options(made))
        assert_same_bits(made["state"], plain, f"state after {counts}")
        expected, *_ = ops.gated_delta_rule_verify(**(made | {"state": plain}))
        assert_same_bits(o, expected, f"outputs after {counts}")


def test_layers_on_two_streams() -> None:
    heads = Heads(2, 6, 128, 128)
    layers = [Call("gated_delta_rule_", window(heads, 4, BF16, 3)) for _ in range(2)]
    expected = [made.copy("cuda") for made in layers]
    outputs = [made.run()[0] for made in expected]
    actual = [made.copy("cuda") for made in layers]
    torch.cuda.synchronize()
    results = []
    for made in actual:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(1_000_000)
            results.append(made.run()[0])
    torch.cuda.synchronize()
    for made, same, o, result in zip(actual, expected, outputs, results, strict=True):
        assert_same_bits(result, o, "outputs")
        assert_same_bits(made.arguments["state"], same.arguments["state"], "states")


def test_odd_addresses() -> None:
    """Views whose rows, states and logs start on no vector boundary."""
    heads = Heads(1, 2, 128, 64)
    made = window(heads, 5, F32)
    for name in ("q", "k", "v"):
        x = made[name]
        room = torch.empty(x.numel() + 2 * x.shape[1] + 1, dtype=x.dtype)[1:]
        made[name] = room.as_strided(x.shape, (x.numel() // 2 + x.shape[1], x[0, 0].numel() + 1, x.shape[-1], 1)).copy_(
            x
        )
    state = made["state"]
    made["state"] = torch.empty(state.numel() + 1)[1:].view(state.shape).copy_(state)
    for op in ("gated_delta_rule_", "gated_delta_rule_verify"):
        same_on_both(Call(op, made), op)
    logs = {
        name: torch.empty(log.numel() + 1)[1:].view(log.shape).copy_(log)
        for name, log in cases.logs(heads, 2, 5).items()
    }
    commit = {"state": made["state"], **logs, "accepted": index(3, 5), "state_indices": made["state_indices"]}
    same_on_both(Call("gated_delta_rule_commit_", commit), "commit")


def test_verify_reruns() -> None:
    made = on_cuda(window(Heads(2, 6, 128, 128), 6, BF16, 3) | {"parents": cases.tree(3, 6)})
    first = ops.gated_delta_rule_verify(**made)
    for _ in range(200):
        for x, y in zip(ops.gated_delta_rule_verify(**made), first, strict=True):
            assert_same_bits(x, y, "rerun")
