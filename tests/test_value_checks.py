"""GDN_CHECK=1: the values in index tensors, each with the message that a wrong one gives, for every op that has them.

What the kernels do with wrong values that are not checked: test_index_values.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from calls import H, K, S, T, call, f32, i64, memory, run, written
from expecttest import assert_expected_inline

from strata_gdn import ops, registry


@pytest.fixture
def checked() -> Iterator[None]:
    with registry.overrides(GDN_CHECK=1):
        yield


def _line(op: str, argument: str, value) -> str:
    arguments = {**call(op), argument: torch.tensor(value, dtype=torch.int32)}
    before = memory(written(op, arguments))
    with pytest.raises(ValueError, match=f"^{op}: ") as caught:
        run(op, arguments)
    assert memory(written(op, arguments)) == before
    return f"{argument}={value}\n  -> {caught.value}"


def _table(op: str, *wrong: tuple[str, list]) -> str:
    run(op, call(op))
    return "\n".join(_line(op, argument, value) for argument, value in wrong) + "\n"


SLOTS = [
    ("state_indices", [0, S]),
    ("state_indices", [-2, 0]),
]
WRITTEN_SLOTS = [*SLOTS, ("state_indices", [1, 1])]
BOUNDS = [
    ("cu_seqlens", [1, 2, T]),
    ("cu_seqlens", [0, 2, T - 1]),
    ("cu_seqlens", [0, T + 1, T]),
    ("cu_seqlens", [0, 1, T + 1]),
]
TREES = [
    ("parents", [[-1, 0, 0], [0, 0, 1]]),
    ("parents", [[-1, 0, 2], [-1, 0, 1]]),
    ("parents", [[-1, -2, 0], [-1, 0, 1]]),
]
WINDOWS = [
    ("accepted", [T + 1, 0]),
    ("accepted", [0, -1]),
    ("path", [[0, T, 0], [0, 1, 2]]),
    ("path", [[-1, 0, 0], [0, 1, 2]]),
]


@pytest.mark.usefixtures("checked")
def test_gated_delta_rule():
    wrong = []
    for _, value in BOUNDS:
        arguments = {name: t[:1] for name, t in call("gated_delta_rule").items() if name != "initial_state"}
        with pytest.raises(ValueError, match=r"^gated_delta_rule: ") as caught:
            ops.gated_delta_rule(**arguments, cu_seqlens=i64(*value))
        wrong.append(str(caught.value))
    assert_expected_inline(
        "\n".join(wrong) + "\n",
        """\
gated_delta_rule: cu_seqlens must start at 0; got 1
gated_delta_rule: cu_seqlens must end at T=3; got 2
gated_delta_rule: cu_seqlens must not decrease; got 3 after 4 at 2
gated_delta_rule: cu_seqlens must end at T=3; got 4
""",
    )


@pytest.mark.usefixtures("checked")
def test_gated_delta_rule_():
    assert_expected_inline(
        _table("gated_delta_rule_", *WRITTEN_SLOTS, *BOUNDS),
        """\
state_indices=[0, 3]
  -> gated_delta_rule_: state_indices[1] must be in [-1, S=3); got 3
state_indices=[-2, 0]
  -> gated_delta_rule_: state_indices[0] must be in [-1, S=3); got -2
state_indices=[1, 1]
  -> gated_delta_rule_: state_indices must not repeat a slot that is written; got slot 1 at 0 and at 1
cu_seqlens=[1, 2, 3]
  -> gated_delta_rule_: cu_seqlens must start at 0; got 1
cu_seqlens=[0, 2, 2]
  -> gated_delta_rule_: cu_seqlens must end at T=3; got 2
cu_seqlens=[0, 4, 3]
  -> gated_delta_rule_: cu_seqlens must not decrease; got 3 after 4 at 2
cu_seqlens=[0, 1, 4]
  -> gated_delta_rule_: cu_seqlens must end at T=3; got 4
""",
    )


@pytest.mark.usefixtures("checked")
def test_gated_delta_rule_verify():
    assert_expected_inline(
        _table("gated_delta_rule_verify", *SLOTS, *TREES),
        """\
state_indices=[0, 3]
  -> gated_delta_rule_verify: state_indices[1] must be in [-1, S=3); got 3
state_indices=[-2, 0]
  -> gated_delta_rule_verify: state_indices[0] must be in [-1, S=3); got -2
parents=[[-1, 0, 0], [0, 0, 1]]
  -> gated_delta_rule_verify: parents[1, 0] must be in [-1, 0); got 0
