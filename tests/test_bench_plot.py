"""The plot of a record, and what is said of a record that cannot be drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strata_gdn import __main__
from strata_gdn.bench.common import UsageError
from strata_gdn.bench.peers import QUOTES
from strata_gdn.bench.record import RESULT_KEYS, read

SHIPPED = Path(__file__).resolve().parent.parent / "benchmarks" / "prompt_h200.json"


def result(tokens: int, kernel: str, us: float, **more: Any) -> dict[str, Any]:
    return {
        "case": "prompt HV=48 H=16",
        "tokens": tokens,
        "sequences": 1,
        "kernel": kernel,
        "seconds": [us * 1e-6] * 30,
        "median_seconds": us * 1e-6,
        "peer_seconds": 80e-6,
        "chosen": kernel == "fast",
        **more,
    }


def record() -> dict[str, Any]:
    """Two kernels, two lengths, fla, limits for one kernel; a batch and a pointwise op, which are not drawn."""
    return {
        "environment": {"device": "A card", "arch": "sm_90", "torch": "2.11.0", "strata_gdn": "0.1.0", "fla": "0.6.0"},
        "results": [
            result(512, "fast", 100, limits={"memory": 2e-5, "fma": 5e-5}),
            result(128, "fast", 64, limits={"memory": 2e-5, "fma": 1e-5}),
            result(128, "slow", 128),
            result(512, "slow", 400),
            result(128, "fast", 70, sequences=4),
            result(8192, "norm", 70, case="gated_rms_norm against a copy"),
        ],
    }


def write(folder: Path, content: Any) -> Path:
    file = folder / "record.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


# Records


def test_the_shipped_record_is_readable():
    assert len(read(SHIPPED)["results"]) > 30


def without(key: str) -> dict[str, Any]:
    made = record()
    del made["results"][1][key]
    return made


BROKEN = {
    "not json": ("{", "is no JSON: Expecting"),
    "a list": ([], "the record must be an object; got list"),
    "no results": ({"environment": {}}, "the record has no 'results'; it has environment"),
    "no device": (record() | {"environment": {"arch": "sm_90"}}, "environment has no 'device'; it has arch"),
    "results is no list": (record() | {"results": 3}, "results must be a list; got int"),
    **{key: (without(key), f"results[1] has no '{key}'; it has ") for key in RESULT_KEYS},
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_records(name, tmp_path):
    content, message = BROKEN[name]
    file = write(tmp_path, content)
    with pytest.raises(UsageError) as error:
        read(file)
    assert str(file) in str(error.value)
    assert message in str(error.value)


def test_no_such_record(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*none\.json: No such file or directory"):
        read(tmp_path / "none.json")


# Drawing


@pytest.fixture
def plot():
    pytest.importorskip("matplotlib", reason="plots need the optional matplotlib package")
    from strata_gdn.bench import plot

    return plot


@pytest.fixture
def figures(plot, monkeypatch) -> list[Any]:
    """The figures that are drawn."""
    made = []
    figure = plot.Figure

    def remember(*args: Any, **options: Any) -> Any:
        made.append(figure(*args, **options))
        return made[-1]

    monkeypatch.setattr(plot, "Figure", remember)
    return made


def lines(axes: Any) -> dict[str, list[tuple[float, float]]]:
    """The points of each line that the legend names."""
    named = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    return {line.get_label(): list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in named}


def test_what_is_drawn(plot, figures, tmp_path):
    file = tmp_path / "plot.png"
    plot.draw(record(), file)
    assert file.read_bytes().startswith(b"\x89PNG")
    (figure,) = figures
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("HV=48, H=16", "tokens", "time, µs a token")
    drawn = {label: [(x, pytest.approx(y)) for x, y in points] for label, points in lines(axes).items()}
    quoted = {quote.tokens: quote.ratio for quote in QUOTES if quote.case == "prompt HV=48 H=16"}
    assert drawn == {
        "fast": [(128, 0.5), (512, 100 / 512)],
        "slow": [(128, 1.0), (512, 400 / 512)],
        "fla, same run": [(128, 80 / 128), (512, 80 / 512)],
        "best peer, QUOTED: ratio to fla from another run × fla here": [
            (128, 80 / 128 * quoted[128]),
            (512, 80 / 512 * quoted[512]),
        ],
        "limit of the exact order on this card": [(128, 20 / 128), (512, 50 / 512)],
    }
    legend = figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == list(drawn)
    assert "A card" in legend.get_title().get_text()
    footer = figure.get_supxlabel()
    for part in ("A card (sm_90)", "torch 2.11.0", "fla 0.6.0", "medians of 30", "quoted from one NVIDIA H200"):
        assert part in footer


def test_without_a_peer_nothing_is_quoted(plot, figures, tmp_path):
    made = record()
    for one in made["results"]:
        one["peer_seconds"] = None
    plot.draw(made, tmp_path / "plot.png")
    assert set(lines(figures[0].axes[0])) == {"fast", "slow", "limit of the exact order on this card"}


def test_a_panel_a_head_count(plot, figures, tmp_path):
    assert __main__.main(["bench", "--from", str(SHIPPED), "--plot", str(tmp_path / "plot.png")]) == 0
    assert [axes.get_title() for axes in figures[0].axes] == ["HV=48, H=16", "HV=32, H=16", "HV=8, H=2"]


def test_nothing_to_draw(plot, tmp_path, capsys):
    made = record()
    made["results"] = made["results"][4:]
    file = write(tmp_path, made)
    assert __main__.main(["bench", "--from", str(file), "--plot", str(tmp_path / "plot.png")]) == 2
    expected = "nothing to draw: no case has prompts of one sequence and at least two lengths"
    assert capsys.readouterr().err == f"strata_gdn: {expected}\n"
