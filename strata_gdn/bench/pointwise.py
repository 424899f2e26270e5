"""The benchmark's pointwise ops, each beside a copy that moves as many bytes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import ops
from . import roofline
from .case import CONV_WIDTH, DTYPE, HEAD_DIM, Arm, Calls, Case, Peer

LAYER, TOKENS = (16, 48), 8192


def copy_of(work: roofline.Work) -> Peer:
    source = torch.empty(work.moved_bytes // 2, dtype=torch.uint8)
    target = torch.empty_like(source)
    return Peer("copy", lambda: target.copy_(source))


def one_element() -> Peer:
    """The shortest kernel there is: what a replay takes at least."""
    one = torch.zeros(1)
    return Peer("one element", lambda: one.add_(1))


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DTYPE)


def norm_calls(case: Case) -> Calls:
    o, z = (random(1, case.tokens, case.value_heads, HEAD_DIM) for _ in range(2))
    weight = random(HEAD_DIM)
    work = roofline.pointwise((o, z, weight), (o,))
    return Calls(lambda: ops.gated_rms_norm(o, z, weight), work, (copy_of(work),))


def l2norm_calls(case: Case) -> Calls:
    q, k = (random(1, case.tokens, case.key_heads, HEAD_DIM) for _ in range(2))
    work = roofline.pointwise((q, k), (q, k))
    return Calls(lambda: ops.qk_l2norm(q, k), work, (copy_of(work),))


def conv_calls(case: Case) -> Calls:
    channels = (2 * case.key_heads + case.value_heads) * HEAD_DIM
    x, weight, state = random(1, case.tokens, channels), random(channels, CONV_WIDTH), random(1, channels, CONV_WIDTH)
    work = roofline.pointwise((x, weight, state), (x, state))
    return Calls(lambda: ops.causal_conv1d_(x, weight, None, state), work, (copy_of(work),))


def gates_calls(case: Case) -> Calls:
    a, b = (random(1, case.tokens, case.value_heads) for _ in range(2))
    A_log, dt_bias = (torch.randn(case.value_heads) for _ in range(2))
    results = (torch.empty(a.shape, device="meta") for _ in range(2))  # g and beta, float32
    work = roofline.pointwise((a, b, A_log, dt_bias), results)
    return Calls(lambda: ops.gdn_gates(a, b, A_log, dt_bias), work, (one_element(),))


# Case, op, kernel, inputs.
POINTWISE = (
    ("gated_rms_norm against a copy", "gated_rms_norm", "gated_rms_norm", norm_calls),
    ("qk_l2norm against a copy", "qk_l2norm", "qk_l2norm", l2norm_calls),
    ("causal_conv1d_ against a copy", "causal_conv1d", "causal_conv1d", conv_calls),
    ("gdn_gates against one element", "gdn_gates", "gdn_gates", gates_calls),
)


def pointwise() -> Iterator[Case]:
    for name, op, kernel, make in POINTWISE:
        yield Case(name, op, *LAYER, TOKENS, (Arm((kernel,)),), make)
