"""The benchmark's decode and speculation: one layer of H = 16, HV = 48, or all of a model, states in device memory.

A step is held against an in-place multiply over the same state, torch's kernel that reads and writes it and does next
to nothing else, and fla's recurrent form, which writes a new state instead of the old one. q and k are normalised in
the ops, as models do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from . import peers, roofline
from .case import CONV_WIDTH, HEAD_DIM, Arm, Calls, Case, Mark, Peer
from .pointwise import random
from .prompts import RECURRENCES, recurrence_inputs

LAYER = (16, 48)  # H, HV
MODEL_LAYERS = 36
STEP_TOKENS = 16  # the most of `step`
STEP_LAYERS = 20  # one step of one sequence is below the events' resolution
WINDOW = 5  # drafted tokens that a commit chooses from
TREE, TREE_SEQUENCES = 16, 8

MULTIPLY, STEP, VERIFY, ONE_BY_ONE = "in-place multiply", "step", "verify", "a commit a layer"

# The marks, by sequences.
STEP_MARKS = {1: 1.10, 8: 1.03, 64: 1.03, 256: 1.03}  # times the multiply
VERIFY_MARKS = {1: {2: 6.5, 4: 6.5, 8: 9.0}, 8: {2: 13.0, 4: 13.0, 8: 20.0}, 64: {2: 60.0, 4: 60.0, 8: 90.0}}  # us
LAYER_MARKS = {1: Mark(7.5), 8: Mark(1.1, STEP), 64: Mark(1.1, STEP)}
COMMIT_MARK, ONE_BY_ONE_MARK = Mark(1.1, MULTIPLY), Mark(0.5, ONE_BY_ONE)
COMMIT_VERIFY_MARK = Mark(1.1, STEP)


def split(*kernels: str) -> tuple[Arm, ...]:
    """The kernels with few and with many blocks a head."""
    return tuple(Arm(kernels, {"GDN_SPLIT": value}) for value in (0, 1))


def fused(layer: str, recurrence: str) -> tuple[Arm, ...]:
    """A layer in one launch, in two with the norm in the recurrence's kernel, and with the norm apart."""
    return (
        Arm((layer,), {"GDN_FUSED_LAYER": 1}),
        Arm(("conv_gates", f"{recurrence}_norm"), {"GDN_FUSED_LAYER": 0}),
        Arm(("conv_gates", recurrence, "gated_rms_norm"), {"GDN_SPLIT": 1}),
    )


def multiply(*states: Tensor) -> Peer:
    return Peer(MULTIPLY, lambda: [state.mul_(1.0) for state in states])


def step(x: dict[str, Tensor]) -> Tensor:
    """A step with the first of the tokens."""
    return ops.gated_delta_rule_(**{n: t if n == "state" else t[:, :1] for n, t in x.items()}, qk_l2norm=True)


def binary_tree(sequences: int, tokens: int) -> Tensor:
    """parents [N, T]: two drafts follow each."""
    parents = (torch.arange(tokens) - 1).div(2, rounding_mode="floor")
    return parents.expand(sequences, tokens).contiguous()


def parents_of(case: Case) -> Tensor | None:
    return binary_tree(case.sequences, case.tokens) if case.tree else None


def log_inputs(case: Case, tokens: int) -> dict[str, Tensor]:
    """What a verify of so many tokens leaves."""
    rows = case.sequences, tokens
    return {
        "k_log": F.normalize(torch.randn(*rows, case.key_heads, HEAD_DIM), dim=-1),
        "d_log": torch.randn(*rows, case.value_heads, HEAD_DIM),
        "g_log": F.logsigmoid(torch.randn(*rows, case.value_heads)) / 16,
    }


