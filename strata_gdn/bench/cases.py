"""The table of what is timed on a GPU: `CASES`.

A case names its shape and its arms, the kernels that are to serve it under which switches; its inputs are made when
its turn comes. A new line of the benchmark is a new entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from . import peers, roofline

DEVICE = "cuda"
HEAD_DIM, CONV_WIDTH = 128, 4
DTYPE = torch.bfloat16

PROMPT_LAYERS = ((16, 48), (16, 32), (2, 8))  # H, HV
PROMPT_TOKENS = (128, 512, 2048, 8192, 32768)
MORE_PROMPTS = ((2, 8, 4096, 1), (2, 8, 4096, 4), (4, 16, 4096, 1), (16, 32, 2048, 8))  # H, HV, T, N
POINTWISE_LAYER, POINTWISE_TOKENS = (16, 48), 8192


@dataclass(frozen=True)
class Arm:
    """Under these switches exactly these kernels have to serve the case."""

    kernels: tuple[str, ...]
    switches: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return " + ".join(self.kernels)


@dataclass(frozen=True)
class Peer:
    name: str
    call: Callable[[], object]


@dataclass(frozen=True)
class Calls:
    """A case with its inputs on the device."""

    ours: Callable[[], object]
    work: roofline.Work  # of one call
    peer: Peer | None


@dataclass(frozen=True)
class Case:
    """One shape. What a replay takes is divided by `repeats`, the calls that `Calls.ours` and the peer make in it."""

    name: str
    op: str  # as registry.decide names it
    key_heads: int
    value_heads: int
    tokens: int
    arms: tuple[Arm, ...]
    make: Callable[[Case], Calls]
    sequences: int = 1
    repeats: int = 1

    def __str__(self) -> str:
        return f"{self.name}, {self.tokens} tokens, {self.sequences} sequence{'s' * (self.sequences > 1)}"


# Prompts

RECURRENCES = (Arm(("rec_columns",), {"GDN_KEYHEAD": 0}), Arm(("rec_keyhead",), {"GDN_KEYHEAD": 1}))


def recurrence_inputs(case: Case) -> dict[str, Tensor]:
    """Reference inputs: normalised q and k, the slow gates (a quarter of the heads does not decay), bfloat16."""
    rows = case.sequences, case.tokens

    def keys() -> Tensor:
        return F.normalize(torch.randn(*rows, case.key_heads, HEAD_DIM, device=DEVICE), dim=-1).to(DTYPE)

    g = F.logsigmoid(torch.randn(*rows, case.value_heads, device=DEVICE)) / 16
    g[..., ::4] = 0
    return {
        "q": keys(),
        "k": keys(),
        "v": torch.randn(*rows, case.value_heads, HEAD_DIM, device=DEVICE, dtype=DTYPE),
        "g": g,
        "beta": torch.randn(*rows, case.value_heads, device=DEVICE).sigmoid().to(DTYPE),
        "state": 0.1 * torch.randn(case.sequences, case.value_heads, HEAD_DIM, HEAD_DIM, device=DEVICE),
    }


def prompt_calls(case: Case) -> Calls:
    x = recurrence_inputs(case)
    peer = None
    if fla := peers.fla():
        arguments = {n: x[n] for n in ("q", "k", "v", "g", "beta")}
        peer = Peer("fla", lambda: fla.chunk_gated_delta_rule(
            **arguments, initial_state=x["state"], output_final_state=True))  # fmt: skip
    return Calls(lambda: ops.gated_delta_rule_(**x), roofline.recurrence(**x), peer)


def prompts() -> Iterator[Case]:
    for H, HV, tokens, sequences in (
        *((*layer, T, 1) for layer in PROMPT_LAYERS for T in PROMPT_TOKENS),
        *MORE_PROMPTS,
    ):
        yield Case(f"prompt HV={HV} H={H}", "gated_delta_rule", H, HV, tokens, RECURRENCES, prompt_calls, sequences)


# Pointwise ops: each beside a copy that moves as many bytes


def copy_of(work: roofline.Work) -> Peer:
    source = torch.empty(work.moved_bytes // 2, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    return Peer("copy", lambda: target.copy_(source))


def one_element() -> Peer:
    """The shortest kernel there is: what a replay takes at least."""
    one = torch.zeros(1, device=DEVICE)
    return Peer("one element", lambda: one.add_(1))


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DTYPE, device=DEVICE)


def norm_calls(case: Case) -> Calls:
    o, z = (random(1, case.tokens, case.value_heads, HEAD_DIM) for _ in range(2))
    weight = random(HEAD_DIM)
    work = roofline.pointwise((o, z, weight), (o,))
    return Calls(lambda: ops.gated_rms_norm(o, z, weight), work, copy_of(work))


def l2norm_calls(case: Case) -> Calls:
    q, k = (random(1, case.tokens, case.key_heads, HEAD_DIM) for _ in range(2))
    work = roofline.pointwise((q, k), (q, k))
    return Calls(lambda: ops.qk_l2norm(q, k), work, copy_of(work))


def conv_calls(case: Case) -> Calls:
    channels = (2 * case.key_heads + case.value_heads) * HEAD_DIM
    x, weight, state = random(1, case.tokens, channels), random(channels, CONV_WIDTH), random(1, channels, CONV_WIDTH)
    work = roofline.pointwise((x, weight, state), (x, state))
    return Calls(lambda: ops.causal_conv1d_(x, weight, None, state), work, copy_of(work))


def gates_calls(case: Case) -> Calls:
    a, b = (random(1, case.tokens, case.value_heads) for _ in range(2))
    A_log, dt_bias = (torch.randn(case.value_heads, device=DEVICE) for _ in range(2))
    results = (torch.empty(a.shape, device="meta") for _ in range(2))  # g and beta, float32
    work = roofline.pointwise((a, b, A_log, dt_bias), results)
    return Calls(lambda: ops.gdn_gates(a, b, A_log, dt_bias), work, one_element())


# Case, op, kernel, inputs.
POINTWISE = (
    ("gated_rms_norm against a copy", "gated_rms_norm", "gated_rms_norm", norm_calls),
    ("qk_l2norm against a copy", "qk_l2norm", "qk_l2norm", l2norm_calls),
    ("causal_conv1d_ against a copy", "causal_conv1d", "causal_conv1d", conv_calls),
    ("gdn_gates against one element", "gdn_gates", "gdn_gates", gates_calls),
)


def pointwise() -> Iterator[Case]:
    for name, op, kernel, make in POINTWISE:
        yield Case(name, op, *POINTWISE_LAYER, POINTWISE_TOKENS, (Arm((kernel,)),), make)


CASES = (*prompts(), *pointwise())
