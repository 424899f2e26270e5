"""E1: the same bits on every instruction set and thread count, whatever the caller's float environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from cases import CALLS, F16, ISAS, Call, call
from compare import assert_same_bits, different_bits
from torch import Tensor

from strata_gdn import registry

THREADS = [1, 2, 3]

needs_isa = [
    pytest.param(
        isa,
        marks=pytest.mark.skipif(
            registry.cpu_arch() not in [f"cpu-{a}" for a in ISAS[ISAS.index(isa) :]], reason=f"this CPU has no {isa}"
        ),
    )
    for isa in ISAS
]


def outcome(made: Call) -> list[Tensor]:
    """The results and all argument memory after a call on a copy."""
    copy = made.copy()
    return [*copy.run(), *(buffer for _, buffer in copy.buffers())]


@pytest.mark.parametrize("isa", needs_isa)
@pytest.mark.parametrize("name", CALLS)
def test_instruction_sets_and_threads(name: str, isa: str, threads: None) -> None:
    made = call(name)
    torch.set_num_threads(1)
    with registry.overrides(GDN_CPU_ISA="baseline"):
        expected = outcome(made)
    for count in THREADS:
        torch.set_num_threads(count)
        with registry.overrides(GDN_CPU_ISA=isa):
            for i, (actual, want) in enumerate(zip(outcome(made), expected, strict=True)):
                assert_same_bits(actual, want, f"{name}, {isa}, {count} threads: {i}")


# What is made so small that its products and sums are subnormal.
SMALL_ARGUMENTS = {
    "v", "state", "states", "initial_state", "d_log", "d_logs", "x", "xs", "bias", "qkv", "conv_bias", "conv_state",
    "o",
}  # fmt: skip


def with_subnormals(made: Call) -> Call:
    for name, value in made.arguments.items():
        for tensor in value if isinstance(value, list) else [value]:
            if name in SMALL_ARGUMENTS and tensor is not None:
                tensor *= 1e-6 if tensor.dtype is F16 else 1e-38
            if name == "a":
                tensor.sub_(100.0)  # softplus is subnormal
            if made.op == "qk_l2norm" and name in ("q", "k"):
                tensor *= 1e-40
    return made


@pytest.fixture
def flushed() -> Iterator[None]:
    """The calling thread flushes subnormal numbers to zero, as torch.set_flush_denormal(True) makes it."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormal numbers")
    torch.set_flush_denormal(False)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("isa", needs_isa)
@pytest.mark.parametrize("name", CALLS)
def test_subnormals_are_kept(name: str, isa: str, flushed: None, threads: None) -> None:
    made = with_subnormals(call(name))
    expected = outcome(made)
    tiny = torch.tensor(1e-39)
    for count in THREADS:
        torch.set_num_threads(count)
        torch.set_flush_denormal(True)
        assert (tiny * 1.0).item() == 0.0, "torch itself flushes now"
        with registry.overrides(GDN_CPU_ISA=isa):
            actual = outcome(made)
        assert (tiny * 1.0).item() == 0.0, "the caller's setting is as it was"
        torch.set_flush_denormal(False)
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            assert_same_bits(a, e, f"{name}: {i}")


@pytest.mark.parametrize("op", sorted({name.split()[0] for name in CALLS}))
def test_subnormals_occur(op: str) -> None:
    """Otherwise the test above would say nothing: each op makes some in the arguments' or the results' memory."""
    for name in [name for name in CALLS if name.split()[0] == op]:
        made = with_subnormals(call(name))
        before = [buffer.clone() for _, buffer in made.buffers()]
        results = made.run()
        changed = [
            after
            for old, (_, after) in zip(before, made.buffers(), strict=True)
            if different_bits(after.nan_to_num() if after.is_floating_point() else after, old.nan_to_num())
        ]
        for x in [*results, *changed]:
            smallest = torch.finfo(x.dtype).tiny
            if ((x != 0) & (x.abs() < smallest)).any():
                return
    raise AssertionError(f"{op}: no subnormal number anywhere")
