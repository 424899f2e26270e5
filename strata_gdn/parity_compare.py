"""What a device's tensor is held against: another one's bits, or float64 and a bound."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _coordinate(flat_index: int, shape: torch.Size) -> tuple[int, ...]:
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
    actual, expected = actual.cpu().contiguous(), expected.contiguous()
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
        f"{list(_coordinate(worst, actual.shape))}: {a.item()!r} ({_hex(a)}), expected {e.item()!r} ({_hex(e)})"
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
    """`bound`: of each element's difference, broadcastable to `reference`. What is not finite is infinitely far."""
    difference = (actual.cpu().double() - reference).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    used = torch.where(difference == 0.0, 0.0, difference / bound)
    worst = int(used.flatten().argmax())
    largest = difference.max() / reference.abs().max()
    return Distance(largest.item(), used.flatten()[worst].item(), _coordinate(worst, reference.shape))
