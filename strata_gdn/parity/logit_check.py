"""`python -m strata_gdn parity --logits`: what another kernel of the prompt's recurrence does to a model's next token.

The model is the demo's (random weights, always the same), the prompt its text, over and over up to each length. Every
arm generates GREEDY tokens from it; logits.py compares the first token's logits with the exact arm's.

exact         precision="exact": the baseline, which must be finite
noise         exact with the heads grouped in another way, on the CPU by another instruction set: no kernel of the exact
              lane may change a bit, so every logit of every token must have the same ones
fp32          GDN_CHUNKED=2: the prompt by the fp32 lane, decoding exact; the same first token, KL within the limit
Transformers  its own torch fallback: a second float32 implementation of the same formulas, shown and not judged

An arm whose kernel the device does not have is left out, which is neither passed nor failed. An arm that another kernel
served than the one it is about fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor
from transformers.utils import logging as transformers_logging

from .. import _devices, demo, registry
from .._launches import kernels, launches
from .._table import columns
from ..bench.record import write
from ..integrations import transformers as integration
from ..ops import Precision
from .compare import difference_in_bits
from .kernels import Switches, choices, isas
from .logits import EPSILON, Distance, distance

TOKENS = (600, 2048, 8192)
GREEDY = 32
OP = "gated_delta_rule"
RECURRENCES = {kernel for row in registry.kernels() if row.op == OP for kernel in kernels(row.kernel)}
FP32 = {row.kernel for row in registry.kernels() if row.op == OP and row.lane == "fp32"}


@dataclass(frozen=True)
class Arm:
    """A way to run the model: a precision and switches, or with neither Transformers' own code."""

    name: str
    precision: Precision | None = None
    switches: Switches = field(default_factory=dict)

    def scope(self) -> AbstractContextManager[None]:
        return demo.own_fallback() if self.precision is None else integration.enable(precision=self.precision)


EXACT, FALLBACK = Arm("exact", "exact"), Arm("Transformers")
CHUNKED = Arm("fp32", "auto", {"GDN_CHUNKED": 2})
NOISE = "noise"


@dataclass
class Row:
    """An arm at a length. An arm that is left out says why and has nothing else."""

    tokens: int
    arm: str
    switches: Switches
    kernel: str = ""  # of the prompt
    config: dict[str, str] = field(default_factory=dict)
    served: dict[str, int] = field(default_factory=dict)  # launches of the recurrence's kernels
    distance: Distance | None = None
    same_tokens: int = 0  # up to the first that differs: after it the two read different texts
    left_out: str = ""
    checks: int = 0
    failures: list[str] = field(default_factory=list)

    def check(self, failure: str) -> None:
        """Counts a check; an empty `failure` is a passed one."""
        self.checks += 1
        if failure:
            self.failures.append(failure)


