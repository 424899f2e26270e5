"""Launches every CUDA kernel on small inputs, for compute-sanitizer, and fails if one of the registry's never ran.

The calls are those of parity's table and a grid of its makers: every K, both layouts and odd addresses, one to four
value heads a key head, trees, skipped slots, every dtype. Each is made with every kernel and configuration that the
registry's switches select for it. Nothing is compared here. Every tensor is an allocation of its own, so that a
sanitizer sees where it ends and what of it nobody has written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from strata_gdn import _devices, registry
from strata_gdn.parity import calls as table
from strata_gdn.parity.call import Call
from strata_gdn.parity.inputs import DTYPES, Heads, layer, tree
from strata_gdn.parity.kernels import asked, shape_of

STATES = [(K, layout, odd) for K in (64, 128, 256) for odd in (False, True) for layout in ("kv", "vk")]
SEQUENCES, STEPS, ACCEPTED, PROMPT = 3, 9, 3, 19  # STEPS and PROMPT: more than one stage of their kernels
CHUNKED = 70  # tokens: three chunks
GROUPS = [(64, (1, 2, 3, 4)), (128, (1, 2, 3, 4)), (256, (1, 2))]  # K, value heads a key head: rec_keyhead's
ORDERED: tuple[dict[str, int], ...] = ({}, {"GDN_PIPELINE": 0})  # chunk_fp32 goes by its order: two stages, and one
CONVOLUTIONS = ((64, 4), (70, 3), (70, 2), (66, 9))  # channels, width


def every_call() -> Iterator[Call]:
    yield from map(table.call, table.CALLS)
    for i, (K, layout, odd) in enumerate(STATES):
        for op, arguments in _on_states(Heads(1, 2, K, 64), DTYPES[i % 3], layout):
            indices = arguments["state_indices"]
            indices[indices == 0] = -1  # a skipped slot
            yield Call(op, table.odd(arguments) if odd else arguments)
    for dtype in DTYPES:
        yield from _prompts(dtype)
        yield from _chunked(dtype)
        yield from _pointwise(dtype)
        yield from _layers(dtype)


def _on_states(heads: Heads, dtype: torch.dtype, layout: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Steps, and windows and their commits as chains and as trees."""
    at = SEQUENCES, STEPS, dtype, layout
    yield "gated_delta_rule_", table.in_place(heads, *at, qk_l2norm=True)
    for branches in (False, True):
        yield "gated_delta_rule_verify", table.verify(heads, *at, branches)
        yield "gated_delta_rule_commit_", table.commit(heads, SEQUENCES, ACCEPTED, layout, branches)
        yield (
            "gated_delta_rule_commit_verify_",
            table.commit_verify(heads, SEQUENCES, ACCEPTED, STEPS, dtype, layout, branches),
        )


def _prompts(dtype: torch.dtype) -> Iterator[Call]:
    for K, groups in GROUPS:
        for group in groups:
            layout = ("kv", "vk")[group % 2]
            arguments = table.in_place(Heads(1, group, K, 64), SEQUENCES, PROMPT, dtype, layout, qk_l2norm=True)
            yield Call("gated_delta_rule_", table.odd(arguments) if group == 2 else arguments)
    for K in (64, 128):  # so many blocks that on a card of 132 multiprocessors wide ones and four heads a thread pay
        yield Call("gated_delta_rule_", table.in_place(Heads(1, 4, K, 256), 5, PROMPT, dtype, "kv"))


def _chunked(dtype: torch.dtype) -> Iterator[Call]:
    """More than one chunk, a part of one, sequences without a token, a skipped slot, rows at odd addresses."""
    for K, groups in ((64, (1, 2, 3, 4)), (128, (1, 2, 3, 4, 8)), (256, (1, 2))):
        for group in groups:
            layout = ("kv", "vk")[group % 2]
            arguments = table.in_place(Heads(1, group, K, 64), SEQUENCES, CHUNKED, dtype, layout, qk_l2norm=True)
            made = table.odd(arguments) if group == 2 else arguments
            yield Call("gated_delta_rule_", made | {"precision": "fp32"})
    for name in table.CALLS:
        made = table.call(name)
        if made.op == "gated_delta_rule_" and "cu_seqlens" in made.arguments:
            yield Call(made.op, made.arguments | {"precision": "fp32"})


def _pointwise(dtype: torch.dtype) -> Iterator[Call]:
    for channels, width in CONVOLUTIONS:
        yield Call("causal_conv1d_", table.convolve(channels, width, width + 1, [40, 0, 30], dtype, dtype))
        yield Call("causal_conv1d_verify", table.conv_verify(channels, width, width + 1, 2, 35, dtype, True))
    for dim in (64, 128, 256):
        yield Call("qk_l2norm", table.l2norm(dim, dtype))
        yield Call("gated_rms_norm", table.norm(5, dim, dtype))
    yield Call("gdn_gates", table.gates(7, 48, dtype))


def _layers(dtype: torch.dtype) -> Iterator[Call]:
    """One token and several, a tree: rows and windows with gaps and without."""
    for adjust in (dict, table.odd, table.contiguous):
        for tokens in (1, 5):
            made = adjust(layer(Heads(1, 3, 64, 128), SEQUENCES, tokens, dtype, slots=SEQUENCES))
            indices = torch.tensor([2, -1, 0])  # a skipped slot
            yield Call("gdn_decode_layer_", made | {"state_indices": indices})
            yield Call("gdn_verify_layer", made | {"state_indices": indices.int()})
            yield Call("gdn_verify_layer", made | {"parents": tree(SEQUENCES, tokens)})


def never_ran(arch: str, served: Iterable[str]) -> list[str]:
    """The kernels of the registry's table that an architecture can run and that are not among those that served."""
    number = int(arch.removeprefix("sm_"))
    rows = [row for row in registry.kernels() if row.architectures.startswith("sm_")]
    own = [row.kernel for row in rows if int(row.architectures.split()[0].removeprefix("sm_")) <= number]
    return sorted(set(own) - set(served))


def main() -> int:
    device = torch.device("cuda")
    torch.cuda.init()
    torch.cuda.memory.caching_allocator_enable(False)
    torch.manual_seed(0)
    for made in every_call():
        ordered = made.arguments.get("precision") == "fp32"
        found = () if ordered else asked(made.op, device, **shape_of(made.arguments))
        for switches in ORDERED if ordered else [switches for _, switches in found]:
            with registry.overrides(**switches):
                made.copy("cuda").run()
    torch.cuda.synchronize()
    print(registry.served())
    if missing := never_ran(_devices.arch(device), registry.served()):
        print(f"never launched: {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
