"""The demo passes, and fails where it must: logits too far off, a draft rolled back wrongly."""

from __future__ import annotations

import argparse

import pytest
import torch

pytest.importorskip("transformers", reason="the demo's model is of the optional transformers package")
pytest.importorskip("tqdm", reason="the demo's progress bar is of the optional tqdm package")

from strata_gdn import _devices, demo, ops, registry


def _run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return demo.run(parser.parse_args(["--device", "cpu", "--threads", "1", *words]))


@pytest.fixture(autouse=True)
def _small(monkeypatch, threads):
    """Both layer types, as few layers as have them, a short prompt."""
    own = demo._prompt
    monkeypatch.setitem(demo.MODEL, "num_hidden_layers", 4)
    monkeypatch.setattr(demo, "_prompt", lambda device: own(device)[:, -100:])


def test_passes(capsys):
    assert _run("--tokens", "5") == 0
    out = capsys.readouterr().out
    assert "5 of 5 the same" in out
    assert "2 accepted" in out
    assert out.count("bit for bit as undrafted") == 3
    assert "launches" in out
    assert "none" not in out
    assert out.endswith("Demo passed.\n")


def test_logits_too_far_off_fail(capsys, monkeypatch):
    own = ops.gated_rms_norm
    monkeypatch.setattr(ops, "gated_rms_norm", lambda *args, **options: own(*args, **options) * 1.05)
    assert _run("--tokens", "1") == 1
    out = capsys.readouterr().out
    assert "ABOVE 1e-03" in out
    assert out.endswith("Demo FAILED.\n")


@pytest.mark.parametrize("op", ["gated_delta_rule_commit_layers_", "causal_conv1d_commit_layers_"])
def test_a_wrong_rollback_fails(op, capsys, monkeypatch):
    own = getattr(ops, op)
    monkeypatch.setattr(ops, op, lambda *args: own(*args[:-1], args[-1] + 1))
    assert _run("--tokens", "1") == 1
    out = capsys.readouterr().out
    assert "DIFFERENT from undrafted  states, windows, keys and values after the roll-back" in out
    assert out.endswith("Demo FAILED.\n")


@pytest.mark.parametrize(
    ("built", "kernels", "device", "why"),
    [
        (False, True, "cpu", "because this build has no kernels for the GPU (sm_90)"),
        (True, False, "cpu", "because gated_delta_rule has no kernel for the GPU (sm_90): none"),
        (True, True, "cuda", "the GPU found"),
    ],
)
def test_a_gpu_is_used_where_every_op_is_served(built, kernels, device, why, monkeypatch):
    decision = registry.Decision("some_kernel" if kernels else "", {}, "none", ())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(_devices, "arch", lambda device: "sm_90")
    monkeypatch.setattr(registry, "build", lambda: registry.Build(built, ("90",), False, ()))
    monkeypatch.setattr(registry, "decide", lambda op, *, arch: decision)
    assert demo._choose_device() == (torch.device(device), why)


def test_nothing_to_generate(capsys):
    assert _run("--tokens", "0") == 2
    assert capsys.readouterr().err == "strata_gdn: --tokens must be at least 1; got 0\n"