parents=[[-1, 0, 2], [-1, 0, 1]]
  -> gated_delta_rule_verify: parents[0, 2] must be in [-1, 2); got 2
parents=[[-1, -2, 0], [-1, 0, 1]]
  -> gated_delta_rule_verify: parents[0, 1] must be in [-1, 1); got -2
""",
    )


@pytest.mark.usefixtures("checked")
def test_gated_delta_rule_commit_():
    assert_expected_inline(
        _table("gated_delta_rule_commit_", *WRITTEN_SLOTS, *WINDOWS),
        """\
state_indices=[0, 3]
  -> gated_delta_rule_commit_: state_indices[1] must be in [-1, S=3); got 3
state_indices=[-2, 0]
  -> gated_delta_rule_commit_: state_indices[0] must be in [-1, S=3); got -2
state_indices=[1, 1]
  -> gated_delta_rule_commit_: state_indices must not repeat a slot that is written; got slot 1 at 0 and at 1
accepted=[4, 0]
  -> gated_delta_rule_commit_: accepted[0] must be in [0, T=3]; got 4
accepted=[0, -1]
  -> gated_delta_rule_commit_: accepted[1] must be in [0, T=3]; got -1
path=[[0, 3, 0], [0, 1, 2]]
  -> gated_delta_rule_commit_: path[0, 1] must be in [0, T=3); got 3
path=[[-1, 0, 0], [0, 1, 2]]
  -> gated_delta_rule_commit_: path[0, 0] must be in [0, T=3); got -1
""",
    )


@pytest.mark.usefixtures("checked")
def test_gated_delta_rule_commit_layers_():
    assert_expected_inline(
        _table("gated_delta_rule_commit_layers_", *WRITTEN_SLOTS, *WINDOWS),
        """\
state_indices=[0, 3]
  -> gated_delta_rule_commit_layers_: state_indices[1] must be in [-1, S=3); got 3
state_indices=[-2, 0]
  -> gated_delta_rule_commit_layers_: state_indices[0] must be in [-1, S=3); got -2
state_indices=[1, 1]
  -> gated_delta_rule_commit_layers_: state_indices must not repeat a slot that is written; got slot 1 at 0 and at 1
accepted=[4, 0]
  -> gated_delta_rule_commit_layers_: accepted[0] must be in [0, T=3]; got 4
accepted=[0, -1]
  -> gated_delta_rule_commit_layers_: accepted[1] must be in [0, T=3]; got -1
path=[[0, 3, 0], [0, 1, 2]]
  -> gated_delta_rule_commit_layers_: path[0, 1] must be in [0, T=3); got 3
path=[[-1, 0, 0], [0, 1, 2]]
  -> gated_delta_rule_commit_layers_: path[0, 0] must be in [0, T=3); got -1
""",
    )


@pytest.mark.usefixtures("checked")
def test_gated_delta_rule_commit_verify_():
    assert_expected_inline(
        _table("gated_delta_rule_commit_verify_", *WRITTEN_SLOTS, *WINDOWS, *TREES),
        """\
state_indices=[0, 3]
  -> gated_delta_rule_commit_verify_: state_indices[1] must be in [-1, S=3); got 3
state_indices=[-2, 0]
  -> gated_delta_rule_commit_verify_: state_indices[0] must be in [-1, S=3); got -2
state_indices=[1, 1]
  -> gated_delta_rule_commit_verify_: state_indices must not repeat a slot that is written; got slot 1 at 0 and at 1
accepted=[4, 0]
  -> gated_delta_rule_commit_verify_: accepted[0] must be in [0, T=3]; got 4
accepted=[0, -1]
  -> gated_delta_rule_commit_verify_: accepted[1] must be in [0, T=3]; got -1
path=[[0, 3, 0], [0, 1, 2]]
  -> gated_delta_rule_commit_verify_: path[0, 1] must be in [0, T=3); got 3
path=[[-1, 0, 0], [0, 1, 2]]
  -> gated_delta_rule_commit_verify_: path[0, 0] must be in [0, T=3); got -1
parents=[[-1, 0, 0], [0, 0, 1]]
  -> gated_delta_rule_commit_verify_: parents[1, 0] must be in [-1, 0); got 0
parents=[[-1, 0, 2], [-1, 0, 1]]
  -> gated_delta_rule_commit_verify_: parents[0, 2] must be in [-1, 2); got 2
parents=[[-1, -2, 0], [-1, 0, 1]]
  -> gated_delta_rule_commit_verify_: parents[0, 1] must be in [-1, 1); got -2
