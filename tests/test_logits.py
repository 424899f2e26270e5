"""`python -m strata_gdn parity --logits`: that it passes, and what it notices. The fp32 lane has a stand-in here."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="the model is of the optional transformers package")
pytest.importorskip("tqdm", reason="the demo's progress bar is of the optional tqdm package")

from transformers.models.qwen3_next import modeling_qwen3_next as modeling

from strata_gdn import __main__ as command_line
from strata_gdn import _devices, demo, ops, registry
from strata_gdn.parity import logit_check
from strata_gdn.parity.kernels import isas
from strata_gdn.parity.logits import EPSILON, distance, divergence

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
needs_isas = pytest.mark.skipif(len(isas()) < 2, reason="this CPU has one instruction set")
LENGTH, STEPS = 70, 3
Recurrence = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, threads: None) -> None:
    """Both layer types, as few layers as have them, few tokens."""
    torch.set_num_threads(1)
    monkeypatch.setitem(demo.MODEL, "num_hidden_layers", 4)
    monkeypatch.setattr(logit_check, "GREEDY", STEPS)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[Recurrence], None]:
    """`stand_in(f)`: the fp32 arm runs, and its prompts are f(own recurrence, its arguments) instead."""
    own = ops.gated_delta_rule_

    def plant(prompt: Callable[..., Tensor]) -> None:
        def recurrence(*args: Any, precision: str, **options: Any) -> Tensor:
            if precision == "auto" and args[0].shape[1] == LENGTH:
                return prompt(own, *args, **options)
            return own(*args, precision=precision, **options)

        monkeypatch.setattr(logit_check, "FP32", {"rec_cpu"})
        monkeypatch.setattr(ops, "gated_delta_rule_", recurrence)

    return plant


def run(*arguments: str) -> int:
    return command_line.main(["parity", "--logits", "--tokens", str(LENGTH), *arguments])


def run_rows(file: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit status and the rows by arm."""
    status = run("--json", str(file))
    return status, {row["arm"]: row for row in json.loads(file.read_text())["rows"]}


def in_float32_chunks(own: Recurrence, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor,
                      **options: Any) -> Tensor:  # fmt: skip
    """A chunked form in float32 indeed: Transformers'."""
    chunked = inspect.unwrap(modeling.torch_chunk_gated_delta_rule)
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    o, final_state = chunked(q, k, v, g=g, beta=beta, output_final_state=True, use_qk_l2norm_in_kernel=True)
    state.copy_(final_state)
    return o


