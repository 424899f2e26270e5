"""A tensor that is read while a state is written may not share its memory: the result would depend on the order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cases import Heads, index, layer, logs, recurrence, state_pool, window_pool
from torch import Tensor

from strata_gdn import ops as wrappers

ops = torch.ops.strata_gdn
HEADS = Heads(2, 4, 64, 64)


def inside(state: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A contiguous view of the state's own memory."""
    return state.view(-1)[: torch.Size(shape).numel()].view(shape)


def prompt(state: Tensor) -> None:
    inputs = recurrence(HEADS, 2, 3)
    ops.gated_delta_rule_(**inputs | {"k": inside(state, tuple(inputs["k"].shape))}, state=state)


def commit(state: Tensor) -> None:
    window = logs(HEADS, 2, 3) | {"d_log": inside(state, (2, 3, 4, 64))}
    ops.gated_delta_rule_commit_(state, **window, accepted=index(1, 2))


def commit_verify(state: Tensor) -> None:
    inputs = recurrence(HEADS, 2, 3) | {"v": inside(state, (2, 3, 4, 64))}
    ops.gated_delta_rule_commit_verify_(state, **logs(HEADS, 2, 3), accepted=index(1, 2), **inputs)


def convolve(state: Tensor) -> None:
    ops.causal_conv1d_(inside(state, (2, 3, 8)), torch.randn(8, 4), None, state)


def commit_windows(state: Tensor) -> None:
    ops.causal_conv1d_commit_(state, inside(state, (2, 2, 8)), index(1, 2))


def decode(state: Tensor) -> None:
    arguments = layer(HEADS, 2, 1, torch.float32, slots=2) | {"state": state, "z": inside(state, (2, 1, 4, 64))}
    ops.gdn_decode_layer_(**arguments)


def decode_gates(state: Tensor) -> None:
    arguments = layer(HEADS, 2, 1, torch.float32, slots=2) | {"state": state, "a": inside(state, (2, 1, 4))}
    ops.gdn_decode_layer_(**arguments)


def decode_inputs(state: Tensor) -> None:
    arguments = layer(HEADS, 2, 1, torch.float32, slots=2)
    ops.gdn_decode_layer_(**arguments | {"state": state, "qkv": inside(state, (2, 1, HEADS.channels))})


def decode_norm(state: Tensor) -> None:
    arguments = layer(HEADS, 2, 1, torch.float32, slots=2)
    ops.gdn_decode_layer_(**arguments | {"state": state, "norm_weight": inside(state, (64,))})


def decode_decay(state: Tensor) -> None:
    arguments = layer(HEADS, 2, 1, torch.float32, slots=2)
    ops.gdn_decode_layer_(**arguments | {"state": state, "A_log": inside(state, (4,))})


def decode_bias(state: Tensor) -> None:
    arguments = layer(HEADS, 2, 1, torch.float32, slots=2)
    ops.gdn_decode_layer_(**arguments | {"state": state, "conv_bias": inside(state, (HEADS.channels,))})


def convolve_weight(state: Tensor) -> None:
    ops.causal_conv1d_(torch.randn(2, 3, 8), inside(state, (8, 4)), None, state)


def convolve_bias(state: Tensor) -> None:
    ops.causal_conv1d_(torch.randn(2, 3, 8), torch.randn(8, 4), inside(state, (8,)), state)


def pool() -> Tensor:
    return state_pool(HEADS, 2, gap=False).contiguous()


def windows() -> Tensor:
    return window_pool(8, 2, 3, torch.float32).contiguous()


CASES: list[tuple[Callable[[Tensor], None], Callable[[], Tensor], str]] = [
    (prompt, pool, "gated_delta_rule_: k is read"),
    (commit, pool, "gated_delta_rule_commit_: d_log is read"),
    (commit_verify, pool, "gated_delta_rule_commit_verify_: v is read"),
    (convolve, windows, "causal_conv1d_: x is read"),
    (commit_windows, windows, "causal_conv1d_commit_: x is read"),
    (decode, pool, "gdn_decode_layer_: z is read"),
    (decode_gates, pool, "gdn_decode_layer_: a is read"),
    (decode_inputs, pool, "gdn_decode_layer_: qkv is read"),
    (decode_norm, pool, "gdn_decode_layer_: norm_weight is read"),
    (decode_decay, pool, "gdn_decode_layer_: A_log is read"),
    (decode_bias, pool, "gdn_decode_layer_: conv_bias is read"),
    (convolve_weight, windows, "causal_conv1d_: weight is read"),
    (convolve_bias, windows, "causal_conv1d_: bias is read"),
]


@pytest.mark.parametrize(("call", "make", "message"), CASES, ids=[call.__name__ for call, _, _ in CASES])
def test_shared_memory_is_refused(call: Callable[[Tensor], None], make: Callable[[], Tensor], message: str) -> None:
    state = make()
    before = state.clone()
    with pytest.raises(ValueError, match=f"{message} and must not share memory with state, which is written"):
        call(state)
    assert torch.equal(state, before)


@pytest.mark.parametrize("value", [1e300, -1e39, float("nan")])
def test_a_scale_that_is_no_float32(value: float) -> None:
    with pytest.raises(ValueError, match="gated_delta_rule: scale must be finite"):
        ops.gated_delta_rule(**recurrence(HEADS, 1, 2), scale=value)


def test_no_memory_says_for_what() -> None:
    huge = torch.zeros(1, 64).expand(2**42, 64)
    with pytest.raises(RuntimeError, match=r"no memory for a tensor of shape \[4398046511104, 64\], float32"):
        ops.qk_l2norm(huge, torch.zeros(1, 64))


@pytest.mark.parametrize("op", ["gated_delta_rule", "gated_delta_rule_"])
def test_a_refused_work_buffer_is_torchs_own_error(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    """Where precision="fp32" orders the kernel that needs one; other errors stay what they are."""
    rows = torch.zeros(1, 2, 1, 64)
    gates = torch.zeros(1, 2, 1)
    state = torch.zeros(1, 1, 64, 64)
    message = "strata_gdn: no memory for a tensor of shape [4398046511104], float32"

    def refused(*arguments: object, **options: object) -> None:
        assert options["precision"] == "fp32"
        raise RuntimeError(message)

    with pytest.raises(ValueError, match="is not available on cpu"):
        getattr(wrappers, op)(rows, rows, rows, gates, gates, state, precision="fp32")
    monkeypatch.setattr(wrappers, f"_{op}", refused)
    with pytest.raises(torch.OutOfMemoryError, match="no memory for a tensor"):
        getattr(wrappers, op)(rows, rows, rows, gates, gates, state, precision="fp32")
    message = "another"
    with pytest.raises(RuntimeError, match="another") as other:
        getattr(wrappers, op)(rows, rows, rows, gates, gates, state, precision="fp32")
    assert not isinstance(other.value, torch.OutOfMemoryError)