""",
    )


@pytest.mark.usefixtures("checked")
def test_causal_conv1d():
    wrong = []
    for _, value in BOUNDS:
        arguments = {name: t for name, t in call("causal_conv1d").items() if name != "initial_state"}
        arguments["x"] = arguments["x"][:1]
        with pytest.raises(ValueError, match=r"^causal_conv1d: ") as caught:
            ops.causal_conv1d(**arguments, cu_seqlens=i64(*value))
        wrong.append(str(caught.value))
    assert_expected_inline(
        "\n".join(wrong) + "\n",
        """\
causal_conv1d: cu_seqlens must start at 0; got 1
causal_conv1d: cu_seqlens must end at T=3; got 2
causal_conv1d: cu_seqlens must not decrease; got 3 after 4 at 2
causal_conv1d: cu_seqlens must end at T=3; got 4
""",
    )


@pytest.mark.usefixtures("checked")
def test_causal_conv1d_():
    assert_expected_inline(
        _table("causal_conv1d_", *WRITTEN_SLOTS, *BOUNDS),
        """\
state_indices=[0, 3]
  -> causal_conv1d_: state_indices[1] must be in [-1, S=3); got 3
state_indices=[-2, 0]
  -> causal_conv1d_: state_indices[0] must be in [-1, S=3); got -2
state_indices=[1, 1]
  -> causal_conv1d_: state_indices must not repeat a slot that is written; got slot 1 at 0 and at 1
cu_seqlens=[1, 2, 3]
  -> causal_conv1d_: cu_seqlens must start at 0; got 1
cu_seqlens=[0, 2, 2]
  -> causal_conv1d_: cu_seqlens must end at T=3; got 2
cu_seqlens=[0, 4, 3]
  -> causal_conv1d_: cu_seqlens must not decrease; got 3 after 4 at 2
cu_seqlens=[0, 1, 4]
  -> causal_conv1d_: cu_seqlens must end at T=3; got 4
""",
    )


@pytest.mark.usefixtures("checked")
def test_causal_conv1d_verify():
    assert_expected_inline(
        _table("causal_conv1d_verify", *SLOTS, *TREES),
        """\
state_indices=[0, 3]
  -> causal_conv1d_verify: state_indices[1] must be in [-1, S=3); got 3
state_indices=[-2, 0]
  -> causal_conv1d_verify: state_indices[0] must be in [-1, S=3); got -2
parents=[[-1, 0, 0], [0, 0, 1]]
  -> causal_conv1d_verify: parents[1, 0] must be in [-1, 0); got 0
parents=[[-1, 0, 2], [-1, 0, 1]]
  -> causal_conv1d_verify: parents[0, 2] must be in [-1, 2); got 2
parents=[[-1, -2, 0], [-1, 0, 1]]
  -> causal_conv1d_verify: parents[0, 1] must be in [-1, 1); got -2
""",
    )


@pytest.mark.usefixtures("checked")
def test_causal_conv1d_commit_():
    assert_expected_inline(
        _table("causal_conv1d_commit_", *WRITTEN_SLOTS, *WINDOWS),
        """\
state_indices=[0, 3]
  -> causal_conv1d_commit_: state_indices[1] must be in [-1, S=3); got 3
state_indices=[-2, 0]
  -> causal_conv1d_commit_: state_indices[0] must be in [-1, S=3); got -2
state_indices=[1, 1]
  -> causal_conv1d_commit_: state_indices must not repeat a slot that is written; got slot 1 at 0 and at 1
accepted=[4, 0]
  -> causal_conv1d_commit_: accepted[0] must be in [0, T=3]; got 4
accepted=[0, -1]
  -> causal_conv1d_commit_: accepted[1] must be in [0, T=3]; got -1
path=[[0, 3, 0], [0, 1, 2]]
  -> causal_conv1d_commit_: path[0, 1] must be in [0, T=3); got 3
path=[[-1, 0, 0], [0, 1, 2]]
  -> causal_conv1d_commit_: path[0, 0] must be in [0, T=3); got -1
""",
    )


@pytest.mark.usefixtures("checked")
def test_causal_conv1d_commit_layers_():
    assert_expected_inline(
        _table("causal_conv1d_commit_layers_", *WRITTEN_SLOTS, *WINDOWS),
        """\
state_indices=[0, 3]
  -> causal_conv1d_commit_layers_: state_indices[1] must be in [-1, S=3); got 3
state_indices=[-2, 0]
  -> causal_conv1d_commit_layers_: state_indices[0] must be in [-1, S=3); got -2