def in_tf32(own: Recurrence, q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> Tensor:
    """Operands of 11 bits."""
    rounded = (((x.contiguous().view(torch.int32) + (1 << 12)) & -(1 << 13)).view(torch.float32) for x in (q, k, v))
    return own(*rounded, *args, **options)


# What passes


@needs_isas
def test_on_a_cpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, rows = run_rows(tmp_path / "logits.json")
    assert status == 0
    assert list(rows) == ["exact", "noise", "fp32", "Transformers"]
    assert rows["exact"]["config"] != rows["noise"]["config"]
    assert rows["noise"]["distance"]["kl"] == rows["noise"]["distance"]["largest"] == 0
    assert rows["noise"]["checks"] == 3
    assert rows["fp32"]["left_out"].startswith('precision="fp32" is not available on cpu')
    assert rows["fp32"]["checks"] == 0
    assert rows["fp32"]["distance"] is None
    theirs = rows["Transformers"]
    assert theirs["served"] == {}
    assert 0 < theirs["distance"]["kl"] < theirs["distance"]["limit"]
    out = capsys.readouterr().out
    assert 'left out: precision="fp32" is not available on cpu' in out
    assert out.endswith("\n6 checks, 0 failures, 1 left out\n")
    record = json.loads((tmp_path / "logits.json").read_text())
    assert (record["checks"], record["failures"], record["left_out"]) == (6, 0, 1)
    assert {"device", "torch", "transformers"} <= record["environment"].keys()
    assert record["command"][:3] == ["python", "-m", "strata_gdn"]


def test_a_chunked_form_in_float32_passes(stand_in: Any, tmp_path: Path) -> None:
    stand_in(in_float32_chunks)
    status, rows = run_rows(tmp_path / "logits.json")
    assert status == 0
    assert 0 < rows["fp32"]["distance"]["kl"] < rows["fp32"]["distance"]["limit"] / 100
    assert rows["fp32"]["checks"] == 3


# What fails


def test_fewer_bits_fail(stand_in: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in(in_tf32)
    status, rows = run_rows(tmp_path / "logits.json")
    assert status == 1
    assert rows["fp32"]["distance"]["kl"] > 10 * rows["fp32"]["distance"]["limit"]
    assert [row["arm"] for row in rows.values() if row["failures"]] == ["fp32"]
    out, err = capsys.readouterr()
    assert "FAILED" in out
    assert f"strata_gdn: fp32, {LENGTH} tokens: KL " in err


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_fail(
    value: float, stand_in: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(lambda own, *args, **options: own(*args, **options).fill_(value))
    status, rows = run_rows(tmp_path / "logits.json")
    assert status == 1
    assert math.isnan(rows["fp32"]["distance"]["kl"])
    assert math.isnan(rows["fp32"]["distance"]["largest"])
    assert rows["fp32"]["failures"][0] == "the first token is another"
    assert "KL nan is not within" in capsys.readouterr().err


def test_nan_in_the_baseline_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same NaN in every arm is no agreement."""
    own = ops.gdn_gates
    monkeypatch.setattr(ops, "gdn_gates", lambda *args: tuple(x.fill_(torch.nan) for x in own(*args)))
    status, rows = run_rows(tmp_path / "logits.json")
    assert status == 1
    assert rows["exact"]["failures"] == ["logits that are not finite"]
    if not rows["noise"]["left_out"]:
        assert rows["noise"]["failures"] == ["KL nan, expected 0"]


@needs_isas
def test_one_bit_in_another_grouping_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    own, best = ops.gated_rms_norm, f"cpu-{isas()[-1]}"

    def faulty(*args: Any, **options: Any) -> Tensor:
        y = own(*args, **options)
        if registry.cpu_arch() != best:
            y.view(torch.int32)[-1, -1] ^= 1
        return y

    monkeypatch.setattr(ops, "gated_rms_norm", faulty)
    assert run() == 1
    assert f"strata_gdn: noise, {LENGTH} tokens: logits of {STEPS} tokens: " in capsys.readouterr().err


def test_another_kernel_than_asked_for_fails(
    stand_in: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def launches() -> Any:
        yield {"rec_columns": 6}

    stand_in(lambda own, *args, **options: own(*args, **options))
    monkeypatch.setattr(logit_check, "launches", launches)
    assert run() == 1
    line = f"strata_gdn: fp32, {LENGTH} tokens: asked for rec_cpu; served: rec_columns"
    assert line in capsys.readouterr().err.splitlines()


def test_wrong_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("--op", "gdn_gates") == 2
    assert run("--json", str(tmp_path / "nowhere" / "logits.json")) == 2
    assert capsys.readouterr().err.splitlines()[0] == "strata_gdn: --logits takes neither --bench nor --op"


# The arms of a GPU, and the distance


def _decisions(monkeypatch: pytest.MonkeyPatch, arch: str) -> logit_check.Check:
    monkeypatch.setattr(_devices, "arch", lambda device: arch)
    monkeypatch.setattr(demo, "sms", lambda device: 132)
    check = logit_check.Check(torch.device("cpu"))
    check.device = torch.device("cuda")
    return check


def test_the_arms_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    check = _decisions(monkeypatch, "sm_90")
    for tokens in logit_check.TOKENS:
        noise = check.noise(tokens)
        own, other = (check.decide(tokens, "exact", switches) for switches in ({}, noise.switches))
        assert (own.kernel, other.kernel) == ("rec_columns", "rec_keyhead")
        own, other = (check.decide(1, "exact", switches) for switches in ({}, noise.switches))
        assert own.kernel == other.kernel == "step"
        assert own.config["heads"] != other.config["heads"]
        assert check.fp32_left_out(tokens) == ""
    assert check.fp32_left_out(100).startswith("chunk_fp32 ")


def test_the_fp32_arm_is_left_out_of_an_older_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "fp32" in _decisions(monkeypatch, "sm_75").fp32_left_out(600)


@needs_gpu
@pytest.mark.xdist_group("cuda")
def test_on_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "logits.json"
    assert command_line.main(["parity", "--logits", "--device", "cuda", "--tokens", "600", "--json", str(file)]) == 0
    rows = {row["arm"]: row for row in json.loads(file.read_text())["rows"]}
    if not rows["fp32"]["left_out"]:
        assert rows["fp32"]["kernel"] == "chunk_fp32"
        assert rows["fp32"]["served"]["chunk_fp32"] == 3
        assert rows["fp32"]["distance"]["kl"] > 0


def test_the_divergence() -> None:
    p, q = torch.randn(2, 50, dtype=torch.float64) * 3
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    assert math.isclose(divergence(p, q), (log_p.exp() * (log_p - log_q)).sum().item(), rel_tol=1e-12)
    assert divergence(p, p) == 0
    small = divergence(p, p + 1e-7 * q)  # about half the variance of the difference
    mean = (log_p.exp() * q).sum()
    assert math.isclose(small, 0.5e-14 * (log_p.exp() * (q - mean).square()).sum().item(), rel_tol=1e-5)


def test_the_limit_is_what_its_difference_of_the_logits_can_give() -> None:
    """Half of the probability moved by +εL against the other half's −εL reaches it; nothing passes it."""
    at_worst = torch.zeros(2, dtype=torch.float64) + 3.0
    shift = EPSILON * 3.0 * torch.tensor([1.0, -1.0], dtype=torch.float64)
    assert math.isclose(distance(at_worst, at_worst + shift).kl, distance(at_worst, at_worst).limit, rel_tol=1e-6)
    for _ in range(20):
        exact = torch.randn(256, dtype=torch.float64)
        found = distance(exact, exact + EPSILON * exact.abs().max() * (2 * torch.rand(256, dtype=torch.float64) - 1))
        assert found.largest <= EPSILON
        assert found.within
