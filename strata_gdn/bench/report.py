"""What the benchmark of a GPU measured: a line of it, and the tables that are printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from .._table import columns
from . import peers, roofline


@dataclass(frozen=True)
class Result:
    """One line: a case served by one kernel."""

    case: str
    tokens: int
    sequences: int
    kernel: str
    seconds: list[float] = field(repr=False)  # one a sample
    chosen: bool  # the registry takes this kernel by itself
    moved_bytes: int
    fma: int
    limits: dict[str, float]  # seconds
    peer: str | None
    peer_samples: list[float] = field(repr=False)  # seconds

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def peer_seconds(self) -> float | None:
        return median(self.peer_samples) if self.peer else None

    @property
    def limit(self) -> tuple[str, float]:
        """The binding limit, and the part of it that was reached."""
        name, seconds = roofline.binding(self.limits)
        return name, seconds / self.median

    def as_record(self) -> dict[str, Any]:
        limit, reached = self.limit
        return asdict(self) | {
            "median_seconds": self.median,
            "peer_seconds": self.peer_seconds,
            "limit": limit,
            "limit_reached": reached,
        }


def report(results: list[Result], record: Mapping[str, Any]) -> str:
    """The tables: what was measured, what was left out, and, apart from both, what is quoted."""
    environment, rates = record["environment"], record["rates"]
    parts = [
        f"{environment['device']}, torch {environment['torch']}, fla {environment['fla']}\n"
        f"copy {rates['copy_bytes_per_second'] / 1e12:.2f} TB/s; {rates['multiprocessors']} multiprocessors x "
        f"{rates['lanes']} lanes x {rates['clock_hz'] / 1e9:.2f} GHz = {rates['fma_per_second'] / 1e12:.1f} TFMA/s, of "
        f"which a float32 matrix product reaches {rates['matmul_fma_per_second'] / rates['fma_per_second']:.0%}\n"
        "us: medians of graph replays, flushed L2; limit: the part of the binding limit that was reached"
    ]
    if results:
        parts.append(_table(results))
    if record["left_out"]:
        parts.append("\n".join(f"{x['case']}: no {x['kernel']}: {x['reason']}" for x in record["left_out"]))
    if peers.fla() is None:
        parts.append(peers.FLA_INSTALL)
    elif quotes := _quotes(results):
        parts.append(quotes)
    return "\n\n".join(parts)


def _table(results: list[Result]) -> str:
    rows = [
        ("case", "tokens", "sequences", "kernel", "us", "us/token", "peer", "peer us", "times peer", "limit", "chosen")
    ]
    for r in results:
        peer, peer_us, ratio = "-", "-", "-"
        if r.peer and r.peer_seconds:
            peer, peer_us, ratio = r.peer, f"{r.peer_seconds * 1e6:.1f}", f"{r.median / r.peer_seconds:.2f}"
        limit, reached = r.limit
        rows.append((
            r.case, str(r.tokens), str(r.sequences), r.kernel, f"{r.median * 1e6:.1f}",
            f"{r.median * 1e6 / r.tokens:.4f}", peer, peer_us, ratio, f"{reached:.0%} of {limit}",
            "yes" if r.chosen else "",
        ))  # fmt: skip
    return columns(rows)


def _quotes(results: list[Result]) -> str:
    """Where the best peer that is not installed would stand: its ratio to fla elsewhere, times fla's time here."""
    fla_us = {(r.case, r.tokens): r.peer_seconds * 1e6 for r in results if r.peer == "fla" and r.sequences == 1}
    rows = [
        (q.case, str(q.tokens), q.peer, f"{q.ratio:.2f}", f"{fla_us[q.case, q.tokens] * q.ratio:.1f}")
        for q in peers.QUOTES
        if (q.case, q.tokens) in fla_us
    ]
    if not rows:
        return ""
    head = ("case", "tokens", "best peer", "times fla, quoted", "us if so here")
    return f"QUOTED, not measured in this run; from {peers.QUOTED_FROM}\n{columns([head, *rows])}"