class Check:
    """The model on a device, and what the registry would do for its layers there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.model = demo.build_model(device)

    def decide(self, tokens: int, precision: Precision, switches: Switches) -> registry.Decision:
        """The recurrence's kernel for so many tokens, with these switches on top of the user's."""
        with registry.overrides(**switches):
            return demo.decide(OP, self.model, self.device, tokens, precision)

    def prompt(self, tokens: int) -> Tensor:
        """[1, tokens]: the demo's text, repeated."""
        text = demo.load_prompt(self.device)
        return text.repeat(1, -(-tokens // text.shape[1]))[:, :tokens]

    def noise(self, tokens: int) -> Arm | str:
        """The exact arm with the prompt's heads and, where it can be, a step's grouped in another way; or why not.

        Of a CPU's other instruction sets the best one: the plain one without fma takes minutes for a long prompt.
        """
        if self.device.type == "cpu":
            settings: list[Switches] = [{"GDN_CPU_ISA": isa} for isa in reversed(isas())]
        else:
            settings = choices(OP, _devices.arch(self.device))

        def grouping(length: int, switches: Switches) -> str | None:
            config = self.decide(length, "exact", switches).config
            return config.get("heads", config.get("isa"))

        def differ(switches: Switches) -> tuple[bool, bool]:
            prompt, step = (grouping(length, switches) != grouping(length, {}) for length in (tokens, 1))
            return prompt, step

        best = max(settings, key=differ)  # the first of the best ones
        if not differ(best)[0]:
            return f"no other head grouping or instruction set on {_devices.arch(self.device)}"
        return Arm(NOISE, "exact", best)

    def fp32_left_out(self, tokens: int) -> str:
        """Why the fp32 lane does not serve such a prompt; empty: it does."""
        decision = self.decide(tokens, CHUNKED.precision, CHUNKED.switches)
        if decision.kernel in FP32:
            return ""
        ordered = self.decide(tokens, "fp32", {})
        if not ordered:
            return ordered.reason
        return "; ".join(f"{kernel} {why}" for kernel, why in decision.rejected if kernel in FP32)

    def generate(self, arm: Arm, prompt: Tensor, row: Row) -> demo.Generation:
        """The arm's tokens; the row gets the kernel that the registry names and those that ran."""
        label = f"{arm.name}, {prompt.shape[1]} tokens"
        with registry.overrides(**arm.switches), arm.scope(), launches() as ran:
            generation = demo.generate(self.model, prompt, GREEDY, label)
        row.served = {kernel: count for kernel, count in ran.items() if kernel in RECURRENCES}
        expected: set[str] = set()
        if arm.precision:
            decided = [self.decide(length, arm.precision, arm.switches) for length in (prompt.shape[1], 1)]
            row.kernel, row.config = decided[0].kernel, decided[0].config
            expected = {decision.kernel for decision in decided}
        # Where prompt and steps have different kernels this leaves no other kernel that the prompt could have had.
        row.check("" if set(row.served) == expected else f"asked for {_names(expected)}; served: {_names(row.served)}")
        return generation

    def rows(self, tokens: int) -> Iterator[Row]:
        """Every arm with a prompt of so many tokens."""
        prompt = self.prompt(tokens)
        row = Row(tokens, EXACT.name, EXACT.switches)
        exact = self.generate(EXACT, prompt, row)
        row.distance, row.same_tokens = distance(exact.logits[0], exact.logits[0]), GREEDY
        row.check("" if exact.logits.isfinite().all() else "logits that are not finite")
        yield row

        noise = self.noise(tokens)
        if isinstance(noise, str):
            yield Row(tokens, NOISE, {}, left_out=noise)
        else:
            row, other = self._compared(noise, prompt, exact)
            row.check("" if row.distance.kl == 0 else f"KL {row.distance.kl:.1e}, expected 0")
            different = difference_in_bits(other.logits, exact.logits)
            row.check(different and f"logits of {GREEDY} tokens: {different}")
            yield row

        if left_out := self.fp32_left_out(tokens):
            yield Row(tokens, CHUNKED.name, CHUNKED.switches, left_out=left_out)
        else:
            row, _ = self._compared(CHUNKED, prompt, exact)
            found = row.distance
            row.check("" if found.same_choice else "the first token is another")
            row.check("" if found.within else f"KL {found.kl:.1e} is not within {found.limit:.1e}")
            yield row

        yield self._compared(FALLBACK, prompt, exact)[0]

    def _compared(self, arm: Arm, prompt: Tensor, exact: demo.Generation) -> tuple[Row, demo.Generation]:
        row = Row(prompt.shape[1], arm.name, arm.switches)
        generation = self.generate(arm, prompt, row)
        row.distance = distance(exact.logits[0], generation.logits[0])
        row.same_tokens = demo.common_prefix(exact.tokens, generation.tokens)
        return row, generation


def _names(found: Sequence[str] | set[str] | dict[str, int]) -> str:
    return ", ".join(sorted(found)) or "none"


@contextmanager
def _steady_model() -> Iterator[None]:
    """Everything around the ops with the same bits in every run, in float32: two arms differ by their kernels alone.

    Transformers' fallback has a torch op that cannot promise it, which is no reason to stop or to warn: it is compared
    with nothing bit for bit.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    tf32 = torch.backends.cudnn.allow_tf32
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.allow_tf32 = False  # of the fallback's convolution; matrix products are float32 by default
    try:
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation")
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.allow_tf32 = tf32


def run(args: argparse.Namespace) -> int:
    """Compares every arm at every length, prints the table and writes the JSON.

    Returns 1 where a check failed, else 0; what is left out is counted, and passes nothing.
    """
    device = torch.device(args.device)
    environment = _devices.describe(device)
    print(f"{environment['device']} ({environment['arch']}), torch {environment['torch']}")
    transformers_logging.set_verbosity_error()  # its fallback, wanted here, advises to install other packages
    with _steady_model():
        check = Check(device)
        rows = [row for tokens in args.tokens or TOKENS for row in check.rows(tokens)]
    print(_table(rows))
    for row in rows:
        for failure in row.failures:
            print(f"strata_gdn: {row.arm}, {row.tokens} tokens: {failure}", file=sys.stderr)
    checks, failures = sum(row.checks for row in rows), sum(len(row.failures) for row in rows)
    left_out = sum(bool(row.left_out) for row in rows)
    if args.json:
        record = {"command": _devices.command(args.json), "environment": environment, "model": demo.MODEL,
                  "greedy": GREEDY, "epsilon": EPSILON, "checks": checks, "failures": failures, "left_out": left_out,
                  "rows": [asdict(row) for row in rows]}  # fmt: skip
        write(record, args.json)
    print(f"\n{checks} checks, {failures} failures, {left_out} left out")
    return 1 if failures else 0


def _table(rows: Sequence[Row]) -> str:
    lines = [("tokens", "arm", "prompt's kernel", "KL", "limit", "first token", f"of {GREEDY} tokens",
              "logits - exact", "")]  # fmt: skip
    for row in rows:
        found = row.distance
        if found is None:
            lines.append((str(row.tokens), row.arm, "", "", "", "", "", "", f"left out: {row.left_out}"))
            continue
        config = "".join(f", {name} {value}" for name, value in row.config.items())
        limit = {NOISE: "0", CHUNKED.name: f"{found.limit:.1e}"}.get(row.arm, "")
        lines.append((str(row.tokens), row.arm, f"{row.kernel or '-'}{config}", f"{found.kl:.1e}", limit,
                      "same" if found.same_choice else "OTHER", f"{row.same_tokens} the same", f"{found.largest:.1e}",
                      "FAILED" if row.failures else ""))  # fmt: skip
    return columns(lines, indent=2)
