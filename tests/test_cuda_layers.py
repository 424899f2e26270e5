"""The fused layers on the GPU: the CPU's bits, whatever serves them, and those of their single ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cases
import pytest
import torch
from cases import BF16, DTYPES, F16, F32, Call, Heads, index
from compare import assert_same_bits
from test_cuda import same_on_both
from test_cuda_decode import launches
from torch import Tensor

from strata_gdn import ops, registry
from strata_gdn.parity import calls

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.xdist_group("cuda"),
]


@pytest.fixture(autouse=True, params=[0, 1], ids=["apart", "fused"])
def fused(request: pytest.FixtureRequest) -> Iterator[int]:
    """Whether a layer is one launch wherever it fits."""
    with registry.overrides(GDN_FUSED_LAYER=request.param):
        yield request.param


def in_one_launch(op: str, fused: int) -> bool:
    """Of what fits: windows are written where blocks form clusters."""
    return bool(fused) and (op == "gdn_verify_layer" or torch.cuda.get_device_capability() >= (9, 0))


LAYERS = [("gdn_decode_layer_", False), ("gdn_verify_layer", False), ("gdn_verify_layer", True)]  # op, a tree


def layer(
    heads: Heads, tokens: int, dtype: torch.dtype = BF16, batch: int = 3, tree: bool = False, **more: Any
) -> dict[str, Any]:
    """A layer's arguments on pools with one slot more than sequences; the second sequence has none."""
    made = cases.layer(heads, batch, tokens, dtype, slots=batch + 1, **more)
    slots = [*range(2, batch + 1), 0]
    if batch > 1:
        slots[1] = -1
    made["state_indices"] = index(*slots)
    return made | ({"parents": cases.tree(batch, tokens)} if tree else {})


@pytest.mark.parametrize("adjust", [dict, calls.contiguous, calls.odd])
@pytest.mark.parametrize("tokens", range(1, 9))
@pytest.mark.parametrize(("op", "tree"), LAYERS)
def test_layers(op: str, tree: bool, tokens: int, adjust: Any) -> None:
    same_on_both(Call(op, adjust(layer(Heads(1, 3, 128, 64), tokens, tree=tree))), f"{op}, T={tokens}")
    same_on_both(Call(op, adjust(layer(Heads(2, 4, 64, 64), tokens, F16, 1, tree))), f"{op}, T={tokens}, N=1")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "heads", [*(Heads(2, 2 * group, 64, 128) for group in (1, 2, 3, 4)), Heads(1, 2, 256, 64), Heads(1, 1, 128, 256)]
)
@pytest.mark.parametrize(("op", "tree"), LAYERS)
def test_layers_of_every_shape(op: str, tree: bool, heads: Heads, dtype: torch.dtype) -> None:
    for adjust in (dict, calls.contiguous):
        same_on_both(Call(op, adjust(layer(heads, 4, dtype, tree=tree))), f"{op} {heads}")


@pytest.mark.parametrize("columns", [0, 1, 3])
@pytest.mark.parametrize("width", [2, 3, 4, 9])
@pytest.mark.parametrize(("op", "tree"), LAYERS)
def test_layers_with_every_window(op: str, tree: bool, width: int, columns: int) -> None:
    """Windows of the columns that the taps need and of more."""
    for dtype, state_dtype in ((BF16, BF16), (F16, F32), (F32, F32)):
        for tokens in (1, 6):
            sizes = {"width": width, "window": width - 1 + columns, "state_dtype": state_dtype}
            made = calls.contiguous(layer(Heads(1, 2, 64, 64), tokens, dtype, tree=tree, **sizes))
            same_on_both(Call(op, made), f"{op}, W={width}, T={tokens}, {dtype}")


@pytest.mark.parametrize(("op", "tree"), LAYERS)
def test_layers_of_mixed_dtypes(op: str, tree: bool) -> None:
    """Weights and gates of other dtypes than the activations; no bias."""
    for name in ("conv_weight", "conv_bias", "a", "b", "A_log", "dt_bias"):
        for dtype in DTYPES:
            made = calls.contiguous(layer(Heads(1, 2, 64, 64), 3, BF16, tree=tree))
            same_on_both(Call(op, made | {name: made[name].to(dtype)}), f"{op}, {name} {dtype}")
    made = calls.contiguous(layer(Heads(1, 2, 64, 64), 3, BF16, tree=tree, bias=False))
    same_on_both(Call(op, made), f"{op} without a bias")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("adjust", [dict, calls.contiguous])
