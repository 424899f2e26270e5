"""What the benchmark of a GPU measured: a line of it, and the tables that are printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from .._table import columns
from . import peers, roofline
from .case import Mark
from .decode import MULTIPLY


@dataclass(frozen=True)
class Result:
    """One line: a case served by one kernel."""

    case: str
    tokens: int
    sequences: int
    kernel: str
    switches: dict[str, int]  # that asked for it
    config: dict[str, str]  # as in a decision of the registry
    seconds: list[float] = field(repr=False)  # one a sample
    chosen: bool  # the registry takes this kernel and configuration by itself
    moved_bytes: int
    fma: int
    limits: dict[str, float]  # seconds
    peers: dict[str, list[float]] = field(repr=False)  # seconds, one a sample; the first is the one beside it
    marks: tuple[Mark, ...] = ()

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def peer(self) -> str | None:
        return next(iter(self.peers), None)

    @property
    def peer_seconds(self) -> float | None:
        return self.seconds_of(self.peer) if self.peer else None

    def seconds_of(self, peer: str) -> float:
        return median(self.peers[peer])

    @property
    def limit(self) -> tuple[str, float]:
        """The binding limit, and the part of it that was reached."""
        name, seconds = roofline.binding(self.limits)
        return name, seconds / self.median

    def value(self, mark: Mark) -> float:
        """What is held against a mark."""
        return self.median / self.seconds_of(mark.of) if mark.of else self.median * 1e6

    @property
    def names(self) -> tuple[str, ...]:
        """The first cells of a line."""
        switches = "".join(f" {name}={value}" for name, value in self.switches.items())
        return self.case, str(self.tokens), str(self.sequences), self.kernel + switches

    def as_record(self) -> dict[str, Any]:
        limit, reached = self.limit
        values = asdict(self)
        del values["peers"]
        return values | {
            "median_seconds": self.median,
            "peer": self.peer,
            "peer_samples": self.peers[self.peer] if self.peer else [],
            "peer_seconds": self.peer_seconds,
            "more_peers": {
                name: {"samples": samples, "median_seconds": median(samples)}
                for name, samples in self.peers.items()
                if name != self.peer
            },
            "limit": limit,
            "limit_reached": reached,
            "marks": [
                {"measure": mark.measure, "at_most": mark.at_most, "value": value, "met": value <= mark.at_most}
                for mark, value in ((mark, self.value(mark)) for mark in self.marks)
            ],
        }


NAMES = ("case", "tokens", "sequences", "kernel")


def report(results: list[Result], record: Mapping[str, Any]) -> str:
    """The tables: what was measured, the marks, what was left out, and, apart from all of them, what is quoted."""
    environment, rates = record["environment"], record["rates"]
    parts = [
        f"{environment['device']}, torch {environment['torch']}, fla {environment['fla']}\n"
        f"copy {rates['copy_bytes_per_second'] / 1e12:.2f} TB/s; {rates['multiprocessors']} multiprocessors x "
        f"{rates['lanes']} lanes x {rates['clock_hz'] / 1e9:.2f} GHz = {rates['fma_per_second'] / 1e12:.1f} TFMA/s, of "
        f"which a float32 matrix product reaches {rates['matmul_fma_per_second'] / rates['fma_per_second']:.0%}\n"
        "us: medians of graph replays, flushed L2; limit: the part of the binding limit that was reached",
        _table(results),
        _more_peers(results),
        _marks(results),
        "\n".join(f"{x['case']}: no {x['kernel']}: {x['reason']}" for x in record["left_out"]),
        _quotes(results) if peers.fla() else peers.FLA_INSTALL,
        _decode_quotes(results),
    ]
    return "\n\n".join(part for part in parts if part)


def _under(head: tuple[str, ...], rows: list[tuple[str, ...]], title: str = "") -> str:
    """A table, or nothing where there are no rows."""
    return f"{title}\n{columns([head, *rows])}".lstrip("\n") if rows else ""


def _beside(result: Result, peer: str | None) -> tuple[str, str, str]:
    if peer is None:
        return "-", "-", "-"
    seconds = result.seconds_of(peer)
    return peer, f"{seconds * 1e6:.1f}", f"{result.median / seconds:.2f}"


def _table(results: list[Result]) -> str:
    rows = []
    for r in results:
        limit, reached = r.limit
        rows.append((
            *r.names, f"{r.median * 1e6:.1f}", f"{r.median * 1e6 / r.tokens:.4f}",
            *_beside(r, r.peer), f"{reached:.0%} of {limit}", "yes" if r.chosen else "",
        ))  # fmt: skip
    return _under((*NAMES, "us", "us/token", "peer", "peer us", "times peer", "limit", "chosen"), rows)


def _more_peers(results: list[Result]) -> str:
    rows = [(*r.names, *_beside(r, peer)) for r in results for peer in list(r.peers)[1:]]
    return _under((*NAMES, "peer", "peer us", "times peer"), rows, "further peers")


def _marks(results: list[Result]) -> str:
    rows = [
        (*r.names, mark.measure, f"{mark.at_most:.2f}", f"{r.value(mark):.2f}",
         "met" if r.value(mark) <= mark.at_most else "MISSED", "yes" if r.chosen else "")
        for r in results
        for mark in r.marks
    ]  # fmt: skip
    return _under((*NAMES, "measure", "at most", "is", "mark", "chosen"), rows, "marks")


def _quotes(results: list[Result]) -> str:
    """Where the best peer that is not installed would stand: its ratio to fla elsewhere, times fla's time here."""
    fla_us = {(r.case, r.tokens): r.peer_seconds * 1e6 for r in results if r.peer == "fla" and r.sequences == 1}
    rows = [
        (q.case, str(q.tokens), q.peer, f"{q.ratio:.2f}", f"{fla_us[q.case, q.tokens] * q.ratio:.1f}")
        for q in peers.QUOTES
        if (q.case, q.tokens) in fla_us
    ]
    head = ("case", "tokens", "best peer", "times fla, quoted", "us if so here")
    return _under(head, rows, f"QUOTED, not measured in this run; from {peers.QUOTED_FROM}")


def _decode_quotes(results: list[Result]) -> str:
    """A decode peer that is not installed: its time elsewhere, beside ours here."""
    ours = {(r.case, r.tokens, r.sequences): r for r in results if r.chosen}
    rows = []
    for q in peers.DECODE_QUOTES:
        if r := ours.get((q.case, q.tokens, q.sequences)):
            there = f"{q.over_multiply:.2f}" if q.over_multiply else "-"
            here = f"{r.median / r.seconds_of(MULTIPLY):.2f}" if MULTIPLY in r.peers else "-"
            rows.append((*r.names[:3], q.peer, f"{q.us:.1f}", there, f"{r.median * 1e6:.1f}", here))
    head = ("case", "tokens", "sequences", "peer", "us, quoted", f"times {MULTIPLY}, quoted", "ours, us",
            f"ours, times {MULTIPLY}")  # fmt: skip
    return _under(head, rows, f"QUOTED, not measured in this run; from {peers.DECODE_QUOTED_FROM}")
