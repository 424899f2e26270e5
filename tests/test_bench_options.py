"""The benchmark's options: what cannot work is refused in one line, before anything is measured or drawn."""

from __future__ import annotations

import sys

import pytest

from strata_gdn import __main__, bench
from strata_gdn.bench.cases import CASES
from strata_gdn.bench.common import MissingExtra, UsageError, require_writable

WRONG = {
    "--tokens 0": "--tokens must be at least 1; got 0",
    "--samples -3": "--samples must be at least 1; got -3",
    "--threads 0": "--threads must be at least 1; got 0",
    "--json no/such/folder/x.json": "no folder to write no/such/folder/x.json to",
    "--json .": "cannot write .: Is a directory",
    "--plot no/such/folder/x.png": "no folder to write no/such/folder/x.png to",
    "--plot x.png": "--plot is for --device cuda; got --device cpu",
    "--device cuda --tokens 9": "--tokens is for --device cpu; got --device cuda",
    "--device cuda --threads 2": "--threads is for --device cpu; got --device cuda",
    "--device cuda --samples 29": "--samples must be at least 30 on a GPU; got 29",
    "--from record.json": "--from draws a record: it needs --plot FILE.png",
}


@pytest.mark.parametrize("words", WRONG)
def test_refused(words, capsys):
    assert __main__.main(["bench", *words.split()]) == 2
    assert capsys.readouterr().err == f"strata_gdn: {WRONG[words]}\n"


def test_output_files_are_tried_and_left_as_they_were(tmp_path):
    old, new, link = (tmp_path / name for name in ("old.json", "new.json", "link.json"))
    old.write_text("old")
    link.symlink_to(tmp_path / "target.json")
    require_writable(old, new, link, None)
    assert old.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [link, old]
    with pytest.raises(UsageError, match=r"^cannot write .*old\.json/x\.json: Not a directory$"):
        require_writable(new, old / "x.json")


def test_a_case_that_does_not_exist(capsys):
    assert __main__.main(["bench", "--device", "cuda", "--case", "HV=48", "--case", "HV=49"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "strata_gdn: --case 'HV=49' is in no case's name; the cases are: prompt HV=48 H=16, prompt "
    )
    assert error.endswith(f", {CASES[-1].name}\n")


def test_without_matplotlib(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    monkeypatch.delitem(sys.modules, "strata_gdn.bench.plot", raising=False)
    monkeypatch.delattr(bench, "plot", raising=False)
    assert __main__.main(["bench", "--from", "record.json", "--plot", str(tmp_path / "x.png")]) == 2
    expected = "strata_gdn: a plot needs matplotlib; install it with `pip install .[bench]`\n"
    assert capsys.readouterr().err == expected
    with pytest.raises(MissingExtra):
        __import__("strata_gdn.bench.plot")


def test_without_transformers(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "transformers.models.qwen3_next", None)
    monkeypatch.delitem(sys.modules, "strata_gdn.bench.cpu", raising=False)
    assert __main__.main(["bench"]) == 2
    expected = "the benchmark's peer is Transformers' fallback; install it with `pip install .[transformers]`"
    assert capsys.readouterr().err == f"strata_gdn: {expected}\n"
