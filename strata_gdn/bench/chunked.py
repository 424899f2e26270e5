"""The benchmark's prompts in the chunked form in float32, beside the registry's exact kernel and fla's."""

from __future__ import annotations

from collections.abc import Iterator

from .. import ops
from . import roofline
from .case import Arm, Calls, Case, Mark, Peer
from .prompts import fla_peer, recurrence_inputs

EXACT = "exact"
# H, HV: three value heads a key head, two, one, four, and too few heads for the card.
LAYERS = ((16, 48), (16, 32), (16, 16), (16, 64), (2, 8))
TOKENS = {(16, 48): (32, 64, 96, 128, 192, 256, 512, 2048, 8192, 32768), (16, 32): (64, 128, 256, 2048, 8192)}
FEW_TOKENS = (128, 2048)  # of the other layers
MARKED, MARKED_TOKENS = (16, 48), 2048  # at least so many: 1.15 times as fast as the exact kernel
MARK = Mark(1 / 1.15, EXACT)


def chunked_calls(case: Case) -> Calls:
    x = recurrence_inputs(case)
    exact = Peer(EXACT, lambda: ops.gated_delta_rule_(**x, precision="exact"))
    return Calls(
        lambda: ops.gated_delta_rule_(**x, precision=case.precision), roofline.chunked(**x), (exact, *fla_peer(x))
    )


def chunked() -> Iterator[Case]:
    for layer in LAYERS:
        for tokens in TOKENS.get(layer, FEW_TOKENS):
            H, HV = layer
            yield Case(
                f"chunked HV={HV} H={H}", "gated_delta_rule", H, HV, tokens, (Arm(("chunk_fp32",)),), chunked_calls,
                precision="fp32", marks=(MARK,) if layer == MARKED and tokens >= MARKED_TOKENS else (),
            )  # fmt: skip
