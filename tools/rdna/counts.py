"""What a kernel executes for a token and how many of its work-groups a WGP holds, on every target.

Counted by the runner: wave instructions of all waves, the difference of two calls divided by that of their tokens. For
one value head of K = V = 128 and what belongs to it, bfloat16 and a state whose columns are contiguous ("kv").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from strata_gdn._table import columns
from strata_gdn.parity import calls
from strata_gdn.parity.call import Call
from strata_gdn.parity.inputs import BF16, Heads, convolution, index, layer, logs, recurrence, state_pool

from .code_object import Kernel
from .ops import Ops
from .runner import Launched

LEGEND = """\
all:      wave instructions for a token of a value head; of them vector arithmetic (a dual one is one), LDS accesses and
          exchanges, loads and stores of other memory
barriers: for a token, of a work-group
VGPR:     of the kernel that was counted
LDS:      of a work-group, static and dynamic, in bytes
blocks:   that a WGP's registers, LDS and waves hold"""

ONE, FOUR = Heads(1, 1, 128, 128), Heads(1, 4, 128, 128)
OPTIONS = {"qk_l2norm": True}


def _chain(tokens: int) -> torch.Tensor:
    return torch.arange(tokens)[None] - 1


def _prompt(tokens: int, heads: Heads = ONE) -> Call:
    arguments = recurrence(heads, 1, tokens, BF16) | {"state": state_pool(heads, 1)} | OPTIONS
    return Call("gated_delta_rule_", calls.contiguous(arguments))


def _verify(tokens: int, parents: torch.Tensor | None = None) -> Call:
    arguments = recurrence(ONE, 1, tokens, BF16) | {"state": state_pool(ONE, 1), "parents": parents} | OPTIONS
    return Call("gated_delta_rule_verify", calls.contiguous(arguments))


def _commit(tokens: int) -> Call:
    arguments = {"state": state_pool(ONE, 1), **logs(ONE, 1, 16), "accepted": index(tokens)}
    return Call("gated_delta_rule_commit_", calls.contiguous(arguments))


def _commit_verify(tokens: int) -> Call:
    return Call("gated_delta_rule_commit_verify_", _commit(4).arguments | _verify(tokens).arguments)


def _layer(op: str) -> Callable[[int], Call]:
    return lambda tokens: Call(op, calls.contiguous(layer(ONE, 1, tokens, slots=1)))


def _rows(op: str, arguments: Callable[[int], dict[str, Any]]) -> Callable[[int], Call]:
    return lambda tokens: Call(op, calls.contiguous(arguments(tokens)))


@dataclass(frozen=True)
class Subject:
    """A kernel and the calls that it serves.

    Attributes:
        name: of the line in the table; its first word is the kernel.
        call: with a number of tokens.
        tokens: of the two calls.
        heads: value heads, by which the counts are divided.
    """

    name: str
    call: Callable[[int], Call]
    tokens: tuple[int, int]
    switches: dict[str, int] = field(default_factory=dict)
    heads: int = 1

    @property
    def kernel(self) -> str:
        return self.name.split()[0].rstrip(",")


WHOLE, SPLIT = {"GDN_SPLIT": 0}, {"GDN_SPLIT": 1}
SUBJECTS = (
    Subject("step", _prompt, (8, 16), WHOLE),
    Subject("step, GDN_SPLIT=1", _prompt, (8, 16), SPLIT),
    Subject("step_norm", _layer("gdn_decode_layer_"), (4, 8), WHOLE | {"GDN_CONVL2": 0}),
    Subject("step_norm, GDN_CONVL2=1", _layer("gdn_decode_layer_"), (4, 8), WHOLE | {"GDN_CONVL2": 1}),
    Subject("verify", _verify, (8, 16), WHOLE),
    Subject("verify_norm", _layer("gdn_verify_layer"), (4, 8), WHOLE | {"GDN_CONVL2": 0}),
    Subject("verify_tree of a chain", lambda tokens: _verify(tokens, _chain(tokens)), (8, 16), WHOLE),
    Subject("verify_layer", _layer("gdn_verify_layer"), (4, 8), WHOLE | {"GDN_FUSED_LAYER": 1}),
    Subject("commit", _commit, (8, 16)),
    Subject("commit_verify", _commit_verify, (8, 16), WHOLE),
    Subject("rec_columns", _prompt, (32, 64), {"GDN_STEP": 0, "GDN_LANES": 0}),
    Subject("rec_lanes, one column", _prompt, (32, 64), {"GDN_STEP": 0, "GDN_LANES": 1}),
    Subject("rec_lanes, two columns", _prompt, (32, 64), {"GDN_STEP": 0, "GDN_LANES": 2}),
    Subject("rec_keyhead, four heads", lambda tokens: _prompt(tokens, FOUR), (32, 64),
            {"GDN_STEP": 0, "GDN_KEYHEAD": 1}, FOUR.HV),
    Subject("conv_gates", _layer("gdn_decode_layer_"), (4, 8), {"GDN_CONVL2": 0}),
    Subject("conv_l2", _layer("gdn_decode_layer_"), (4, 8), {"GDN_CONVL2": 1}),
    Subject("causal_conv1d", _rows("causal_conv1d", lambda t: convolution(ONE.channels, 4, 1, t, BF16)), (64, 128)),
    Subject("qk_l2norm", _rows("qk_l2norm", lambda t: {name: torch.randn(1, t, 1, 128).to(BF16) for name in "qk"}),
            (64, 128)),
    Subject("gated_rms_norm", _rows("gated_rms_norm", lambda t: calls.norm(t, 128, BF16)), (64, 128)),
)  # fmt: skip


