"""The table of prompts that are called on every device and instruction set, from a state that is not zero."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from .call import Call
from .inputs import BF16, DTYPES, Heads, recurrence, state_pool

# Lengths around the sizes of stages, chunks and warps.
TOKENS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 257, 1000, 4099)
SHORT_TOKENS = 64  # up to here every number of value heads a key head
GROUPS, LONG_GROUPS = (1, 2, 3, 4, 8), (2, 3)
DIMS, LAYOUTS, HEAD_MAPS = (64, 128, 256), ("kv", "vk"), ("grouped", "tiled")
LAYERS = (Heads(16, 48, 128, 128), Heads(16, 32, 128, 128), Heads(2, 8, 128, 128))


class Prompt(NamedTuple):
    """A row of the table of prompts: gated_delta_rule from a state that is not zero."""

    tokens: int
    heads: Heads
    dtype: torch.dtype
    layout: str = "kv"
    head_map: str = "grouped"
    qk_l2norm: bool = True
    sequences: int = 1

    def __str__(self) -> str:
        (H, HV, K, V), dtype = self.heads, str(self.dtype).removeprefix("torch.")
        shape = f"T={self.tokens} N={self.sequences} H={H} HV={HV} K={K} V={V}"
        return f"{shape} {dtype} {self.layout} {self.head_map}{' l2norm' if self.qk_l2norm else ''}"

    def call(self) -> Call:
        arguments = recurrence(self.heads, self.sequences, self.tokens, self.dtype, gates="slow")
        return Call(
            "gated_delta_rule",
            {
                **arguments,
                "initial_state": state_pool(self.heads, self.sequences, self.layout),
                "state_layout": self.layout,
                "head_map": self.head_map,
                "qk_l2norm": self.qk_l2norm,
            },
        )


def prompts(tokens: Sequence[int] = TOKENS) -> Iterator[Prompt]:
    """Every length with every number of value heads a key head where it is short, and with two where it is long; in
    turn each K, V, dtype, layout and head map, so that any two values of any two of them meet. Then whole layers.
    """
    for i, T in enumerate(tokens):
        for j, group in enumerate(GROUPS):
            if T <= SHORT_TOKENS:
                heads = Heads(2, 2 * group, DIMS[(i + j) % 3], DIMS[(i + 2 * j) % 3])
                layout, head_map = LAYOUTS[(i + j) % 2], HEAD_MAPS[(i + j // 2) % 2]
                qk_l2norm, sequences = (i // 2 + j) % 2 == 0, 1 + (i // 4 + j) % 2
                yield Prompt(T, heads, DTYPES[(i // 3 + j) % 3], layout, head_map, qk_l2norm, sequences)
            elif group in LONG_GROUPS:
                heads = Heads(1, group, 128, DIMS[(i + j) % 2])
                yield Prompt(T, heads, DTYPES[(i + j) % 3], LAYOUTS[(i + j) % 2])
    for heads in LAYERS:
        yield Prompt(min(tokens[0], SHORT_TOKENS), heads, BF16)