state_indices=[1, 1]
  -> causal_conv1d_commit_layers_: state_indices must not repeat a slot that is written; got slot 1 at 0 and at 1
accepted=[4, 0]
  -> causal_conv1d_commit_layers_: accepted[0] must be in [0, T=3]; got 4
accepted=[0, -1]
  -> causal_conv1d_commit_layers_: accepted[1] must be in [0, T=3]; got -1
path=[[0, 3, 0], [0, 1, 2]]
  -> causal_conv1d_commit_layers_: path[0, 1] must be in [0, T=3); got 3
path=[[-1, 0, 0], [0, 1, 2]]
  -> causal_conv1d_commit_layers_: path[0, 0] must be in [0, T=3); got -1
""",
    )


@pytest.mark.usefixtures("checked")
def test_gdn_decode_layer_():
    assert_expected_inline(
        _table("gdn_decode_layer_", *WRITTEN_SLOTS),
        """\
state_indices=[0, 3]
  -> gdn_decode_layer_: state_indices[1] must be in [-1, S=3); got 3
state_indices=[-2, 0]
  -> gdn_decode_layer_: state_indices[0] must be in [-1, S=3); got -2
state_indices=[1, 1]
  -> gdn_decode_layer_: state_indices must not repeat a slot that is written; got slot 1 at 0 and at 1
""",
    )


@pytest.mark.usefixtures("checked")
def test_gdn_verify_layer():
    assert_expected_inline(
        _table("gdn_verify_layer", *SLOTS, *TREES),
        """\
state_indices=[0, 3]
  -> gdn_verify_layer: state_indices[1] must be in [-1, S=3); got 3
state_indices=[-2, 0]
  -> gdn_verify_layer: state_indices[0] must be in [-1, S=3); got -2
parents=[[-1, 0, 0], [0, 0, 1]]
  -> gdn_verify_layer: parents[1, 0] must be in [-1, 0); got 0
parents=[[-1, 0, 2], [-1, 0, 1]]
  -> gdn_verify_layer: parents[0, 2] must be in [-1, 2); got 2
parents=[[-1, -2, 0], [-1, 0, 1]]
  -> gdn_verify_layer: parents[0, 1] must be in [-1, 1); got -2
""",
    )


def test_every_op_with_an_index_tensor_has_a_table():
    indexed = {"state_indices", "cu_seqlens", "parents", "accepted", "path"}
    with_index = {
        op
        for op in ops.__all__
        if indexed & {a.name for a in getattr(torch.ops.strata_gdn, op).default._schema.arguments}
    }
    assert with_index == set(ops.__all__) & {name.removeprefix("test_") for name in globals()}


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_strided_index_tensors_are_read_by_their_strides(dtype):
    arguments = call("gated_delta_rule_verify")
    slots = torch.tensor([[1, 99], [2, 99]], dtype=dtype)[:, 0]
    parents = torch.tensor([[-1, -1], [0, 0], [0, 1]], dtype=dtype).T
    expected = run(
        "gated_delta_rule_verify", {**arguments, "state_indices": i64(1, 2), "parents": parents.contiguous()}
    )
    got = run("gated_delta_rule_verify", {**arguments, "state_indices": slots, "parents": parents})
    assert all(torch.equal(x, y) for x, y in zip(got, expected, strict=True))
    with pytest.raises(ValueError, match=r"state_indices\[0\] must be in"):
        run("gated_delta_rule_verify", {**arguments, "state_indices": slots + S})


@pytest.mark.usefixtures("checked")
def test_rows_of_a_path_behind_the_accepted_ones_are_not_read():
    results = []
    for path in (i64([0, 2, 99], [-5, 99, 99]), i64([0, 2, 0], [0, 0, 0])):
        arguments = {**call("gated_delta_rule_commit_"), "path": path}
        run("gated_delta_rule_commit_", arguments)
        results.append(memory(written("gated_delta_rule_commit_", arguments)))
    assert results[0] == results[1]


@pytest.mark.usefixtures("checked")
def test_empty_index_tensors():
    pool, empty = f32(S, H, K, K), f32(0, 0, H, K)
    before = memory([pool])
    none = i64(1)[:0]
    ops.gated_delta_rule_commit_(pool, empty, empty, empty[..., 0], none, none, none[:, None].expand(0, 0))
    assert memory([pool]) == before
    o, _ = ops.gated_delta_rule(*[f32(1, 0, H, K)] * 3, *[f32(1, 0, H)] * 2, cu_seqlens=i64(0))
    assert o.shape == (1, 0, H, K)
