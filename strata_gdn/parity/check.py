"""A call with every kernel that can serve it, held against the plain call on the CPU and, a prompt, against float64."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.utils.deterministic
from torch import Tensor

from .. import reference, registry
from .._launches import kernels, launches
from . import bound
from .call import Call
from .calls import CALLS, MORE_CALLS, call
from .compare import Distance, difference_in_bits, distance
from .kernels import Switches, asked, shape_of
from .prompts import GROUPS, TOKENS, Prompt, prompts

PROMPT = "gated_delta_rule"
CHUNK = 64  # of the float64 reference, whose chunked form is the faster one


@dataclass
class Row:
    """One call with one kernel."""

    op: str
    case: str
    kernel: str
    config: dict[str, str]
    switches: Switches  # that asked for it
    checks: int = 0
    failures: list[str] = field(default_factory=list)
    distances: dict[str, Distance] = field(default_factory=dict)

    @property
    def configured(self) -> str:
        config = ", ".join(f"{name} {value}" for name, value in self.config.items())
        return f"{self.kernel} ({config})" if config else self.kernel

    def check(self, failure: str) -> None:
        """Counts a check; an empty `failure` is a passed one."""
        self.checks += 1
        if failure:
            self.failures.append(failure)


@contextmanager
def poisoned_memory(poisoned: bool = True) -> Iterator[None]:
    """Uninitialised tensors, the extension's too, are full of NaN; False: not, inside of a scope where they are."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(poisoned)
    torch.utils.deterministic.fill_uninitialized_memory = poisoned
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]


def rows_of(op: str, device: torch.device, tokens: Sequence[int] = TOKENS) -> Iterator[Row]:
    """An op's calls, each with every kernel that can serve it on the device; the last row is about all kernels."""
    # Whatever can serve any shape can serve one of these.
    shapes = [{"h": 1, "hv": max(GROUPS), "tree": tree} for tree in (False, True)]
    unseen = dict.fromkeys(_kernel(d.kernel, d.config) for shape in shapes for d, _ in asked(op, device, **shape))
    if not unseen:
        return
    cases: list[tuple[str, Prompt | None]] = [(n, None) for n in (*CALLS, *MORE_CALLS) if n.split()[0] == op]
    cases += [(str(prompt), prompt) for prompt in prompts(tokens)] if op == PROMPT else []
    for case, prompt in cases:
        torch.manual_seed(zlib.crc32(case.encode()))
        for row in _compare(prompt.call() if prompt else call(case), case, device, prompt is not None):
            unseen.pop(_kernel(row.kernel, row.config), None)
            yield row
    every = Row(op, "every kernel is reached", "", {}, {})
    every.check(f"no call reached {', '.join(unseen)}" if unseen else "")
    yield every


def _kernel(name: str, config: dict[str, str]) -> str:
    """A kernel, on a CPU for one instruction set; what else it is configured with depends on the call."""
    return f"{name} for {config['isa']}" if "isa" in config else name


def _compare(made: Call, case: str, device: torch.device, against_float64: bool) -> Iterator[Row]:
    expected = made.copy()
    results = expected.run()
    exact = _float64(made) if against_float64 else {}
    plain = {name: distance(results[i], *of) for i, (name, of) in enumerate(exact.items())}
    for decision, switches in asked(made.op, device, **shape_of(made.arguments)):
        row = Row(made.op, case.removeprefix(made.op).strip(), decision.kernel, decision.config, switches)
        there = made.copy(device.type)
        with registry.overrides(**switches), launches() as served:
            actual = there.run()
        wanted = dict.fromkeys(kernels(decision.kernel), 1)
        row.check("" if served == wanted else f"asked for {decision.kernel}; served: {served}")
        differences = [difference_in_bits(result, want) for result, want in zip(actual, results, strict=True)]
        for i, difference in enumerate(differences):
            row.check(_named(f"result {i}", difference))
        for (name, memory), (_, want) in zip(there.buffers(), expected.buffers(), strict=True):
            row.check(_named(f"memory of {name}", difference_in_bits(memory, want)))
        for i, (name, of) in enumerate(exact.items()):
            found = distance(actual[i], *of) if differences[i] else plain[name]  # the same bits are as far away
            row.distances[name] = found
            row.check("" if found.within else f"{name} is {found.used:.3g} bounds from float64 at {list(found.at)}")
        yield row


def _named(what: str, difference: str) -> str:
    return difference and f"{what}: {difference}"


def _float64(made: Call) -> dict[str, tuple[Tensor, Tensor]]:
    """A prompt's results in float64, each with the bound of its difference."""
    o, final_state = reference.gated_delta_rule(**made.arguments, chunk_size=CHUNK)
    o_bound, state_bound = bound.prompt(made.arguments, o)
    return {"o": (o, o_bound), "state": (final_state, state_bound)}
