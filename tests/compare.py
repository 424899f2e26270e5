"""Comparisons: bits, or a distance from a float64 reference. Each names the worst coordinate and both values there."""

from __future__ import annotations

import torch
from torch import Tensor

from strata_gdn.parity.compare import BITS, difference_in_bits, distance, largest_value


def _same_kind(actual: Tensor, expected: Tensor, name: str) -> None:
    assert actual.shape == expected.shape, f"{name}: shape {list(actual.shape)}, expected {list(expected.shape)}"
    assert actual.dtype == expected.dtype, f"{name}: {actual.dtype}, expected {expected.dtype}"
    assert actual.device == expected.device, f"{name}: on {actual.device}, expected {expected.device}"


def assert_same_bits(actual: Tensor, expected: Tensor, name: str = "tensor") -> None:
    """Every element has the same bits; a NaN equals any NaN."""
    _same_kind(actual, expected, name)
    if difference := difference_in_bits(actual, expected):
        raise AssertionError(f"{name}: {difference}")


def different_bits(actual: Tensor, expected: Tensor) -> int:
    """How many elements differ."""
    _same_kind(actual, expected, "tensor")
    bits = BITS[actual.element_size()]
    return int((actual.contiguous().view(bits) != expected.contiguous().view(bits)).sum())


def assert_close_to_float64(actual: Tensor, reference: Tensor, bound: float, name: str = "tensor") -> None:
    """The largest difference is at most `bound` times the reference's largest finite value.

    Where the reference is not finite, the actual value is the same infinity or a NaN too.
    """
    assert reference.dtype == torch.float64, f"{name}: the reference is {reference.dtype}"
    assert actual.shape == reference.shape, f"{name}: shape {list(actual.shape)}, expected {list(reference.shape)}"
    if not actual.numel():
        return
    largest = largest_value(reference)
    found = distance(actual, reference, torch.tensor(bound * largest))
    if not found.within:
        a, e = actual[found.at].item(), reference[found.at].item()
        raise AssertionError(
            f"{name}: the largest difference, {abs(a - e):.3e}, is above {bound:.3e} times the largest value "
            f"{largest:.3e}; at {list(found.at)}: {a!r} ({float(a).hex()}), expected {e!r} ({float(e).hex()})"
        )


def assert_bound_can_fail(actual: Tensor, reference: Tensor, bound: float) -> None:
    """The negative control of a bound: one element, pushed 2.5 bounds further away, must be found."""
    candidates = reference.isfinite().flatten().nonzero().flatten()
    largest = largest_value(reference)
    assert largest > 0.0, "no element can be pushed: the reference is zero or not finite everywhere"
    at = candidates[torch.randint(len(candidates), ())]
    pushed = actual.double().flatten().clone()
    away = 1.0 if pushed[at] >= reference.flatten()[at] else -1.0
    pushed[at] += away * 2.5 * bound * largest
    try:
        assert_close_to_float64(pushed.reshape(reference.shape), reference, bound)
    except AssertionError:
        return
    raise AssertionError(f"a difference of 2.5 times the bound {bound:.3e} passes")
