"""The benchmark's prompts: the recurrence over whole layers, every exact kernel, beside fla's chunked form."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from . import peers, roofline
from .case import DTYPE, HEAD_DIM, Arm, Calls, Case, Peer

LAYERS = ((16, 48), (16, 32), (2, 8))  # H, HV
TOKENS = (128, 512, 2048, 8192, 32768)
MORE = ((2, 8, 4096, 1), (2, 8, 4096, 4), (4, 16, 4096, 1), (16, 32, 2048, 8))  # H, HV, T, N

# GDN_STEP=0: a prompt of 16 tokens or less too.
RECURRENCES = (
    Arm(("rec_columns",), {"GDN_STEP": 0, "GDN_KEYHEAD": 0}),
    Arm(("rec_keyhead",), {"GDN_STEP": 0, "GDN_KEYHEAD": 1}),
)
STEP = Arm(("step",), {"GDN_STEP": 1})  # of few tokens


def recurrence_inputs(case: Case) -> dict[str, Tensor]:
    """Reference inputs: normalised q and k, the slow gates (a quarter of the heads does not decay), bfloat16."""
    rows = case.sequences, case.tokens

    def keys() -> Tensor:
        return F.normalize(torch.randn(*rows, case.key_heads, HEAD_DIM), dim=-1).to(DTYPE)

    g = F.logsigmoid(torch.randn(*rows, case.value_heads)) / 16
    g[..., ::4] = 0
    return {
        "q": keys(),
        "k": keys(),
        "v": torch.randn(*rows, case.value_heads, HEAD_DIM, dtype=DTYPE),
        "g": g,
        "beta": torch.randn(*rows, case.value_heads).sigmoid().to(DTYPE),
        "state": 0.1 * torch.randn(case.sequences, case.value_heads, HEAD_DIM, HEAD_DIM),
    }


def fla_peer(x: dict[str, Tensor]) -> tuple[Peer, ...]:
    """fla's chunked form on the same inputs, with a new state; none where fla is not installed."""
    fla = peers.fla()
    if fla is None:
        return ()
    arguments = {n: x[n] for n in ("q", "k", "v", "g", "beta")}
    return (
        Peer("fla", lambda: fla.chunk_gated_delta_rule(**arguments, initial_state=x["state"], output_final_state=True)),
    )


def prompt_calls(case: Case) -> Calls:
    x = recurrence_inputs(case)
    return Calls(lambda: ops.gated_delta_rule_(**x), roofline.recurrence(**x), fla_peer(x))


def prompts() -> Iterator[Case]:
    for H, HV, tokens, sequences in (*((*layer, T, 1) for layer in LAYERS for T in TOKENS), *MORE):
        yield Case(f"prompt HV={HV} H={H}", "gated_delta_rule", H, HV, tokens, RECURRENCES, prompt_calls, sequences)
