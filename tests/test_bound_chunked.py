"""The bound of chunk_fp32 (parity/bound_chunked.py): float32 arithmetic in its order fits, with room; less does not."""

from __future__ import annotations

from typing import Any

import chunked_stand_in
import pytest
import torch
from cases import BF16, F16, F32, Heads, cu_seqlens, recurrence, state_pool
from torch import Tensor

from strata_gdn import reference
from strata_gdn.parity import bound_chunked
from strata_gdn.parity.compare import Distance, distance
from strata_gdn.parity.prompts import Prompt

PROMPTS = [
    Prompt(1, Heads(1, 2, 64, 64), F32),
    Prompt(33, Heads(2, 4, 128, 64), BF16, "vk", "tiled", True, 2),
    Prompt(65, Heads(1, 2, 256, 64), F16, qk_l2norm=False),
    Prompt(1000, Heads(1, 4, 128, 64), F32),
]


def distances(arguments: dict[str, Any], actual: tuple[Tensor, ...]) -> list[Distance]:
    """Of o and the final state, from float64."""
    exact = reference.gated_delta_rule(**arguments, chunk_size=64)
    bounds = bound_chunked.prompt(arguments, exact[0])
    return [distance(*three) for three in zip(actual, exact, bounds, strict=True)]


@pytest.mark.parametrize("prompt", PROMPTS, ids=str)
def test_it_holds_with_room(prompt: Prompt) -> None:
    arguments = prompt.call().arguments
    of_output, of_state = distances(arguments, chunked_stand_in.gated_delta_rule(**arguments))
    assert 0 < of_output.used < (0.2 if prompt.dtype == F32 else 1)  # a 16-bit output has its own rounding
    assert 0 < of_state.used < 0.2


def test_packed_sequences_and_no_state() -> None:
    """One of them empty, and rows after the last."""
    arguments = recurrence(Heads(1, 2, 64, 64), 1, 80) | {"cu_seqlens": cu_seqlens(33, 0, 40)}
    for found in distances(arguments, chunked_stand_in.gated_delta_rule(**arguments)):
        assert 0 < found.used < 0.2
    arguments["initial_state"] = state_pool(Heads(1, 2, 64, 64), 3, "vk")
    arguments |= {"state_layout": "vk", "scale": 0.7, "l2_eps": 1e-3, "qk_l2norm": True}
    for found in distances(arguments, chunked_stand_in.gated_delta_rule(**arguments)):
        assert 0 < found.used < 0.2


@pytest.mark.parametrize("prompt", [PROMPTS[0], PROMPTS[3]], ids=str)
def test_a_state_with_fewer_bits_does_not_fit(prompt: Prompt) -> None:
    """As many as TF32 has, from chunk to chunk."""
    arguments = prompt.call().arguments
    state, o = arguments["initial_state"], []
    for begin in range(0, prompt.tokens, bound_chunked.TOKENS):
        piece = {n: arguments[n][:, begin : begin + bound_chunked.TOKENS] for n in ("q", "k", "v", "g", "beta")}
        kept = (state.contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32)
        part, state = chunked_stand_in.gated_delta_rule(**arguments | piece | {"initial_state": kept})
        o.append(part)
    for found in distances(arguments, (torch.cat(o, 1), state)):
        assert found.used > 1


def test_decays_as_differences_of_sums_do_not_fit() -> None:
    arguments = Prompt(65, Heads(1, 2, 64, 64), F32).call().arguments
    arguments["g"] = torch.where(torch.rand(arguments["g"].shape) < 0.2, -316.0, arguments["g"])
    for found in distances(arguments, chunked_stand_in.gated_delta_rule(**arguments)):
        assert found.used < 0.2
    rounded = arguments["g"].clone()
    for begin in range(0, 65, bound_chunked.TOKENS):  # g as float32 sums have it when their difference is taken
        rows = rounded[:, begin : begin + bound_chunked.TOKENS]
        rows[:] = rows.cumsum(1).diff(dim=1, prepend=torch.zeros_like(rows[:, :1]))
    worse = distances(arguments, chunked_stand_in.gated_delta_rule(**arguments | {"g": rounded}))
    assert worse[0].used > 1


def test_where_it_ends() -> None:
    arguments = Prompt(5, Heads(1, 1, 64, 64), F32, qk_l2norm=False).call().arguments
    arguments["k"] *= 10
    with pytest.raises(ValueError, match=r"the bound holds for β‖k‖² below 2; got \d"):
        bound_chunked.prompt(arguments, arguments["v"].double())
