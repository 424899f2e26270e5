"""What a device's tensor is held against: another one's bits, or float64 and a bound."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def coordinate(flat_index: int, shape: torch.Size) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat_index), shape))


def _hex(x: Tensor) -> str:
    """The bits of one element."""
    size = x.element_size()
    return f"0x{x.reshape(1).view(BITS[size]).item() % (1 << 8 * size):0{2 * size}x}"


def difference_in_bits(actual: Tensor, expected: Tensor) -> str:
    """What differs, with the coordinate and the bits of the worst element; empty: nothing. A NaN equals any NaN."""
    for what in ("shape", "dtype"):
        if getattr(actual, what) != getattr(expected, what):
            return f"{what} {getattr(actual, what)}, expected {getattr(expected, what)}"
    actual, expected = actual.cpu().contiguous(), expected.cpu().contiguous()
    bits = BITS[actual.element_size()]
    if torch.equal(actual.view(bits), expected.view(bits)):
        return ""
    wrong = actual.view(bits) != expected.view(bits)
    if actual.is_floating_point():
        wrong &= ~(actual.isnan() & expected.isnan())
    if not wrong.any():
        return ""
    size = (actual.double() - expected.double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    worst = int(size.masked_fill(~wrong, -1.0).flatten().argmax())
    a, e = actual.flatten()[worst], expected.flatten()[worst]
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements differ in bits; the worst at "
        f"{list(coordinate(worst, actual.shape))}: {a.item()!r} ({_hex(a)}), expected {e.item()!r} ({_hex(e)})"
    )


@dataclass(frozen=True)
class Distance:
    """From float64."""

    largest: float  # difference, over the reference's largest value
    used: float  # of the bound, where most of it is
    at: tuple[int, ...]  # the coordinate of that

    @property
    def within(self) -> bool:
        return self.used <= 1.0


def distance(actual: Tensor, reference: Tensor, bound: Tensor) -> Distance:
    """From a float64 reference with at least one element.

    Args:
        bound: of each element's difference, broadcastable to `reference`.

    A value that is not finite is infinitely far from all but the same infinity, or another NaN.
    """
    actual = actual.to(reference.device).double()
    alike = (actual == reference) | (actual.isnan() & reference.isnan())
    difference = (actual - reference).abs().nan_to_num(nan=torch.inf, posinf=torch.inf).masked_fill(alike, 0.0)
    used = torch.where(alike, 0.0, difference / bound).nan_to_num(nan=torch.inf, posinf=torch.inf)
    most = used.max()
    worst = int(difference.masked_fill(used < most, -1.0).flatten().argmax())
    largest = difference.max() / largest_value(reference)
    return Distance(largest.item(), most.item(), coordinate(worst, reference.shape))


def largest_value(x: Tensor) -> float:
    """The largest finite absolute value; 0 where there is none."""
    return x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs().max().item()
