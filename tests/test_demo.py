"""The demo passes, and fails where it must: logits too far off, a draft rolled back wrongly, an op with other bits."""

from __future__ import annotations

import argparse

import pytest
import torch

pytest.importorskip("transformers", reason="the demo's model is of the optional transformers package")
pytest.importorskip("tqdm", reason="the demo's progress bar is of the optional tqdm package")

from strata_gdn import _devices, demo, ops, registry
from strata_gdn.integrations import transformers as integration

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def _run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return demo.run(parser.parse_args(["--device", "cpu", "--threads", "1", *words]))


@pytest.fixture(autouse=True)
def _small(monkeypatch, threads):
    """Both layer types, as few layers as have them, a short prompt."""
    torch.set_num_threads(1)
    own = demo.load_prompt
    monkeypatch.setitem(demo.MODEL, "num_hidden_layers", 4)
    monkeypatch.setattr(demo, "load_prompt", lambda device: own(device)[:, -100:])


def test_passes(capsys):
    assert _run("--tokens", "5") == 0
    out = capsys.readouterr().out
    assert "5 of 5 the same" in out
    assert "2 accepted" in out
    assert out.count("bit for bit as undrafted") == 3
    assert "nothing to compare, they ran there" in out
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


def _beside_the_cpu(tokens: int) -> bool:
    device = torch.device("cpu")
    with torch.inference_mode(), integration.enable(precision="exact"):
        return demo._compare_with_the_cpu(demo.build_model(device), demo.load_prompt(device), tokens)


def test_the_ops_beside_the_cpus(capsys):
    assert _beside_the_cpu(3)
    out = capsys.readouterr().out
    calls = {line.split()[0]: int(line.split()[1]) for line in out.splitlines() if "bit for bit the CPU's" in line}
    linear = 3  # layers; prompt, two more tokens, the prompt again, and a draft row by row in the projections' norm
    assert calls["gated_delta_rule_"] == calls["causal_conv1d_"] == 4 * linear
    assert calls["gdn_gates"] == 5 * linear
    assert calls["gated_delta_rule_verify"] == calls["causal_conv1d_verify"] == linear
    assert calls["gated_delta_rule_commit_layers_"] == calls["causal_conv1d_commit_layers_"] == 1
    assert "3 of 3 the same" in out
    assert "DIFFERENT" not in out


@pytest.mark.parametrize("where", ["result", "state"])
def test_an_op_with_another_bit_fails(where, capsys, monkeypatch):
    """One call of the recurrence that is not the CPU's own."""
    own, made = torch.ops.strata_gdn.gated_delta_rule_, []
    assert _beside_the_cpu(1)  # a dispatch mode looks an op up by its name, once: before the name is another's
    capsys.readouterr()

    def faulty(**arguments):
        o = own(**arguments)
        made.append(o)
        if len(made) == 2:
            wrong = o if where == "result" else arguments["state"]
            wrong.view(torch.int32).flatten()[5] ^= 1
        return o

    monkeypatch.setattr(torch.ops.strata_gdn, "gated_delta_rule_", faulty)
    assert not _beside_the_cpu(2)
    out = capsys.readouterr().out
    assert "DIFFERENT from the CPU's: 1" in out
    what = {"result": "result 0", "state": "memory of state"}[where]
    assert f"gated_delta_rule_, call 1: {what}: 1 of " in out
    assert "2 of 2 the same" in out  # what goes on is the CPU's


@needs_gpu
@pytest.mark.xdist_group("cuda")
def test_passes_on_the_gpu(capsys):
    torch.use_deterministic_algorithms(False)  # Transformers' fallback sums in no fixed order
    assert _run("--device", "cuda", "--tokens", "20") == 0
    out = capsys.readouterr().out
    assert out.count("bit for bit as undrafted") == 3
    assert out.count("bit for bit the CPU's") == 9
    assert "20 of 20 the same" in out.partition("\n3. ")[2]
    assert "none" not in out


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