@dataclass(frozen=True)
class Counted:
    """A subject on an architecture."""

    subject: Subject
    arch: str
    kernel: Kernel
    counts: Counter[str]  # for a token
    barriers: float  # the same, of a work-group
    shared_bytes: int
    blocks: int


def counted(ops: Ops, subject: Subject) -> Counted:
    few, many = (_launched(ops, subject, tokens) for tokens in subject.tokens)
    tokens = subject.tokens[1] - subject.tokens[0]
    more = Counter({name: (count - few.counts[name]) / tokens for name, count in many.counts.items()})
    waves = many.grid[0] * many.grid[1] * many.grid[2] * _waves(many)
    threads = many.block[0] * many.block[1] * many.block[2]
    return Counted(
        subject=subject,
        arch=ops.runner.arch,
        kernel=many.kernel,
        counts=Counter({name: count / subject.heads for name, count in more.items()}),
        barriers=more["barrier"] / waves / (2 if ops.runner.generation >= 12 else 1),  # gfx12's has two halves
        shared_bytes=many.shared_bytes,
        blocks=blocks_a_wgp(many.kernel, threads, many.shared_bytes),
    )


def _waves(launched: Launched) -> int:
    return -(-launched.block[0] * launched.block[1] * launched.block[2] // 32)


def _launched(ops: Ops, subject: Subject, tokens: int) -> Launched:
    """The launch of the subject's kernel."""
    found: list[Launched] = []
    torch.manual_seed(0)
    with ops.device(**subject.switches):
        made = subject.call(tokens).copy()
        ops.runner.listener = found.append
        try:
            made.run(ops)
        finally:
            ops.runner.listener = None
    source = re.compile(rf"^[0-9a-f]+_{subject.kernel}_{ops.runner.arch}$")
    (launched,) = (launch for launch in found if source.match(launch.kernel.code.stem))
    return launched


def blocks_a_wgp(kernel: Kernel, threads: int, shared_bytes: int) -> int:
    """That are resident at once: a WGP has four SIMDs with 16 waves each, 128 KB of LDS and 32 work-groups.

    A SIMD has 1024 registers a lane, from gfx1100 on 1536 (all of the targets are of that kind).
    """
    registers, unit = (1024, 16) if kernel.arch.startswith("gfx10") else (1536, 24)
    vector = kernel.metadata[".vgpr_count"]
    waves = 4 * min(16, registers // (-(-vector // unit) * unit))
    of_waves = waves // -(-threads // 32)
    return min(of_waves, 128 * 1024 // shared_bytes if shared_bytes else of_waves, 32)


def table(found: list[Counted]) -> str:
    """A line a subject and architecture; architectures that do not differ share one."""
    rows = [["kernel", "architecture", "all", "vector", "LDS", "memory", "barriers", "VGPR", "LDS", "blocks"]]
    for subject in dict.fromkeys(c.subject.name for c in found):
        lines: dict[tuple[str, ...], list[str]] = {}
        for c in found:
            if c.subject.name == subject:
                lines.setdefault(tuple(_cells(c)), []).append(c.arch)
        rows += [[subject, " ".join(archs), *cells] for cells, archs in lines.items()]
    return columns(rows)


def _cells(c: Counted) -> Iterator[str]:
    for names in (
        tuple(c.counts), ("valu", "dual", "transcendental"), ("lds",), ("vmem_load", "vmem_store")
    ):  # fmt: skip
        yield f"{sum(c.counts[name] for name in names):.0f}"
    yield f"{c.barriers:.2g}"
    yield str(c.kernel.metadata[".vgpr_count"])
    yield str(c.shared_bytes)
    yield str(c.blocks)
