"""Whatever is wrong with a call of an in-place op: it raises, and no state has changed, nor its version."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from calls import call, memory, run, tensors_of, written, written_names
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from torch import Tensor

from strata_gdn import ops

IN_PLACE = [op for op in ops.__all__ if written_names(op)]

# Any strides are right for these.
ANY_STRIDES = {"g", "beta", "a", "b", "g_log", "g_logs", "accepted", "state_indices", "cu_seqlens"}
ANY_STRIDES |= {"has_initial_state", "parents", "path"}

# Dimensions that may be larger: slots of a pool, columns of a window, and tokens that no other argument counts.
MAY_GROW = {
    *((op, "state", 0) for op in IN_PLACE if "layer" not in op),
    ("causal_conv1d_", "x", 1),
    ("causal_conv1d_", "state", 2),
    ("causal_conv1d_commit_", "state", 2),
    ("gdn_decode_layer_", "conv_state", 2),
}

WRONG_OPTIONS = {
    "scale": [float("nan"), float("-inf")],
    "l2_eps": [-1.0, float("nan")],
    "norm_eps": [-1.0, float("inf")],
    "head_map": ["", "Grouped", "tile"],
    "state_layout": ["", "KV", "vkv"],
    "precision": ["", "float32", "fp32", "fast"],
    "activation": ["", "relu"],
    "norm_activation": ["none", "relu"],
    "num_key_heads": [-(2**63), -1, 0, 3, 2**63 - 1],
}


def _grown(tensor: Tensor, dim: int) -> Tensor:
    return torch.cat((tensor, tensor.narrow(dim, 0, 1)), dim)


def _apart(tensor: Tensor) -> Tensor:
    """The same, its last dimension with a stride of 2."""
    return torch.stack((tensor, tensor), -1)[..., 0]


def _mutations(op: str, name: str, tensor: Tensor) -> dict[str, Callable[[], Tensor | None]]:
    """What makes the tensor wrong, by name."""
    wrong = {
        "complex": lambda: tensor.to(torch.complex64),
        "float64": lambda: tensor.to(torch.float64),
        "one dimension more": lambda: tensor[None],
        "one dimension less": lambda: tensor[0],
        "no dimension": lambda: tensor.flatten()[0],
    }
    for dim in range(tensor.dim()):
        if (op, name, dim) not in MAY_GROW:
            wrong[f"dimension {dim} larger"] = lambda dim=dim: _grown(tensor, dim)
    if name not in ANY_STRIDES:
        wrong["last dimension strided"] = lambda: _apart(tensor)
    if name in written_names(op):
        wrong["overlapping itself"] = lambda: tensor[:1].expand_as(tensor)
        wrong["float16"] = lambda: tensor.half()
    return wrong


def _wrong_list(draw, op: str, name: str, tensors: list[Tensor]) -> tuple[str, list[Tensor]]:
    kinds = ["entry", "longer", "shorter", *(["twice"] if name in written_names(op) else [])]
    kind = draw(st.sampled_from(kinds))
    if kind == "entry":
        i = draw(st.integers(0, len(tensors) - 1))
        what, tensor = _wrong_tensor(draw, op, name, tensors[i])
        return f"{name}[{i}] {what}", [*tensors[:i], tensor, *tensors[i + 1 :]]
    changed = {"longer": [*tensors, tensors[0].clone()], "shorter": tensors[:-1], "twice": [tensors[0]] * len(tensors)}
    return f"{name} {kind}", changed[kind]


def _wrong_tensor(draw, op: str, name: str, tensor: Tensor, may_be_none: bool = True) -> tuple[str, Tensor | None]:
    mutations = _mutations(op, name, tensor)
    if not may_be_none:
        mutations["None"] = lambda: None
    kind = draw(st.sampled_from(sorted(mutations)))
    return kind, mutations[kind]()


@st.composite
def wrong_calls(draw) -> tuple[str, dict]:
    op = draw(st.sampled_from(IN_PLACE))
    arguments = call(op)
    schema = {a.name: a for a in getattr(torch.ops.strata_gdn, op).default._schema.arguments}
    candidates = [name for name in schema if tensors_of(arguments.get(name)) or name in WRONG_OPTIONS]
    name = draw(st.sampled_from(candidates))
    value = arguments.get(name)
    if isinstance(value, list):
        what, arguments[name] = _wrong_list(draw, op, name, value)
    elif not isinstance(value, Tensor):
        arguments[name] = draw(st.sampled_from(WRONG_OPTIONS[name]))
        what = repr(arguments[name])
    else:
        what, arguments[name] = _wrong_tensor(draw, op, name, value, may_be_none=str(schema[name].type) != "Tensor")
    note(f"{op}: {name}: {what}")
    return op, arguments


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(wrong_calls())
def test_a_wrong_call_changes_nothing(wrong):
    op, arguments = wrong
    tensors = [t for value in arguments.values() for t in tensors_of(value)]
    before, versions = memory(tensors), [t._version for t in tensors]
    with pytest.raises(ValueError, match=f"^{op}: "):
        run(op, arguments)
    assert memory(tensors) == before
    assert [t._version for t in tensors] == versions


@pytest.mark.parametrize("op", IN_PLACE)
def test_the_unchanged_call_is_right_and_writes(op):
    """So that it is the mutation that raises above."""
    arguments = call(op)
    states = written(op, arguments)
    before, versions = memory(states), [t._version for t in states]
    run(op, arguments)
    assert all(new != old for new, old in zip(memory(states), before, strict=True))
    assert all(t._version > version for t, version in zip(states, versions, strict=True))


@pytest.mark.parametrize(("op", "name", "dim"), sorted(MAY_GROW))
def test_what_may_grow_is_accepted(op, name, dim):
    arguments = call(op)
    run(op, {**arguments, name: _grown(arguments[name], dim)})
