"""How far one arm's logits are from another's, and how far the fp32 lane's may be.

With exact logits l and an arm's l + d, p = softmax(l) and q = softmax(l + d):

    KL(p‖q) = log E_p[e^(d − E_p d)] ≤ (max d − min d)² / 8        (Hoeffding's lemma)

What the contract says of a call of the fp32 lane, largest difference over largest value at most ε = 1e-4, is asked of
the logits too: |d| ≤ ε L, L the largest logit. Then KL ≤ (2 ε L)² / 8 = (ε L)² / 2, which is the limit. It is an order
for the whole model and stricter than the contract, which does not imply it: the gated norm divides a head's output by
its own size, so that a difference that is small beside the largest head's is large in a small one. It lies where it
tells float32 from less: a chunked form in float32 is at about 2e-4 of it, q, k and v rounded to TF32's 11 bits are a
thousand times above it and more (docs/parity.md has the numbers).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .compare import largest_value

EPSILON = 1e-4  # of the largest logit: the fp32 lane's in docs/contract.md


@dataclass(frozen=True)
class Distance:
    """Of an arm's next token from the exact one's. Where a logit is not finite: NaN, and no equal token."""

    kl: float  # KL(exact‖arm), nats
    limit: float  # of the fp32 lane
    largest: float  # difference of the logits, over the largest exact logit
    lead: float  # of the exact first choice over the second, in the same unit
    same_choice: bool

    @property
    def within(self) -> bool:
        return self.kl <= self.limit


def divergence(exact: Tensor, arm: Tensor) -> float:
    """KL(softmax(exact)‖softmax(arm)) in float64, of logits [vocabulary]; 0 for equal ones, NaN if one is not finite.

    With x = log q − log p the sum of p (e^x − 1 − x): Σ p (e^x − 1) is Σ q − Σ p = 0, and without negative terms
    nothing cancels, so that a divergence of 1e-12 keeps its digits.
    """
    log_p = exact.double().log_softmax(-1)
    x = arm.double().log_softmax(-1) - log_p
    return (log_p.exp() * (x.expm1() - x)).sum().item()


def distance(exact: Tensor, arm: Tensor) -> Distance:
    """Of an arm's logits [vocabulary] from the exact ones."""
    exact, arm = exact.cpu().double(), arm.cpu().double()
    finite = bool(exact.isfinite().all() and arm.isfinite().all())
    unit = largest_value(exact)
    first, second = exact.topk(2).values.tolist()
    return Distance(
        kl=divergence(exact, arm) if finite else torch.nan,
        limit=(EPSILON * unit) ** 2 / 2,
        largest=((arm - exact).abs().max() / unit).item() if finite else torch.nan,
        lead=(first - second) / unit if unit else torch.nan,
        same_choice=finite and bool(exact.argmax() == arm.argmax()),
    )
