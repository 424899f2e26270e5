"""tests/compare.py itself: what it must find, what it must let pass, and what it says."""

from __future__ import annotations

import pytest
import torch
from compare import assert_bound_can_fail, assert_close_to_float64, assert_same_bits, different_bits


def test_bits_pass() -> None:
    x = torch.randn(3, 4)
    assert_same_bits(x.T, x.T.contiguous())
    assert_same_bits(torch.tensor([float("nan"), 1.0]), torch.tensor([-float("nan"), 1.0]))
    assert_same_bits(torch.zeros(0, 3), torch.zeros(0, 3))
    assert_same_bits(torch.tensor([1, -2]), torch.tensor([1, -2]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_bit_is_found_and_named(dtype: torch.dtype) -> None:
    expected = torch.ones(2, 3, 5, dtype=dtype)
    actual = expected.clone()
    actual.view(torch.int32 if dtype is torch.float32 else torch.int16)[1, 2, 3] += 1
    with pytest.raises(AssertionError, match=r"state: 1 of 30 elements differ in bits; the worst at \[1, 2, 3\]: 1\.0"):
        assert_same_bits(actual, expected, "state")
    assert different_bits(actual, expected) == 1


def test_the_message_has_both_values_in_hex() -> None:
    with pytest.raises(AssertionError, match=r"at \[1\]: -0\.0 \(0x80000000\), expected 0\.0 \(0x00000000\)"):
        assert_same_bits(torch.tensor([1.0, -0.0]), torch.tensor([1.0, 0.0]))


def test_the_worst_of_several_is_named() -> None:
    expected = torch.zeros(4)
    with pytest.raises(AssertionError, match=r"3 of 4 elements .* at \[2\]: 5\.0"):
        assert_same_bits(torch.tensor([0.0, 1.0, 5.0, -2.0]), expected)
    with pytest.raises(AssertionError, match=r"at \[3\]: nan"):
        assert_same_bits(torch.tensor([0.0, 1.0, 5.0, torch.nan]), expected)


@pytest.mark.parametrize(
    ("actual", "sentence"),
    [(torch.zeros(2, 1), "shape"), (torch.zeros(2, dtype=torch.float64), "float64"), (torch.ones(2), "differ in bits")],
)
def test_other_kinds_are_refused(actual: torch.Tensor, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        assert_same_bits(actual, torch.zeros(2))


def test_close() -> None:
    reference = torch.tensor([0.0, 4.0, -2.0], dtype=torch.float64)
    bound = 0.01
    assert_close_to_float64(reference.float() + torch.tensor([0.039, 0.0, 0.0]), reference, bound)
    with pytest.raises(AssertionError, match=r"o: the largest difference, 1\.000e-01, .* at \[0\]: 0\.1000"):
        assert_close_to_float64(reference.float() + torch.tensor([0.1, 0.0, -0.05]), reference, bound, "o")


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_what_is_not_finite_must_agree(bad: float) -> None:
    reference = torch.tensor([1.0, bad], dtype=torch.float64)
    assert_close_to_float64(reference.float(), reference, 1e-6)
    with pytest.raises(AssertionError, match=r"at \[1\]"):
        assert_close_to_float64(torch.tensor([1.0, 2.0]), reference, 1e-6)
    with pytest.raises(AssertionError, match=r"at \[1\]"):
        assert_close_to_float64(torch.tensor([1.0, bad]), torch.ones(2, dtype=torch.float64), 1e-6)


def test_negative_control() -> None:
    reference = torch.randn(50, dtype=torch.float64)
    assert_bound_can_fail(reference.float(), reference, 1e-5)
    everything_passes = torch.full((3,), torch.nan, dtype=torch.float64)
    with pytest.raises(AssertionError, match="no element"):
        assert_bound_can_fail(everything_passes.float(), everything_passes, 1e-5)
    with pytest.raises(AssertionError, match="no element"):
        assert_bound_can_fail(torch.zeros(3), torch.zeros(3, dtype=torch.float64), 1e-5)
