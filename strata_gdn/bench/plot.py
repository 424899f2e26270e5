"""The plot of a record: a prompt's time a token against its tokens, every kernel and the peers, a panel a head count.

Measured values have solid or dashed lines; what is quoted from elsewhere is dotted, with hollow diamonds, and stands
only where fla was timed in the same run: its time here, times the quoted ratio.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import peers
from .common import MissingExtra, UsageError

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
except ImportError as error:
    raise MissingExtra("a plot needs matplotlib; install it with `pip install .[bench]`") from error

PROMPT = "prompt "
PANEL_INCHES, HEIGHT_INCHES, DPI = 4.6, 5.4, 150
# Colours that stay apart for the colour-blind (Okabe and Ito); a kernel keeps its own in all panels.
KERNEL_COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
PEER_COLOR, QUOTED_COLOR, LIMIT_COLOR = "#444444", "#7A5AA6", "#999999"
TIME_TICKS = [digit * 10.0**power for power in range(-6, 6) for digit in (1, 2, 5)]
LABELS_APART = 3
CHOSEN_MARKER, OTHER_MARKER = 7.0, 3.0

Points = dict[int, float]  # us a token by tokens


def draw(record: Mapping[str, Any], file: Path) -> None:
    """Draws a record of a benchmark on a GPU (record.py) as a PNG.

    Raises:
        UsageError: the record has no head count with prompts of two lengths.
    """
    panels = _panels(record["results"])
    if not panels:
        raise UsageError("nothing to draw: no case has prompts of one sequence and at least two lengths")
    kernels = dict.fromkeys(result["kernel"] for results in panels.values() for result in results)
    colors = dict(zip(kernels, _cycle(KERNEL_COLORS, len(kernels)), strict=True))

    figure = Figure(figsize=(PANEL_INCHES * max(len(panels), 2), HEIGHT_INCHES), dpi=DPI, layout="constrained")
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (case, results) in zip(all_axes, panels.items(), strict=True):
        _panel(axes, case, results, colors, record.get("quoted") or peers.quoted())
    all_axes[0].set_ylabel("time, µs a token")
    _scale(all_axes)
    figure.supxlabel(_footer(record), fontsize=8, color="#555555")
    _legend(
        figure, all_axes, f"Gated DeltaNet prompt, one sequence, {record['environment']['device']}: lower is faster"
    )
    figure.savefig(file, format="png")


def _panels(results: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Prompts of one sequence by case, where there are two lengths at least."""
    cases = defaultdict(list)
    for result in results:
        if result["case"].startswith(PROMPT) and result["sequences"] == 1:
            cases[result["case"]].append(result)
    return {case: found for case, found in cases.items() if len({result["tokens"] for result in found}) > 1}


def _cycle(colors: tuple[str, ...], count: int) -> list[str]:
    return [colors[i % len(colors)] for i in range(count)]


def _panel(
    axes: Axes, case: str, results: list[Mapping[str, Any]], colors: Mapping[str, str], quoted: Mapping[str, Any]
) -> None:
    axes.set_title(case.removeprefix(PROMPT).replace(" ", ", "), fontsize=11)
    axes.set_xlabel("tokens")
    for kernel, color in colors.items():
        rows = sorted((r for r in results if r["kernel"] == kernel), key=lambda r: r["tokens"])
        points = {r["tokens"]: r["median_seconds"] for r in rows}
        _line(axes, points, label=kernel, color=color, linestyle="-", zorder=3)
        for r in rows:
            size = CHOSEN_MARKER if r["chosen"] else OTHER_MARKER
            axes.plot(r["tokens"], r["median_seconds"] / r["tokens"] * 1e6, "o", color=color, markersize=size, zorder=4)
    fla = {r["tokens"]: r["peer_seconds"] for r in results if r["peer_seconds"] and r.get("peer", "fla") == "fla"}
    _line(axes, fla, label="fla, same run", color=PEER_COLOR, linestyle="--", marker="s", markersize=5)
    ratios = {row["tokens"]: row["over_fla"] for row in quoted["rows"] if row["case"] == case}
    best = {tokens: fla[tokens] * ratio for tokens, ratio in ratios.items() if tokens in fla}
    _line(axes, best, label="best peer, QUOTED: ratio to fla from another run × fla here", color=QUOTED_COLOR,
          linestyle=":", marker="D", markersize=5, markerfacecolor="white")  # fmt: skip
    limit = {r["tokens"]: max(r["limits"].values()) for r in results if r.get("limits")}
    _line(axes, limit, label="limit of the exact order on this card", color=LIMIT_COLOR, linestyle="-.", linewidth=1)


def _line(axes: Axes, seconds: Points, **style: Any) -> None:
    tokens = sorted(seconds)
    if tokens:
        axes.plot(tokens, [seconds[t] / t * 1e6 for t in tokens], **style)


def _scale(all_axes: Sequence[Axes]) -> None:
    """Both axes logarithmic, ticks at lengths that were measured and at 1, 2, 5, written as plain numbers."""
    values = [y for axes in all_axes for line in axes.get_lines() for y in line.get_ydata()]
    for axes in all_axes:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(FixedLocator(_apart({x for line in axes.get_lines() for x in line.get_xdata()})))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.yaxis.set_major_locator(FixedLocator(TIME_TICKS))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.grid(color="#DDDDDD", linewidth=0.7)
        axes.set_axisbelow(True)
    # Up to the ticks around all values, so that each axis has a number at its ends.
    below, above = (t for t in TIME_TICKS if t < min(values)), (t for t in TIME_TICKS if t > max(values))
    all_axes[0].set_ylim(max(below), min(above))


def _apart(lengths: Iterable[float]) -> list[float]:
    """Those of the lengths whose labels do not touch."""
    shown: list[float] = []
    for length in sorted(lengths):
        if not shown or length >= LABELS_APART * shown[-1]:
            shown.append(length)
    return shown


def _legend(figure: Figure, all_axes: Iterable[Axes], title: str) -> None:
    """One for all panels, with the figure's title above it: matplotlib would lay a title of its own across it."""
    entries = {}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(entries.values(), entries.keys(), title=title, loc="outside upper center", ncols=3, fontsize=9,
                  title_fontsize=13, frameon=False)  # fmt: skip


def _footer(record: Mapping[str, Any]) -> str:
    environment, shape = record["environment"], record.get("shape", {})
    samples = min(len(result["seconds"]) for result in record["results"])
    versions = ", ".join(
        f"{name} {environment[name]}" for name in ("torch", "fla", "strata_gdn") if environment.get(name)
    )
    dimensions = "".join(f"{name} = {shape[name]}, " for name in ("K", "V", "dtype") if name in shape)
    return (
        f"{environment['device']} ({environment['arch']}), {versions}; {dimensions}medians of {samples} CUDA-graph "
        "replays, flushed L2; large dots: the kernel that the registry chooses\n"
        f"quoted from {(record.get('quoted') or peers.quoted())['measured_on']}"
    )