def test_layers_with_wrong_indices(adjust: Any, dtype: torch.dtype) -> None:
    """Slots out of range, strided indices, none at all; parents that are no earlier tokens."""
    far = torch.iinfo(dtype).max
    for tokens in (1, 5):
        made = adjust(layer(Heads(1, 2, 64, 64), tokens, batch=6))
        made["state_indices"] = torch.tensor([[6, 0], [7, 0], [far, 0], [-far, 0], [0, 0], [-1, 0]], dtype=dtype)[:, 0]
        for op in ("gdn_decode_layer_", "gdn_verify_layer"):
            same_on_both(Call(op, made), f"{op}, T={tokens}")
            same_on_both(Call(op, made | {"state_indices": None}), f"{op}, T={tokens}, slot n")
        parents = torch.tensor([-7, 0, 1, far, 2], dtype=dtype)[:tokens].repeat(6, 1)
        same_on_both(Call("gdn_verify_layer", made | {"parents": parents}), f"a tree of {tokens}")


@pytest.mark.parametrize("adjust", [dict, calls.contiguous])
@pytest.mark.parametrize("sequences", [1100, 2200])
def test_layers_of_many_sequences(sequences: int, adjust: Any) -> None:
    """So many that conv_gates has larger blocks."""
    for tokens in (1, 2):
        made = adjust(layer(Heads(1, 2, 64, 64), tokens, batch=sequences))
        same_on_both(Call("gdn_decode_layer_", made), f"N={sequences}, T={tokens}")


def test_layers_with_special_values() -> None:
    values = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-40, 3e38, -8.0, -30.0, 20.0, 89.0, -104.0])
    for op, tree in LAYERS:
        for dtype in DTYPES:
            made = calls.contiguous(layer(Heads(1, 3, 64, 64), 4, dtype, tree=tree))
            for name in ("qkv", "conv_state", "conv_weight", "conv_bias", "a", "b", "A_log", "dt_bias"):
                x = made[name]
                special = values[torch.randint(len(values), x.shape)].to(x.dtype)
                x.copy_(torch.where(torch.rand(x.shape) < 1 / 64, special, x))
            same_on_both(Call(op, made), f"{op} {dtype}")


def composed(made: dict[str, Any], heads: Heads, decode: bool) -> Tensor:
    """A layer by the single ops; without `decode` the states are only read."""
    slots = {"state_indices": made["state_indices"]}
    branches = {} if decode else {"parents": made.get("parents")}
    convolve = ops.causal_conv1d_ if decode else ops.causal_conv1d_verify
    mixed = convolve(made["qkv"], made["conv_weight"], made["conv_bias"], made["conv_state"], **slots, **branches)
    g, beta = ops.gdn_gates(made["a"], made["b"], made["A_log"], made["dt_bias"])
    rule = ops.gated_delta_rule_ if decode else ops.gated_delta_rule_verify
    inputs = cases.split(mixed, heads) | {"g": g, "beta": beta, "state": made["state"], "qk_l2norm": True}
    o = rule(**inputs, **slots, **branches)
    return ops.gated_rms_norm(o if decode else o[0], made["z"], made["norm_weight"])


@pytest.mark.parametrize("adjust", [dict, calls.contiguous])
@pytest.mark.parametrize(("op", "tree"), LAYERS)
def test_a_layer_is_its_single_ops(op: str, tree: bool, adjust: Any) -> None:
    heads = Heads(2, 6, 128, 128)
    for tokens in range(1, 9):
        made = Call(op, adjust(layer(heads, tokens, tree=tree)))
        fused, apart = made.copy("cuda"), made.copy("cuda")
        expected = composed(apart.arguments, heads, op == "gdn_decode_layer_")
        assert_same_bits(fused.run()[0], expected, f"{op}, T={tokens}")
        for (name, x), (_, y) in zip(fused.buffers(), apart.buffers(), strict=True):
            assert_same_bits(x, y, f"{op}, T={tokens}: {name}")


@pytest.mark.parametrize(("op", "tree"), LAYERS)
def test_convolution_and_gates_of_a_layer_are_one_launch(op: str, tree: bool, fused: int) -> None:
    """With contiguous tensors it is the packed form, whatever the number of tokens."""
    if in_one_launch(op, fused) and not tree:
        made = Call(op, layer(Heads(2, 6, 128, 128), 4)).copy("cuda")
        assert launches(made, "layer_kernel") == launches(made, "gdn::") == 1
        return
    for tokens in (1, 4):
        made = Call(op, calls.contiguous(layer(Heads(2, 6, 128, 128), tokens, tree=tree))).copy("cuda")
        for kernel, expected in {"conv_gates_kernel": 1, "PackedConv": 1, "causal_conv1d": 0, "gdn_gates": 0}.items():
            assert launches(made, kernel) == expected, kernel


FUSED = [Heads(2, 6, 128, 128), Heads(1, 2, 64, 64), Heads(1, 4, 64, 256), Heads(1, 4, 128, 64), Heads(1, 2, 256, 64)]
WIDE = [Heads(1, 3, 128, 256), Heads(1, 1, 256, 256)]


