"""What the ops are held against: fla where it is installed, and figures measured elsewhere, quoted as such."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from .._devices import package_version

FLA_INSTALL = """\
fla is not installed and not timed. Its two wheels are pure Python. Where there is a network:
  pip download --no-deps --dest wheels flash-linear-attention fla-core
and here, with that folder:
  pip install --no-index --no-deps --find-links wheels flash-linear-attention fla-core
(it needs Triton and einops besides)"""


def fla() -> ModuleType | None:
    """fla's gated delta rule, or None where fla is not installed. An installed one that fails to import raises."""
    return import_module("fla.ops.gated_delta_rule") if find_spec("fla") else None


def fla_version() -> str:
    return package_version("fla-core")


@dataclass(frozen=True)
class Quote:
    """The fastest of the peers that cannot be installed along, and fla, in the same run elsewhere."""

    case: str
    tokens: int
    fla_us: float
    peer: str
    peer_us: float

    @property
    def ratio(self) -> float:
        """The peer's time over fla's: with fla's time in another run, where the peer would stand there."""
        return self.peer_us / self.fla_us


QUOTED_FROM = (
    "one NVIDIA H200, torch 2.11.0, Triton 3.6.0, fla 0.6.0, FlashQLA 0.1.3, FlashInfer 0.7.2 and 0.6.9, 2026-11-29; "
    "CUDA-graph replays, flushed L2, medians of 30, one sequence, bfloat16, K = V = 128"
)
WIDE, NARROW = "prompt HV=48 H=16", "prompt HV=32 H=16"
QUOTES = (
    Quote(WIDE, 128, 52.1, "FlashInfer 0.6.9", 15.6),
    Quote(WIDE, 512, 80.9, "FlashInfer 0.6.9", 33.3),
    Quote(WIDE, 2048, 236, "FlashInfer 0.6.9", 105),
    Quote(WIDE, 8192, 848, "FlashInfer 0.7.2", 362),
    Quote(WIDE, 32768, 3461, "FlashInfer 0.7.2", 1289),
    Quote(NARROW, 128, 46.6, "FlashInfer 0.6.9", 14.7),
    Quote(NARROW, 512, 63.3, "FlashInfer 0.6.9", 33.0),
    Quote(NARROW, 2048, 156, "FlashQLA 0.1.3", 89),
    Quote(NARROW, 8192, 566, "FlashInfer 0.7.2", 234),
    Quote(NARROW, 32768, 2271, "FlashInfer 0.7.2", 739),
)


@dataclass(frozen=True)
class DecodeQuote:
    """A decode peer's time elsewhere; `multiply_us`: an in-place multiply over the same state in that run."""

    case: str
    tokens: int
    sequences: int
    peer: str
    us: float
    multiply_us: float | None = None

    @property
    def over_multiply(self) -> float | None:
        return self.us / self.multiply_us if self.multiply_us else None


DECODE_QUOTED_FROM = QUOTED_FROM.replace("one sequence, bfloat16", "HV = 48, bfloat16")
_STEPS = {  # sequences: FlashInfer's step, the multiply, its step on a bfloat16 state
    1: (7.0, 5.6, 5.6),
    8: (17.5, 16.3, 13.2),
    64: (101.6, 98.6, 59.6),
    256: (388.9, 383, 216),
}
_VERIFIES = {  # sequences, tokens: nothing saved; every state saved
    (1, 2): (7.3, 7.6),
    (1, 4): (10.1, 10.9),
    (1, 8): (15.9, 16.8),
    (8, 2): (17.8, 25.6),
    (8, 4): (27.3, 47.5),
    (8, 8): (45.1, 87.6),
    (64, 2): (70.8, 164),
}
DECODE_QUOTES = (
    *(DecodeQuote("decode step", 1, N, "FlashInfer 0.7.2", us, multiply) for N, (us, multiply, _) in _STEPS.items()),
    *(DecodeQuote("decode step", 1, N, "FlashInfer 0.7.2, bfloat16 state", us) for N, (_, _, us) in _STEPS.items()),
    *(
        DecodeQuote("decode verify", T, N, "FlashInfer 0.7.2, nothing saved", us)
        for (N, T), (us, _) in _VERIFIES.items()
    ),
    *(
        DecodeQuote("decode verify", T, N, "FlashInfer 0.7.2, every state saved", us)
        for (N, T), (_, us) in _VERIFIES.items()
    ),
)


def quoted() -> dict[str, object]:
    """The quoted figures as a record has them, apart from everything that the run measured: ratios to fla, and a decode
    peer's times.
    """
    rows = [
        {"case": quote.case, "tokens": quote.tokens, "peer": quote.peer, "over_fla": quote.ratio} for quote in QUOTES
    ]
    decode = [
        {"case": q.case, "tokens": q.tokens, "sequences": q.sequences, "peer": q.peer, "us": q.us,
         "over_multiply": q.over_multiply}
        for q in DECODE_QUOTES
    ]  # fmt: skip
    return {"measured_on": QUOTED_FROM, "rows": rows, "decode_measured_on": DECODE_QUOTED_FROM, "decode": decode}
