"""`python -m strata_gdn parity --precision fp32`: the chunked form in float32, on a device that has it.

Each case (chunked_cases.py) with float32 activations is held against the exact lane on the same device (largest
difference over largest value, with a limit) and against float64 (with the bound of bound_chunked.py). With 16-bit
activations it must give the same state, and the same output, rounded: the arithmetic is float32's in any case. Memory
that no result is in stays as it was. Of every comparison there is a negative control, counted as a check: the same
result, 2.5 bounds off at one element, must not pass.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .. import _devices, reference, registry
from .._launches import launches
from . import bound_chunked
from .call import Call
from .check import CHUNK, PROMPT, Row, poisoned_memory
from .chunked_cases import TOKENS, Case, cases
from .compare import difference_in_bits, distance, largest_value
from .kernels import shape_of, sms

KERNEL = "chunk_fp32"
ACTIVATIONS = ("q", "k", "v")
CONTROL = 2.5  # bounds


def rows_of(device: torch.device, tokens: Sequence[int] = TOKENS) -> Iterator[Row]:
    """A row a case; none where the device has no such kernel."""
    arch = _devices.arch(device)
    if registry.decide(PROMPT, arch=arch, sms=sms(device), precision="fp32").kernel != KERNEL:
        return
    for case in cases(tokens):
        seed(case)
        made = case.make()
        decision = registry.decide(PROMPT, arch=arch, sms=sms(device), precision="fp32", **shape_of(made.arguments))
        row = Row(PROMPT, case.name, decision.kernel, decision.config, {})
        compare(row, made.copy(device.type), case)
        yield row


def seed(case: Case) -> None:
    torch.manual_seed(zlib.crc32(case.name.encode()))


def compare(row: Row, made: Call, case: Case) -> None:
    """Makes the call, and counts all checks in the row."""
    wide = _with(made, **{name: made.arguments[name].float() for name in ACTIVATIONS})
    results = _chunked(row, wide)
    against = {"exact": {}, "float64": {}}
    for name, exact in _results(_with(wide, precision="exact")).items():
        limit = torch.tensor(case.limit * largest_value(exact), dtype=torch.float64, device=exact.device)
        against["exact"][name] = (exact.double(), limit)
    with poisoned_memory(False):  # on a GPU float64's sums have no deterministic form
        against["float64"] = _float64(wide)
    for name, result in results.items():
        for what, expected in against.items():
            found = distance(result, *expected[name])
            row.distances[name if what == "float64" else f"{name} - {what}"] = found
            row.check("" if found.within else f"{name} is {found.used:.3g} bounds from {what} at {list(found.at)}")
            row.check("" if _control_fails(result, *expected[name]) else
                      f"{name}: {CONTROL} bounds from {what} pass")  # fmt: skip
    dtype = made.arguments["v"].dtype
    if dtype != torch.float32:
        for name, narrow in _chunked(row, made).items():
            difference = difference_in_bits(narrow, results[name].to(narrow.dtype))
            row.check(difference and f"{name} with {dtype}: {difference}")


def _with(made: Call, **arguments: Tensor | str) -> Call:
    """The call with some of its arguments replaced, in memory of its own."""
    return Call(made.op, made.arguments | arguments).copy(made.arguments["v"].device.type)


def _results(made: Call) -> dict[str, Tensor]:
    """Runs the call: o, and the final state or the pool."""
    results = made.run()
    return {"o": results[0], "state": made.arguments["state"] if "state" in made.arguments else results[1]}


def _chunked(row: Row, made: Call) -> dict[str, Tensor]:
    """The results of the kernel, and checks that it is the one that ran and that it wrote nothing else."""
    ran = _with(made, precision="fp32")
    with launches() as served:
        results = _results(ran)
    row.check("" if served == {KERNEL: 1} else f"asked for {KERNEL}; served: {served}")
    rest = _with(ran)
    if "state" in made.arguments:
        written = made.arguments["state_indices"]
        written = written[written >= 0].long()
        rest.arguments["state"][written] = made.arguments["state"][written]
    for (name, memory), (_, before) in zip(rest.buffers(), _with(made).buffers(), strict=True):
        difference = difference_in_bits(memory, before)
        row.check(difference and f"memory of {name}: {difference}")
    return results


def _float64(made: Call) -> dict[str, tuple[Tensor, Tensor]]:
    """The results in float64, each with the bound of its difference. A slot that is not written has none."""
    arguments = dict(made.arguments)
    pool = arguments.pop("state", None)
    if pool is None:
        o, final = reference.gated_delta_rule(**arguments, chunk_size=CHUNK)
        o_bound, state_bound = bound_chunked.prompt(arguments, o)
        return {"o": (o, o_bound), "state": (final, state_bound)}
    slots, starts = arguments.pop("state_indices").tolist(), arguments.pop("has_initial_state")
    states = torch.stack([pool[max(slot, 0)] for slot in slots])
    arguments["initial_state"] = states.masked_fill(~starts[:, None, None, None], 0.0)
    (o, o_bound), (final, final_bound) = _float64(Call(PROMPT, arguments)).values()
    after, state_bound = pool.double(), torch.zeros_like(pool, dtype=torch.float64)
    for n, (slot, (row, span)) in enumerate(
        zip(slots, reference._sequences(*o.shape[:2], arguments.get("cu_seqlens")), strict=True)
    ):
        if slot < 0:
            o[row, span] = o_bound[row, span] = 0.0
        else:
            after[slot], state_bound[slot] = final[n], final_bound[n]
    return {"o": (o, o_bound), "state": (after, state_bound)}


def _control_fails(actual: Tensor, expected: Tensor, bound: Tensor) -> bool:
    """Whether a result that is off by 2.5 bounds at one element, any that has a bound, is found."""
    bound = bound.expand_as(expected)
    candidates = (bound > 0).flatten().nonzero().flatten()
    if not len(candidates):
        return False
    flat = candidates[int(torch.randint(len(candidates), ()))]
    at = tuple(int(i) for i in torch.unravel_index(flat, expected.shape))
    pushed = actual.double().clone()
    pushed[at] = expected[at] + torch.where(pushed[at] < expected[at], -CONTROL, CONTROL) * bound[at]
    return not distance(pushed, expected, bound).within