def step_calls(case: Case) -> Calls:
    layers = [recurrence_inputs(case) for _ in range(case.repeats)]
    beside = [multiply(*(x["state"] for x in layers))]
    if fla := peers.fla():
        arguments = [
            {n: x[n] for n in ("q", "k", "v", "g", "beta")} | {"initial_state": x["state"]} for x in layers
        ]  # the list of results keeps each layer's new state apart
        beside.append(
            Peer(
                "fla, into a new state",
                lambda: [
                    fla.fused_recurrent_gated_delta_rule(**x, output_final_state=True, use_qk_l2norm_in_kernel=True)
                    for x in arguments
                ],
            )
        )
    return Calls(
        lambda: [ops.gated_delta_rule_(**x, qk_l2norm=True) for x in layers],
        roofline.recurrence(**layers[0]),
        tuple(beside),
    )


def verify_calls(case: Case) -> Calls:
    x, parents = recurrence_inputs(case), parents_of(case)
    return Calls(lambda: ops.gated_delta_rule_verify(**x, parents=parents, qk_l2norm=True), roofline.verify(**x))


def commit_calls(case: Case, accepted: int) -> Calls:
    H, HV = case.key_heads, case.value_heads
    states = 0.1 * torch.randn(MODEL_LAYERS, case.sequences, HV, HEAD_DIM, HEAD_DIM)
    layers = [{"state": state, **log_inputs(case, case.tokens)} for state in states]
    lists = {f"{name}s": [x[name] for x in layers] for name in layers[0]}
    counts = torch.full((case.sequences,), accepted)
    beside = [multiply(states)]
    if ONE_BY_ONE_MARK in case.marks:
        beside.append(Peer(ONE_BY_ONE, lambda: [ops.gated_delta_rule_commit_(**x, accepted=counts) for x in layers]))
    work = roofline.commit(states, H, min(accepted, case.tokens))
    return Calls(lambda: ops.gated_delta_rule_commit_layers_(**lists, accepted=counts), work, tuple(beside))


def window_commit_calls(case: Case, accepted: int) -> Calls:
    channels = (2 * case.key_heads + case.value_heads) * HEAD_DIM
    windows = random(MODEL_LAYERS, case.sequences, channels, CONV_WIDTH - 1)
    inputs = random(MODEL_LAYERS, case.sequences, case.tokens, channels)
    counts = torch.full((case.sequences,), accepted)
    work = roofline.pointwise((windows, inputs[:, :, :accepted]), (windows,))
    return Calls(lambda: ops.causal_conv1d_commit_layers_([*windows], [*inputs], counts), work, (multiply(windows),))


def commit_verify_calls(case: Case) -> Calls:
    """Every token of the last round was accepted, as many as there are new ones."""
    x, last, parents = recurrence_inputs(case), log_inputs(case, case.tokens), parents_of(case)
    counts = torch.full((case.sequences,), case.tokens)
    return Calls(
        lambda: ops.gated_delta_rule_commit_verify_(**last, accepted=counts, **x, parents=parents, qk_l2norm=True),
        roofline.commit_verify(**x, log_tokens=case.tokens),
        (Peer(STEP, lambda: step(x)),),
    )


def layer_inputs(case: Case, state: Tensor) -> dict[str, Any]:
    rows, channels = (case.sequences, case.tokens), (2 * case.key_heads + case.value_heads) * HEAD_DIM
    return {
        "qkv": random(*rows, channels),
        "z": random(*rows, case.value_heads, HEAD_DIM),
        "a": random(*rows, case.value_heads),
        "b": random(*rows, case.value_heads),
        "conv_weight": random(channels, CONV_WIDTH),
        "conv_bias": None,
        "A_log": torch.rand(case.value_heads).mul(16).log(),
        "dt_bias": torch.randn(case.value_heads),
        "norm_weight": random(HEAD_DIM),
        "conv_state": random(case.sequences, channels, CONV_WIDTH - 1),
        "state": state,
        "num_key_heads": case.key_heads,
    }


