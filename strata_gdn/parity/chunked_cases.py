"""The prompts that the chunked form is held to: lengths around its chunks from a state that is not zero, packed
sequences, pools of states, and the hard inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from .call import Call
from .inputs import BF16, DTYPES, F32, Heads, cu_seqlens, index, recurrence, state_pool
from .prompts import DIMS, GROUPS, HEAD_MAPS, LAYERS, LAYOUTS, SHORT_TOKENS, Prompt

# Lengths around quads, chunks of 32 and the cuts at 64; the last ones are several windows of the work buffer.
TOKENS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 257, 1000, 4099, 8192, 32768)
LAYER_TOKENS = 4096  # from here on whole layers too
LIMIT, HARD_LIMIT = 2e-6, 1e-4  # of the largest difference from the exact lane over the largest value
LENGTHS = (0, 129, 0, 33, 257, 64, 1, 0)  # of packed sequences
HARD_TOKENS = (257, 1000)


class Case(NamedTuple):
    name: str
    make: Callable[[], Call]
    limit: float = LIMIT


def prompts(tokens: Sequence[int]) -> Iterator[Prompt]:
    """Every length with every number of value heads a key head; in turn K, V, dtypes, layouts and maps."""
    for i, T in enumerate(tokens):
        H = 2 if T <= 1000 else 1
        for j, group in enumerate(GROUPS):
            heads = Heads(H, H * group, DIMS[(i + j) % 3], DIMS[(i + 2 * j) % 3])
            layout, head_map, dtype = LAYOUTS[(i + j) % 2], HEAD_MAPS[(i + j // 2) % 2], DTYPES[(i // 3 + j) % 3]
            # Longer ones would have a key of β‖k‖² near 2.
            qk_l2norm = T > SHORT_TOKENS or (i // 2 + j) % 2 == 0
            yield Prompt(T, heads, dtype, layout, head_map, qk_l2norm, 1 + (i // 4 + j) % 2 if H == 2 else 1)
        if T >= LAYER_TOKENS:
            for j, heads in enumerate(LAYERS):
                yield Prompt(T, heads, BF16, LAYOUTS[(i + j) % 2])


def _packed(heads: Heads, dtype: torch.dtype, layout: str, head_map: str) -> dict[str, Any]:
    """Empty sequences, and rows after the last one that nobody has."""
    return {
        **recurrence(heads, 1, sum(LENGTHS) + 3, dtype, gates="slow"),
        "cu_seqlens": cu_seqlens(*LENGTHS),
        "initial_state": state_pool(heads, len(LENGTHS), layout),
        "qk_l2norm": True,
        "state_layout": layout,
        "head_map": head_map,
    }


def _pool(heads: Heads, dtype: torch.dtype, layout: str, head_map: str, batch: int | None = None) -> dict[str, Any]:
    """A pool with two slots more than sequences; the second sequence is skipped, every third starts from zero."""
    arguments = _packed(heads, dtype, layout, head_map)
    del arguments["initial_state"]
    sequences = len(LENGTHS)
    if batch is not None:  # padded, not packed
        del arguments["cu_seqlens"]
        sequences = batch
        arguments |= recurrence(heads, batch, 129, dtype, gates="slow")
    slots = torch.randperm(sequences + 2)[:sequences]
    slots[1] = -1
    return {
        **arguments,
        "state": state_pool(heads, sequences + 2, layout),
        "state_indices": index(*slots.tolist()),
        "has_initial_state": torch.arange(sequences) % 3 != 2,
    }


def _where(some: float, value: float, x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.rand(x.shape) < some, value, x)


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def _equal_keys(a: dict[str, Any]) -> dict[str, Any]:
    return {"k": a["k"][:, :1].expand_as(a["k"]).clone(), "beta": torch.ones_like(a["beta"])}


def _long_keys(a: dict[str, Any]) -> dict[str, Any]:
    """β‖k‖² from 1.5 to 1.9."""
    return {"k": 1.9**0.5 * _unit(a["k"]), "beta": 0.8 + 0.2 * torch.rand(a["beta"].shape), "qk_l2norm": False}


# What of a prompt's arguments is changed, by name.
HARD: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "g=0": lambda a: {"g": torch.zeros_like(a["g"])},
    "g=-316": lambda a: {"g": torch.full_like(a["g"], -316.0)},
    "g=-316 for some tokens": lambda a: {"g": _where(0.1, -316.0, a["g"])},
    "g=-0.1": lambda a: {"g": torch.full_like(a["g"], -0.1)},
    "beta=1, equal keys": _equal_keys,
    "beta=1, equal keys, g=0": lambda a: _equal_keys(a) | {"g": torch.zeros_like(a["g"])},
    "b=1.9": _long_keys,
    "b=1.9, g=0": lambda a: _long_keys(a) | {"g": torch.zeros_like(a["g"]), "beta": torch.ones_like(a["beta"])},
    "b=1.9, equal keys": lambda a: _long_keys(a) | {"k": _long_keys(_equal_keys(a) | {"beta": a["beta"]})["k"]},
    "v=25": lambda a: {"v": torch.full_like(a["v"], 25.0)},
    "|v|=25, g=0": lambda a: {"v": 25.0 * a["v"].sign(), "g": torch.zeros_like(a["g"])},
}


def _hard(name: str, prompt: Prompt) -> Call:
    made = prompt.call()
    arguments = made.arguments
    changed = {n: x.to(arguments[n].dtype) if isinstance(x, torch.Tensor) else x
               for n, x in HARD[name](arguments).items()}  # fmt: skip
    return Call(made.op, arguments | changed)


def cases(tokens: Sequence[int] = TOKENS) -> Iterator[Case]:
    """All of them; `tokens` are the lengths of the ordinary prompts."""
    for prompt in prompts(tokens):
        yield Case(str(prompt), prompt.call)
    for i, group in enumerate(GROUPS):
        of = (Heads(2, 2 * group, DIMS[i % 3], DIMS[(i + 1) % 3]), DTYPES[i % 3], LAYOUTS[i % 2], HEAD_MAPS[i // 2 % 2])
        shape = f"HV/H={group} K={of[0].K} V={of[0].V} {str(of[1]).removeprefix('torch.')} {of[2]} {of[3]}"
        yield Case(f"packed {shape}", lambda of=of: Call("gated_delta_rule", _packed(*of)))
        yield Case(f"packed, pool {shape}", lambda of=of: Call("gated_delta_rule_", _pool(*of)))
        yield Case(f"padded, pool {shape}", lambda of=of: Call("gated_delta_rule_", _pool(*of, batch=4)))
    for i, name in enumerate(HARD):
        for T in HARD_TOKENS:
            for dtype in (F32, BF16):
                prompt = Prompt(T, Heads(1, GROUPS[i % 4], 128, 128), dtype, LAYOUTS[i % 2])
                yield Case(f"{name}: {prompt}", lambda name=name, prompt=prompt: _hard(name, prompt), HARD_LIMIT)
