"""The CPU's benchmark: its table and record, and that it notices a wrong result or an unexpected kernel."""

from __future__ import annotations

import argparse
import json
import sys
from statistics import median

import pytest
import torch

pytest.importorskip("transformers", reason="the benchmark's peer is the optional transformers package")

from strata_gdn import _devices, bench, ops, registry
from strata_gdn.bench import cpu

pytestmark = pytest.mark.usefixtures("threads")

LINES = ("gated_delta_rule", "causal_conv1d", "gdn_gates", "gated_rms_norm")


def _arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(["--tokens", "70", "--samples", "1", "--threads", "1", *words])


def test_table_and_record(tmp_path, capsys):
    file = tmp_path / "bench.json"
    assert bench.run(_arguments("--json", str(file))) == 0
    table = capsys.readouterr().out.splitlines()
    record = json.loads(file.read_text())

    named = [(r["name"], r["dtype"], r["tokens"]) for r in record["results"]]
    assert named == [
        (f"{kind}, {op}", dtype, tokens)
        for dtype in ("float32", "bfloat16")
        for kind, tokens in (("prompt", 70), ("step", 1))
        for op in LINES
    ]
    for line, result in zip(table[-len(named) :], record["results"], strict=True):
        assert line.startswith(result["name"])
        assert line.endswith(result["kernel"])
        assert f"{result['ratio']:.1f}x" in line
        assert result["kernel"] in {row.kernel for row in registry.kernels() if row.op == result["op"].rstrip("_")}
        samples = 1 if result["tokens"] == 70 else cpu.STEP_TURN_CALLS
        assert len(result["ours_seconds"]) == len(result["theirs_seconds"]) == samples
        assert min(result["ours_seconds"] + result["theirs_seconds"]) > 0
        assert result["ratio"] == median(result["theirs_seconds"]) / median(result["ours_seconds"])
        assert 0 <= result["difference"] <= result["difference_allowed"]
    assert record["environment"]["torch"] == torch.__version__
    assert record["environment"]["arch"] == registry.cpu_arch()
    assert record["environment"]["device"] in table[0]
    assert record["command"][:3] == ["python", "-m", "strata_gdn"]


def test_a_wrong_result_fails(monkeypatch, capsys):
    own = ops.gated_rms_norm
    monkeypatch.setattr(ops, "gated_rms_norm", lambda *args, **options: own(*args, **options) * 1.1)
    assert bench.run(_arguments()) == 1
    errors = capsys.readouterr().err.splitlines()
    assert [line.partition(" differs")[0] for line in errors if "differs" in line] == [
        "strata_gdn: prompt, gated_rms_norm float32",
        "strata_gdn: step, gated_rms_norm float32",
        "strata_gdn: prompt, gated_rms_norm bfloat16",
        "strata_gdn: step, gated_rms_norm bfloat16",
    ]


def test_a_call_that_no_kernel_served_is_not_a_measurement():
    result = torch.arange(3.0)
    case = cpu.Case("prompt, nothing", "gdn_gates", 70, torch.float32, lambda: result, lambda: result)
    expected = r"prompt, nothing: expected one kernel to serve 2 calls of gdn_gates; served: {}"
    with pytest.raises(RuntimeError, match=expected):
        cpu._measure(case, 1)


def test_only_the_cases_asked_for(tmp_path):
    file = tmp_path / "bench.json"
    assert bench.run(_arguments("--case", "step, gdn", "--json", str(file))) == 0
    results = json.loads(file.read_text())["results"]
    assert [(r["name"], r["dtype"]) for r in results] == [
        ("step, gdn_gates", dtype) for dtype in ("float32", "bfloat16")
    ]


def test_the_recorded_command_has_no_folder(tmp_path, monkeypatch):
    file, plot = tmp_path / "cuda.json", tmp_path / "cuda.png"
    monkeypatch.setattr(sys, "argv", ["strata_gdn", "bench", "--json", str(file), "--plot", str(plot)])
    recorded = ["python", "-m", "strata_gdn", "bench", "--json", "cuda.json", "--plot", "cuda.png"]
    assert _devices.command(file, plot) == recorded
    assert _devices.command(file, None)[-1] == str(plot)  # what is not said to be an output stays