def decode_layer_calls(case: Case) -> Calls:
    x = recurrence_inputs(case)
    layer = layer_inputs(case, x["state"])
    return Calls(lambda: ops.gdn_decode_layer_(**layer), roofline.decode_layer(**layer), (Peer(STEP, lambda: step(x)),))


def verify_layer_calls(case: Case) -> Calls:
    x, parents = recurrence_inputs(case), parents_of(case)
    layer = layer_inputs(case, x["state"])
    return Calls(
        lambda: ops.gdn_verify_layer(**layer, parents=parents),
        roofline.verify_layer(**layer),
        (Peer(VERIFY, lambda: ops.gated_delta_rule_verify(**x, parents=parents, qk_l2norm=True)),),
    )


def _case(name: str, op: str, tokens: int, arms: tuple[Arm, ...], make: Callable[[Case], Calls], **more: Any) -> Case:
    return Case(f"decode {name}", op, *LAYER, tokens, arms, make, **more)


def decode() -> Iterator[Case]:
    rule = "gated_delta_rule"
    for N, ratio in STEP_MARKS.items():
        marks = (Mark(ratio, MULTIPLY),) if N > 1 else ()
        yield _case("step", rule, 1, split("step"), step_calls, sequences=N, marks=marks)
    yield _case(f"step, {STEP_LAYERS} layers a replay", rule, 1, split("step"), step_calls, repeats=STEP_LAYERS,
                marks=(Mark(STEP_MARKS[1], MULTIPLY),))  # fmt: skip
    for N in (1, 8):  # up to so many tokens the registry takes `step`
        yield _case("steps", rule, STEP_TOKENS, (*split("step"), *RECURRENCES), step_calls, sequences=N)
    for N, limits in VERIFY_MARKS.items():
        for T, us in limits.items():
            yield _case("verify", f"{rule}_verify", T, split("verify"), verify_calls, sequences=N, marks=(Mark(us),))
    yield _case("verify of a tree", f"{rule}_verify", TREE, split("verify_tree"), verify_calls,
                sequences=TREE_SEQUENCES, tree=True)  # fmt: skip
    for N, marks in ((1, (COMMIT_MARK, ONE_BY_ONE_MARK)), (8, (COMMIT_MARK,))):
        for accepted in range(1, WINDOW + 1):
            yield _case(f"commit of {MODEL_LAYERS} layers, {accepted} accepted", f"{rule}_commit_layers", WINDOW,
                        (Arm(("commit",)),), partial(commit_calls, accepted=accepted), sequences=N,
                        marks=marks)  # fmt: skip
        yield _case(f"commit of {MODEL_LAYERS} windows, 2 accepted", "causal_conv1d_commit_layers", WINDOW,
                    (Arm(("conv_commit",)),), partial(window_commit_calls, accepted=2), sequences=N)  # fmt: skip
    yield _case("commit and verify", f"{rule}_commit_verify", 4, split("commit_verify"), commit_verify_calls,
                sequences=64, marks=(COMMIT_VERIFY_MARK,))  # fmt: skip
    yield _case("commit and verify of a tree", f"{rule}_commit_verify", TREE, split("commit", "verify_tree"),
                commit_verify_calls, sequences=TREE_SEQUENCES, tree=True)  # fmt: skip
    for N, mark in LAYER_MARKS.items():
        yield _case("layer", "gdn_decode_layer", 1, fused("decode_layer", "step"), decode_layer_calls,
                    sequences=N, marks=(mark,))  # fmt: skip
    for N in (1, 8):
        yield _case("verify of a layer", "gdn_verify_layer", 4, fused("verify_layer", "verify"),
                    verify_layer_calls, sequences=N)  # fmt: skip
    yield _case("verify of a layer, a tree", "gdn_verify_layer", 8,
                split("conv_gates", "verify_tree", "gated_rms_norm"), verify_layer_calls, sequences=TREE_SEQUENCES,
                tree=True)  # fmt: skip