@pytest.mark.parametrize("heads", [*FUSED, *WIDE])
@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_layers(heads: Heads, dtype: torch.dtype, fused: int) -> None:
    """One kernel for step and norm where a block holds a whole head, whatever the dtypes and the heads a block."""
    N = 3
    for tokens, layout, activation in ((1, "kv", "silu"), (3, "vk", "sigmoid"), (8, "kv", "silu")):
        made = cases.layer(heads, N, tokens, dtype, slots=N + 1, layout=layout) | {
            "state_indices": index(*torch.randperm(N + 1)[:N].tolist()),
            "state_layout": layout,
            "norm_activation": activation,
        }
        made["state_indices"][0] = -1
        if tokens == 3:
            made["z"], made["norm_weight"] = made["z"].float(), made["norm_weight"].float()
        for op in ("gdn_decode_layer_", "gdn_verify_layer"):
            for count in (1, 4):
                registry.reset_served()
                with registry.overrides(GDN_STEP_HEADS=count):
                    same_on_both(Call(op, made), f"{op} T={tokens} {layout}")
                (served,) = (kernel for kernel in registry.served() if "cpu" not in kernel)
                if heads in WIDE:
                    assert served.endswith("gated_rms_norm")
                else:
                    name = "step" if op == "gdn_decode_layer_" else "verify"
                    one = op.removeprefix("gdn_").removesuffix("_")
                    assert served == (one if in_one_launch(op, fused) else f"conv_gates, {name}_norm")
        if tokens == 8:
            same_on_both(Call("gdn_decode_layer_", calls.odd(made)), "odd addresses")


def test_launches_of_the_recurrence(fused: int) -> None:
    """The kernels that the registry names are the ones that run."""
    for op in ("gdn_decode_layer_", "gdn_verify_layer"):
        made = Call(op, layer(Heads(2, 6, 128, 128), 1)).copy("cuda")
        for split in (0, 1):
            with registry.overrides(GDN_SPLIT=split):
                counts = {kernel: launches(made, kernel) for kernel in ("step_kernel", "rec_lanes", "gated_rms_norm")}
            steps = split or not in_one_launch(op, fused)
            assert counts == {"step_kernel": steps, "rec_lanes": 0, "gated_rms_norm": split}


@pytest.mark.parametrize("head_map", ["grouped", "tiled"])
@pytest.mark.parametrize("group", [5, 8, 16])
def test_many_value_heads_a_key_head(group: int, head_map: str) -> None:
    """Clusters up to their largest size, and more value heads than that."""
    for op in ("gdn_decode_layer_", "gdn_verify_layer"):
        made = layer(Heads(1, group, 128, 128), 2) | {"head_map": head_map}
        same_on_both(Call(op, made), f"{op} HV={group} {head_map}")


@pytest.mark.parametrize("sequences", [2, 300])
def test_layers_in_a_graph(sequences: int) -> None:
    """Two layers and a verify, one after another in a captured graph, with other slots at each replay. With many
    sequences the blocks of a step start long before the convolution of all of them has ended."""
    heads, tokens = Heads(1, 3, 128, 128), 8
    made = [Call("", layer(heads, tokens, batch=sequences)).copy("cuda").arguments for _ in range(2)]
    made[1]["state_indices"] = made[0]["state_indices"]
    fresh = [{name: made[i][name].clone() for name in ("state", "conv_state")} for i in range(2)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())

    def run() -> list[Tensor]:
        y = [ops.gdn_decode_layer_(**x) for x in made]
        return [*y, *ops.gdn_verify_layer(**made[0])]

    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    for turn in range(3):
        made[0]["state_indices"].copy_(torch.roll(made[0]["state_indices"], 1))
        for x, start in zip(made, fresh, strict=True):
            for name, value in start.items():
                x[name].copy_(value)
        graph.replay()
        replayed = [x.clone() for x in (*results, *(t for x in made for t in (x["state"], x["conv_state"])))]
        for x, start in zip(made, fresh, strict=True):
            for name, value in start.items():
                x[name].copy_(value)
        with registry.overrides(GDN_SPLIT=1):  # the norm apart, no early start
            expected = run()
        expected += [t for x in made for t in (x["state"], x["conv_state"])]
        for x, y in zip(replayed, expected, strict=True):
            assert_same_bits(x, y, f"replay {turn}")


def test_layers_on_two_streams() -> None:
    """Different layers at the same time."""
    heads = Heads(2, 6, 128, 128)
    made = [Call("gdn_decode_layer_", layer(heads, 2)).copy("cuda") for _ in range(2)]
    expected = [x.copy("cuda") for x in made]
    alone = [x.run()[0] for x in expected]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in made]
    together = []
    for x, stream in zip(made, streams, strict=True):
        with torch.cuda.stream(stream):
            together.append(x.run()[0])
    torch.cuda.synchronize()
    for x, y in zip(together, alone, strict=True):
        assert_same_bits(x, y, "y")
    for x, y in zip(made, expected, strict=True):
        for (name, a), (_, b) in zip(x.buffers(), y.buffers(), strict=True):
            assert_same_bits(a, b, name)
