"""The registry: switches, architectures' defaults, decisions, overrides and the command line, as tables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
from expecttest import assert_expected_inline

import strata_gdn
from strata_gdn import __main__ as command_line
from strata_gdn import registry

ARCHS = [
    "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120",
    "gfx1030", "gfx1100", "gfx1151", "gfx1200", "gfx1201", "cpu-avx512", "cpu-avx2", "cpu-baseline",
]  # fmt: skip
CHOICES = {
    "GDN_CHUNKED": ["0", "1", "2"],
    "GDN_KEYHEAD": ["0", "1"],
    "GDN_PIPELINE": ["0", "1"],
    "GDN_LANES": ["0", "1", "2"],
    "GDN_STEP": ["0", "1"],
    "GDN_SPLIT": ["0", "1"],
    "GDN_STEP_HEADS": ["1", "2", "4"],
    "GDN_FUSED_LAYER": ["0", "1"],
    "GDN_COMMIT_SPLIT": ["0", "1"],
    "GDN_CONVL2": ["0", "1"],
    "GDN_SEQ_SPLIT": ["0", "1", "7", "1024"],
    "GDN_CPU_ISA": ["baseline", "avx2", "avx512"],
    "GDN_WMMA": ["0", "1"],
    "GDN_EMULATE": ["sm_75", "sm_120", "gfx90a", "gfx1151", "cpu-avx2"],
    "GDN_ARCH_DEFAULTS": ["0", "1"],
    "GDN_CHECK": ["0", "1"],
    "GDN_LOG": ["0", "1"],
}
DEFAULTS_OF_ARCHS = [
    (arch, name) for arch in ("gfx1151", "gfx1201") for name in ("GDN_SPLIT", "GDN_CONVL2", "GDN_LANES")
]
BUILD_TIME = ["GDN_CUDA_ARCHS", "GDN_HIP_ARCHS"]
OPS = [
    "gated_delta_rule", "gated_delta_rule_", "gated_delta_rule_verify", "gated_delta_rule_commit_",
    "gated_delta_rule_commit_layers_", "gated_delta_rule_commit_verify_", "causal_conv1d", "causal_conv1d_",
    "causal_conv1d_verify", "causal_conv1d_commit_", "causal_conv1d_commit_layers_", "qk_l2norm", "gdn_gates",
    "gated_rms_norm", "gdn_decode_layer_", "gdn_verify_layer",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch):
    """Each test starts without a GDN_ variable and leaves the process's environment as read before it."""
    with pytest.MonkeyPatch.context() as clean:
        for name in [name for name in os.environ if name.startswith("GDN_")]:
            clean.delenv(name)
        registry.reload()
        yield
        monkeypatch.undo()
    registry.reload()


def _value(name: str, switches: tuple[registry.Switch, ...] | None = None) -> tuple[str | None, str]:
    (found,) = [s for s in (registry.switches() if switches is None else switches) if s.name == name]
    return found.value, found.source


def _message(call, *args, error: type[Exception] = ValueError, **kwargs) -> str:
    with pytest.raises(error) as raised:
        call(*args, **kwargs)
    return str(raised.value)


def _python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`code` in a fresh interpreter that finds the same strata_gdn as this one."""
    folder = str(Path(strata_gdn.__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | env, cwd=folder, capture_output=True, text=True
    )


# The switches


def test_table_of_switches() -> None:
    lines = [f"{s.name} | {s.kind} | {s.allowed} | {s.value} | {s.source}" for s in registry.switches()]
    assert_expected_inline(
        "\n".join(lines),
        """\
GDN_CHUNKED | runtime | 0, 1 or 2 | None | built-in
GDN_KEYHEAD | runtime | 0 or 1 | None | built-in
GDN_PIPELINE | runtime | 0 or 1 | 1 | built-in
GDN_LANES | runtime | 0, 1 or 2 | 0 | built-in
GDN_STEP | runtime | 0 or 1 | 1 | built-in
GDN_SPLIT | runtime | 0 or 1 | 0 | built-in
GDN_STEP_HEADS | runtime | 1, 2 or 4 | None | built-in
GDN_FUSED_LAYER | runtime | 0 or 1 | None | built-in
GDN_COMMIT_SPLIT | runtime | 0 or 1 | None | built-in
GDN_CONVL2 | runtime | 0 or 1 | 0 | built-in
GDN_SEQ_SPLIT | runtime | a whole number from 0 to 1024 | None | built-in
GDN_CPU_ISA | runtime | baseline, avx2 or avx512 | None | built-in
GDN_CUDA_ARCHS | build time | a list of architectures | None | built-in
GDN_HIP_ARCHS | build time | a list of architectures | None | built-in
GDN_WMMA | runtime | 0 or 1 | 0 | built-in
GDN_EMULATE | runtime | an architecture such as sm_86, gfx1151 or cpu-avx2 | None | built-in
GDN_ARCH_DEFAULTS | runtime | 0 or 1 | 1 | built-in
GDN_CHECK | runtime | 0 or 1 | 0 | built-in
GDN_LOG | runtime | 0 or 1 | 0 | built-in""",
    )


def test_architecture_defaults() -> None:
    """Every switch that an architecture sets, and nothing else."""
    lines = []
    for arch in [*ARCHS, "cpu"]:
        own = [f"{s.name}={s.value}" for s in registry.effective(arch) if s.source == "arch default"]
        lines.append(f"{arch:12} {' '.join(own) or '-'}")
    assert_expected_inline(
        "\n".join(lines),
        """\
sm_75        -
sm_80        -
sm_86        -
sm_89        -
sm_90        -
sm_100       -
sm_120       -
gfx1030      -
gfx1100      -
gfx1151      GDN_LANES=2 GDN_SPLIT=1 GDN_CONVL2=1
gfx1200      GDN_LANES=1 GDN_SPLIT=0 GDN_CONVL2=1
gfx1201      GDN_LANES=1 GDN_SPLIT=0 GDN_CONVL2=1
cpu-avx512   -
cpu-avx2     -
cpu-baseline -
cpu          -""",
    )


def test_architecture_defaults_can_be_turned_off() -> None:
    for arch in ARCHS:
        off = {s.name: s for s in registry.effective(arch, env={"GDN_ARCH_DEFAULTS": "0"})}
        built_in = {s.name: s for s in registry.switches()}
        assert off.pop("GDN_ARCH_DEFAULTS").source == "environment"
        del built_in["GDN_ARCH_DEFAULTS"]
        assert off == built_in


@pytest.mark.parametrize(("arch", "name"), DEFAULTS_OF_ARCHS)
@pytest.mark.parametrize("value", ["0", "1"])
def test_the_user_wins_over_an_architecture_default(arch: str, name: str, value: str) -> None:
    assert _value(name, registry.effective(arch, env={name: value})) == (value, "environment")
    with registry.overrides(**{name: value}):
        assert _value(name, registry.effective(arch)) == (value, "override")


def test_emulation_brings_the_emulated_cards_defaults() -> None:
    assert _value("GDN_SPLIT", registry.effective("gfx1201", env={"GDN_EMULATE": "gfx1151"})) == ("1", "arch default")
    assert _value("GDN_SPLIT", registry.effective("cpu-avx2", env={"GDN_EMULATE": "gfx1151"})) == ("0", "built-in")


def test_every_switch_is_in_these_tables() -> None:
    assert sorted([*CHOICES, *BUILD_TIME]) == sorted(s.name for s in registry.switches())


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in CHOICES.items() for value in values])
def test_every_allowed_value(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    with registry.overrides(**{name: value}):
        assert _value(name) == (value, "override")
    monkeypatch.setenv(name, value)
    registry.reload()
    assert _value(name) == (value, "environment")
    monkeypatch.delenv(name)
    registry.reload()
    assert _value(name)[1] == "built-in"


def test_numbers_are_values_too() -> None:
    with registry.overrides(GDN_CHUNKED=2, GDN_SEQ_SPLIT=16, GDN_CHECK=True):
        assert [_value(name)[0] for name in ("GDN_CHUNKED", "GDN_SEQ_SPLIT", "GDN_CHECK")] == ["2", "16", "1"]


def test_a_value_that_is_not_allowed() -> None:
    wrong = dict.fromkeys(CHOICES, "yes") | {"GDN_CHUNKED": "3", "GDN_SEQ_SPLIT": "1025", "GDN_CHECK": ""}
    wrong |= {"GDN_CPU_ISA": "sse2", "GDN_EMULATE": "h100", "GDN_LOG": "01"}
    messages = []
    for name, value in wrong.items():
        message = _message(registry.decide, "gdn_gates", arch="cpu-avx2", env={name: value})
        assert message == _message(registry.overrides(**{name: value}).__enter__)
        messages.append(message)
    messages.append(_message(registry.overrides(GDN_SEQ_SPLIT=-1).__enter__))
    messages.append(_message(registry.overrides(GDN_SPLIT=1.0).__enter__))
    assert_expected_inline(
        "\n".join(messages),
        """\
GDN_CHUNKED must be 0, 1 or 2; got '3'
GDN_KEYHEAD must be 0 or 1; got 'yes'
GDN_PIPELINE must be 0 or 1; got 'yes'
GDN_LANES must be 0, 1 or 2; got 'yes'
GDN_STEP must be 0 or 1; got 'yes'
GDN_SPLIT must be 0 or 1; got 'yes'
GDN_STEP_HEADS must be 1, 2 or 4; got 'yes'
GDN_FUSED_LAYER must be 0 or 1; got 'yes'
GDN_COMMIT_SPLIT must be 0 or 1; got 'yes'
GDN_CONVL2 must be 0 or 1; got 'yes'
GDN_SEQ_SPLIT must be a whole number from 0 to 1024; got '1025'
GDN_CPU_ISA must be baseline, avx2 or avx512; got 'sse2'
GDN_WMMA must be 0 or 1; got 'yes'
GDN_EMULATE must be an architecture such as sm_86, gfx1151 or cpu-avx2; got 'h100'
GDN_ARCH_DEFAULTS must be 0 or 1; got 'yes'
GDN_CHECK must be 0 or 1; got ''
GDN_LOG must be 0 or 1; got '01'
GDN_SEQ_SPLIT must be a whole number from 0 to 1024; got '-1'
GDN_SPLIT must be an int, a str or None; got 1.0""",
    )


def test_unknown_names() -> None:
    messages = [
        _message(registry.overrides(GDN_SPLT=1).__enter__),
        _message(registry.decide, "gdn_gates", arch="sm_90", env={"GDN_EMULATED": "sm_86"}),
        _message(registry.overrides(GDN_CUDA_ARCHS="90").__enter__),
        _message(registry.decide, "gated_delta_net", arch="sm_90"),
        _message(registry.decide, "gdn_gates", arch="h100"),
        _message(registry.decide, "gdn_gates", arch="cpu", dtype="float64"),
        _message(registry.decide, "gdn_gates", arch="cpu", precision="tf32"),
        _message(registry.decide, "gdn_gates", arch="cpu", tokens=-1),
        _message(registry.decide, "gdn_gates", arch="cpu", h=16, hv=40),
    ]
    assert_expected_inline(
        "\n".join(messages),
        """\
unknown switch GDN_SPLT (nearest known name: GDN_SPLIT)
unknown switch GDN_EMULATED (nearest known name: GDN_EMULATE)
GDN_CUDA_ARCHS is read when the package is built and cannot be overridden
unknown op gated_delta_net (nearest known name: gated_delta_rule)
arch must be "cpu" or an architecture such as sm_86, gfx1151 or cpu-avx2; got 'h100'
dtype must be float32, bfloat16 or float16; got 'float64'
precision must be auto, exact, fp32 or fast; got 'tf32'
decide: tokens must be at least 0; got -1
decide: hv must be a multiple of h=16; got 40""",
    )


# The environment


def test_a_wrong_value_raises_at_the_first_decision_and_not_at_import() -> None:
    code = "import strata_gdn; print('imported'); strata_gdn.registry.switches()"
    result = _python(code, GDN_SPLIT="yes")
    assert result.stdout == "imported\n"
    assert result.stderr.splitlines()[-1] == "ValueError: GDN_SPLIT must be 0 or 1; got 'yes'"


def test_a_wrong_value_raises_at_the_first_op() -> None:
    code = """
import torch, strata_gdn
x = torch.zeros(1, 1, 2)
strata_gdn.gdn_gates(x, x, x[0, 0], x[0, 0])
"""
    result = _python(code, GDN_CPU_ISA="sse2")
    assert result.stderr.splitlines()[-1] == "ValueError: GDN_CPU_ISA must be baseline, avx2 or avx512; got 'sse2'"


def test_a_failed_reload_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDN_SPLIT", "1")
    registry.reload()
    monkeypatch.setenv("GDN_CONVL2", "1")
    monkeypatch.setenv("GDN_SPLIT", "2")
    assert _message(registry.reload) == "GDN_SPLIT must be 0 or 1; got '2'"
    assert _value("GDN_SPLIT") == ("1", "environment")
    assert _value("GDN_CONVL2") == ("0", "built-in")


def test_the_environment_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDN_CHUNKED", "1")
    assert _value("GDN_CHUNKED") == (None, "built-in")
    registry.reload()
    assert _value("GDN_CHUNKED") == ("1", "environment")


def test_unknown_names_in_the_environment_are_one_warning() -> None:
    code = """
import warnings
from strata_gdn import registry
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    registry.switches()
    registry.reload()
    for w in seen:
        print(w.category.__name__, str(w.message).replace(", ", "\\n"))
"""
    result = _python(code, GDN_SPLITT="1", GDN_CHUNK="2", GDN_CUDA_ARCHS="90")
    assert_expected_inline(
        result.stdout,
        """\
RuntimeWarning strata_gdn: unknown switches GDN_CHUNK (nearest known name: GDN_CHUNKED)
GDN_SPLITT (nearest known name: GDN_SPLIT)
""",
    )


def test_the_warning_as_an_error() -> None:
    code = "from strata_gdn import registry; registry.reload()"
    result = _python(code, GDN_SPLITT="1", PYTHONWARNINGS="error::RuntimeWarning")
    assert result.stderr.splitlines()[-1] == "RuntimeError: unknown switch GDN_SPLITT (nearest known name: GDN_SPLIT)"


def test_a_build_time_name_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDN_CUDA_ARCHS", "80,90")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry.reload()
    assert _value("GDN_CUDA_ARCHS") == ("80,90", "environment")


# Overrides


def test_overrides_nest_and_none_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDN_SPLIT", "0")
    registry.reload()
    seen = []
    with registry.overrides(GDN_SPLIT=1, GDN_CHUNKED=1):
        seen.append((_value("GDN_SPLIT"), _value("GDN_CHUNKED")))
        with registry.overrides(GDN_SPLIT=None, GDN_CHUNKED=2):
            seen.append((_value("GDN_SPLIT"), _value("GDN_CHUNKED")))
            assert _value("GDN_SPLIT", registry.effective("gfx1151")) == ("1", "arch default")
        seen.append((_value("GDN_SPLIT"), _value("GDN_CHUNKED")))
    seen.append((_value("GDN_SPLIT"), _value("GDN_CHUNKED")))
    assert seen == [
        (("1", "override"), ("1", "override")),
        (("0", "built-in"), ("2", "override")),
        (("1", "override"), ("1", "override")),
        (("0", "environment"), (None, "built-in")),
    ]


def test_overrides_end_with_an_exception() -> None:
    with pytest.raises(KeyError), registry.overrides(GDN_CHUNKED=1):
        raise KeyError
    assert _value("GDN_CHUNKED") == (None, "built-in")


def test_refused_overrides_change_nothing() -> None:
    before = registry.switches()
    with registry.overrides(GDN_LOG=0):
        inside = registry.switches()
        _message(registry.overrides(GDN_CHUNKED=1, GDN_SPLIT=7).__enter__)
        _message(registry.overrides(GDN_CHUNKED=1, GDN_SPLT=1).__enter__)
        assert registry.switches() == inside
    assert registry.switches() == before


def test_overrides_belong_to_their_thread() -> None:
    inside, done = threading.Event(), threading.Event()
    seen: dict[str, tuple[str | None, str]] = {}

    def other() -> None:
        with registry.overrides(GDN_CHUNKED=2):
            inside.set()
            done.wait(10)
            seen["other"] = _value("GDN_CHUNKED")

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(10)
    with registry.overrides(GDN_CHUNKED=1):
        seen["this"] = _value("GDN_CHUNKED")
    done.set()
    thread.join()
    assert seen == {"this": ("1", "override"), "other": ("2", "override")}
    assert _value("GDN_CHUNKED") == (None, "built-in")


def test_a_scope_is_left_on_its_own_thread() -> None:
    scope = registry.overrides(GDN_CHUNKED=1)
    thread = threading.Thread(target=scope.__enter__)
    thread.start()
    thread.join()
    message = _message(scope.__exit__, None, None, None, error=RuntimeError)
    assert message == "registry.overrides: a scope must be left on the thread that entered it"


# Decisions


def _decision(op: str, **arguments) -> str:
    d = registry.decide(op, **arguments)
    assert bool(d) == (d.kernel != "")
    config = " ".join(f"{name}={value}" for name, value in d.config.items())
    rejected = "".join(f"\n    {kernel}: {reason}" for kernel, reason in d.rejected)
    return f"{d.kernel or 'none'} [{config}] {d.reason}{rejected}"


def test_every_op_on_the_cpu() -> None:
    lines = [f"{op}: {_decision(op, arch='cpu-avx2', env={})}" for op in OPS]
    assert_expected_inline(
        "\n".join(lines),
        """\
gated_delta_rule: rec_cpu [isa=avx2] the only kernel for gated_delta_rule on cpu
gated_delta_rule_: rec_cpu [isa=avx2] the only kernel for gated_delta_rule on cpu
gated_delta_rule_verify: verify_cpu [isa=avx2] the only kernel for gated_delta_rule_verify on cpu
gated_delta_rule_commit_: commit_cpu [isa=avx2] the only kernel for gated_delta_rule_commit on cpu
gated_delta_rule_commit_layers_: commit_cpu [isa=avx2] the only kernel for gated_delta_rule_commit_layers on cpu
gated_delta_rule_commit_verify_: commit_verify_cpu [isa=avx2] the only kernel for gated_delta_rule_commit_verify on cpu
causal_conv1d: conv_cpu [isa=avx2] the only kernel for causal_conv1d on cpu
causal_conv1d_: conv_cpu [isa=avx2] the only kernel for causal_conv1d on cpu
causal_conv1d_verify: conv_cpu [isa=avx2] the only kernel for causal_conv1d_verify on cpu
causal_conv1d_commit_: conv_commit_cpu [isa=avx2] the only kernel for causal_conv1d_commit on cpu
causal_conv1d_commit_layers_: conv_commit_cpu [isa=avx2] the only kernel for causal_conv1d_commit on cpu
qk_l2norm: l2norm_cpu [isa=avx2] the only kernel for qk_l2norm on cpu
gdn_gates: gates_cpu [isa=avx2] the only kernel for gdn_gates on cpu
gated_rms_norm: norm_cpu [isa=avx2] the only kernel for gated_rms_norm on cpu
gdn_decode_layer_: decode_layer_cpu [isa=avx2] the only kernel for gdn_decode_layer on cpu
gdn_verify_layer: verify_layer_cpu [isa=avx2] the only kernel for gdn_verify_layer on cpu""",
    )


def test_every_op_on_a_gpu() -> None:
    """What a build with CUDA and ROCm kernels serves; the same table on a build without."""
    calls: dict[str, dict[str, int]] = {op: {} for op in OPS}
    calls |= {f"{op} 2048 tokens": {"tokens": 2048} for op in OPS[:2]}
    calls |= {f"{op} tree": {"tree": True} for op in OPS if "verify" in op}
    archs_of: dict[str, list[str]] = {}
    for arch in [arch for arch in ["sm_70", *ARCHS] if not arch.startswith("cpu")]:
        served = {name: registry.decide(name.split()[0], arch=arch, env={}, **call) for name, call in calls.items()}
        table = "".join(f"\n  {name}: {decision.kernel}" for name, decision in served.items() if decision)
        archs_of.setdefault(table or " -", []).append(arch)
    assert_expected_inline(
        "\n".join(f"{' '.join(archs)}:{table}" for table, archs in archs_of.items()),
        """\
sm_70: -
sm_75 gfx1030 gfx1100:
  gated_delta_rule: step
  gated_delta_rule_: step
  gated_delta_rule_verify: verify
  gated_delta_rule_commit_: commit
  gated_delta_rule_commit_layers_: commit
  gated_delta_rule_commit_verify_: commit_verify
  causal_conv1d: causal_conv1d
  causal_conv1d_: causal_conv1d
  causal_conv1d_verify: causal_conv1d
  causal_conv1d_commit_: conv_commit
  causal_conv1d_commit_layers_: conv_commit
  qk_l2norm: qk_l2norm
  gdn_gates: gdn_gates
  gated_rms_norm: gated_rms_norm
  gdn_decode_layer_: conv_gates, step_norm
  gdn_verify_layer: conv_gates, verify_norm
  gated_delta_rule 2048 tokens: rec_columns
  gated_delta_rule_ 2048 tokens: rec_columns
  gated_delta_rule_verify tree: verify_tree
  gated_delta_rule_commit_verify_ tree: commit, verify_tree
  causal_conv1d_verify tree: causal_conv1d
  gdn_verify_layer tree: conv_gates, verify_tree, gated_rms_norm
sm_80 sm_86 sm_89 sm_90 sm_100 sm_120:
  gated_delta_rule: step
  gated_delta_rule_: step
  gated_delta_rule_verify: verify
  gated_delta_rule_commit_: commit
  gated_delta_rule_commit_layers_: commit
  gated_delta_rule_commit_verify_: commit_verify
  causal_conv1d: causal_conv1d
  causal_conv1d_: causal_conv1d
  causal_conv1d_verify: causal_conv1d
  causal_conv1d_commit_: conv_commit
  causal_conv1d_commit_layers_: conv_commit
  qk_l2norm: qk_l2norm
  gdn_gates: gdn_gates
  gated_rms_norm: gated_rms_norm
  gdn_decode_layer_: conv_gates, step_norm
  gdn_verify_layer: conv_gates, verify_norm
  gated_delta_rule 2048 tokens: rec_keyhead
  gated_delta_rule_ 2048 tokens: rec_keyhead
  gated_delta_rule_verify tree: verify_tree
  gated_delta_rule_commit_verify_ tree: commit, verify_tree
  causal_conv1d_verify tree: causal_conv1d
  gdn_verify_layer tree: conv_gates, verify_tree, gated_rms_norm
gfx1151:
  gated_delta_rule: step
  gated_delta_rule_: step
  gated_delta_rule_verify: verify
  gated_delta_rule_commit_: commit
  gated_delta_rule_commit_layers_: commit
  gated_delta_rule_commit_verify_: commit_verify
  causal_conv1d: causal_conv1d
  causal_conv1d_: causal_conv1d
  causal_conv1d_verify: causal_conv1d
  causal_conv1d_commit_: conv_commit
  causal_conv1d_commit_layers_: conv_commit
  qk_l2norm: qk_l2norm
  gdn_gates: gdn_gates
  gated_rms_norm: gated_rms_norm
  gdn_decode_layer_: conv_l2, step, gated_rms_norm
  gdn_verify_layer: conv_l2, verify, gated_rms_norm
  gated_delta_rule 2048 tokens: rec_lanes
  gated_delta_rule_ 2048 tokens: rec_lanes
  gated_delta_rule_verify tree: verify_tree
  gated_delta_rule_commit_verify_ tree: commit, verify_tree
  causal_conv1d_verify tree: causal_conv1d
  gdn_verify_layer tree: conv_l2, verify_tree, gated_rms_norm
gfx1200 gfx1201:
  gated_delta_rule: step
  gated_delta_rule_: step
  gated_delta_rule_verify: verify
  gated_delta_rule_commit_: commit
  gated_delta_rule_commit_layers_: commit
  gated_delta_rule_commit_verify_: commit_verify
  causal_conv1d: causal_conv1d
  causal_conv1d_: causal_conv1d
  causal_conv1d_verify: causal_conv1d
  causal_conv1d_commit_: conv_commit
  causal_conv1d_commit_layers_: conv_commit
  qk_l2norm: qk_l2norm
  gdn_gates: gdn_gates
  gated_rms_norm: gated_rms_norm
  gdn_decode_layer_: conv_l2, step_norm
  gdn_verify_layer: conv_l2, verify_norm
  gated_delta_rule 2048 tokens: rec_lanes
  gated_delta_rule_ 2048 tokens: rec_lanes
  gated_delta_rule_verify tree: verify_tree
  gated_delta_rule_commit_verify_ tree: commit, verify_tree
  causal_conv1d_verify tree: causal_conv1d
  gdn_verify_layer tree: conv_l2, verify_tree, gated_rms_norm""",
    )


def test_decisions_and_their_reasons() -> None:
    cases = [
        ("gated_delta_rule", {"arch": "cpu-avx512", "precision": "exact", "tokens": 2048}),
        ("gated_delta_rule", {"arch": "cpu-avx512", "precision": "fp32"}),
        ("gated_delta_rule_", {"arch": "cpu-baseline", "precision": "fast"}),
        ("gated_delta_rule", {"arch": "cpu-avx512", "k": 96}),
        ("gated_delta_rule", {"arch": "cpu-avx512", "v": 512}),
        ("gated_delta_rule_verify", {"arch": "cpu-avx512", "tokens": 129}),
        ("causal_conv1d_verify", {"arch": "cpu-avx512", "tokens": 129}),
        ("gdn_decode_layer_", {"arch": "cpu-avx512", "tokens": 9}),
        ("qk_l2norm", {"arch": "cpu-avx2", "k": 80, "v": 80}),
        ("gdn_gates", {"arch": "cpu-avx2", "k": 80, "v": 80}),
        ("gated_delta_rule", {"arch": "sm_86", "sms": 28, "tokens": 2048, "env": {"GDN_CHUNKED": 2}}),
        ("gated_delta_rule", {"arch": "sm_75", "tokens": 2048, "k": 96}),
        ("gated_delta_rule", {"arch": "sm_70", "tokens": 2048}),
        ("gated_delta_rule_verify", {"arch": "sm_90", "tokens": 8, "tree": True}),
        ("gdn_verify_layer", {"arch": "sm_90", "tokens": 8}),
        ("gdn_verify_layer", {"arch": "sm_90", "tokens": 9, "tree": True}),
        ("gdn_gates", {"arch": "sm_90"}),
        ("gdn_gates", {"arch": "sm_70"}),
        ("gdn_gates", {"arch": "sm_90", "env": {"GDN_EMULATE": "sm_86"}}),
        ("gdn_gates", {"arch": "sm_90", "env": {"GDN_EMULATE": "gfx1151"}}),
        ("gdn_gates", {"arch": "sm_70", "env": {"GDN_EMULATE": "sm_90"}}),
        ("gdn_gates", {"arch": "gfx1151", "env": {"GDN_EMULATE": "sm_90"}}),
        ("gdn_gates", {"arch": "cpu-avx512", "env": {"GDN_CPU_ISA": "avx2"}}),
        ("gdn_gates", {"arch": "cpu-avx2", "env": {"GDN_CPU_ISA": "avx512"}}),
        ("gdn_gates", {"arch": "cpu-avx512", "env": {"GDN_EMULATE": "cpu-avx2"}}),
        ("gdn_gates", {"arch": "cpu-avx2", "env": {"GDN_EMULATE": "cpu-avx512"}}),
        ("gdn_gates", {"arch": "cpu-avx512", "env": {"GDN_EMULATE": "sm_86"}}),
    ]
    lines = []
    for op, arguments in cases:
        call = " ".join(f"{name}={value}" for name, value in arguments.items())
        lines.append(f"{op} {call}\n  {_decision(op, **{'env': {}} | arguments)}")
    assert_expected_inline(
        "\n".join(lines),
        """\
gated_delta_rule arch=cpu-avx512 precision=exact tokens=2048
  rec_cpu [isa=avx512] the only kernel for gated_delta_rule on cpu
gated_delta_rule arch=cpu-avx512 precision=fp32
  none [] precision="fp32" is not available on cpu: available are "auto" and "exact"
    rec_cpu: precision="fp32" is not available on cpu: available are "auto" and "exact"
gated_delta_rule_ arch=cpu-baseline precision=fast
  none [] precision="fast" is not available on cpu: available are "auto" and "exact"
    rec_cpu: precision="fast" is not available on cpu: available are "auto" and "exact"
gated_delta_rule arch=cpu-avx512 k=96
  none [] K must be 64, 128 or 256; got 96
    rec_cpu: K must be 64, 128 or 256; got 96
gated_delta_rule arch=cpu-avx512 v=512
  none [] V must be 64, 128 or 256; got 512
    rec_cpu: V must be 64, 128 or 256; got 512
gated_delta_rule_verify arch=cpu-avx512 tokens=129
  none [] T must be at most 128; got 129
    verify_cpu: T must be at most 128; got 129
causal_conv1d_verify arch=cpu-avx512 tokens=129
  none [] T must be at most 128; got 129
    conv_cpu: T must be at most 128; got 129
gdn_decode_layer_ arch=cpu-avx512 tokens=9
  none [] T must be at most 8; got 9
    decode_layer_cpu: T must be at most 8; got 9
qk_l2norm arch=cpu-avx2 k=80 v=80
  none [] K must be 64, 128 or 256; got 80
    l2norm_cpu: K must be 64, 128 or 256; got 80
gdn_gates arch=cpu-avx2 k=80 v=80
  gates_cpu [isa=avx2] the only kernel for gdn_gates on cpu
gated_delta_rule arch=sm_86 sms=28 tokens=2048 env={'GDN_CHUNKED': 2}
  chunk_fp32 [heads=3 columns=16 pipelined=0] the first kernel that fits gated_delta_rule on sm_86, measured in benchmarks/chunk_h200.json
    step: takes at most 16 tokens a sequence; this is T=2048
gated_delta_rule arch=sm_75 tokens=2048 k=96
  none [] K must be 64, 128 or 256; got 96
    step: K must be 64, 128 or 256; got 96
    chunk_fp32: needs sm_80 or newer; this is sm_75
    rec_keyhead: needs sm_80 or newer; this is sm_75
    rec_columns: K must be 64, 128 or 256; got 96
gated_delta_rule arch=sm_70 tokens=2048
  none [] no kernel of this build serves gated_delta_rule on sm_70: step: needs sm_75 or newer; this is sm_70; chunk_fp32: needs sm_80 or newer; this is sm_70; rec_keyhead: needs sm_80 or newer; this is sm_70; rec_columns: needs sm_75 or newer; this is sm_70
    step: needs sm_75 or newer; this is sm_70
    chunk_fp32: needs sm_80 or newer; this is sm_70
    rec_keyhead: needs sm_80 or newer; this is sm_70
    rec_columns: needs sm_75 or newer; this is sm_70
gated_delta_rule_verify arch=sm_90 tokens=8 tree=True
  verify_tree [heads=1 columns=64] the only kernel for gated_delta_rule_verify of a tree on sm_90
    verify: takes a chain of tokens; this is a tree
gdn_verify_layer arch=sm_90 tokens=8
  conv_gates, verify_norm [heads=1 columns=128] the first kernels that fit gdn_verify_layer on sm_90, measured in benchmarks/decode_h200.json
    verify_layer: N*HV=48 heads have no SM each: how many there are is not known
gdn_verify_layer arch=sm_90 tokens=9 tree=True
  none [] T must be at most 8; got 9
    verify_layer: T must be at most 8; got 9
    conv_gates, verify_norm: T must be at most 8; got 9
    conv_gates, verify, gated_rms_norm: T must be at most 8; got 9
    conv_gates, verify_tree, gated_rms_norm: T must be at most 8; got 9
gdn_gates arch=sm_90
  gdn_gates [] the only kernel for gdn_gates on sm_90
gdn_gates arch=sm_70
  none [] no kernel of this build serves gdn_gates on sm_70: needs sm_75 or newer; this is sm_70
    gdn_gates: needs sm_75 or newer; this is sm_70
gdn_gates arch=sm_90 env={'GDN_EMULATE': 'sm_86'}
  gdn_gates [] the only kernel for gdn_gates on sm_86; GDN_EMULATE=sm_86 in place of sm_90
gdn_gates arch=sm_90 env={'GDN_EMULATE': 'gfx1151'}
  none [] GDN_EMULATE=gfx1151, but the real device is sm_90, which cannot run it
    gdn_gates: GDN_EMULATE=gfx1151, but the real device is sm_90, which cannot run it
gdn_gates arch=sm_70 env={'GDN_EMULATE': 'sm_90'}
  none [] GDN_EMULATE=sm_90, but the real device is sm_70, which cannot run it
    gdn_gates: GDN_EMULATE=sm_90, but the real device is sm_70, which cannot run it
gdn_gates arch=gfx1151 env={'GDN_EMULATE': 'sm_90'}
  none [] GDN_EMULATE=sm_90, but the real device is gfx1151, which cannot run it
    gdn_gates: GDN_EMULATE=sm_90, but the real device is gfx1151, which cannot run it
gdn_gates arch=cpu-avx512 env={'GDN_CPU_ISA': 'avx2'}
  gates_cpu [isa=avx2] the only kernel for gdn_gates on cpu; GDN_CPU_ISA=avx2
gdn_gates arch=cpu-avx2 env={'GDN_CPU_ISA': 'avx512'}
  none [] GDN_CPU_ISA=avx512, but this CPU has only avx2 and baseline
    gates_cpu: GDN_CPU_ISA=avx512, but this CPU has only avx2 and baseline
gdn_gates arch=cpu-avx512 env={'GDN_EMULATE': 'cpu-avx2'}
  gates_cpu [isa=avx2] the only kernel for gdn_gates on cpu; GDN_EMULATE=cpu-avx2 in place of cpu-avx512
gdn_gates arch=cpu-avx2 env={'GDN_EMULATE': 'cpu-avx512'}
  gates_cpu [isa=avx2] the only kernel for gdn_gates on cpu
gdn_gates arch=cpu-avx512 env={'GDN_EMULATE': 'sm_86'}
  gates_cpu [isa=avx512] the only kernel for gdn_gates on cpu""",
    )


def test_a_torch_dtype_will_do() -> None:
    assert registry.decide("gdn_gates", arch="cpu", dtype=torch.float16) == registry.decide("gdn_gates", arch="cpu")


def test_a_decision_is_frozen() -> None:
    decision = registry.decide("gdn_gates", arch="cpu")
    assert "cannot assign" in _message(setattr, decision, "kernel", "other", error=AttributeError)


def test_this_machines_cpu_under_every_instruction_set() -> None:
    best = registry.cpu_arch()
    order = ["baseline", "avx2", "avx512"]
    has = order[: order.index(best.removeprefix("cpu-")) + 1]
    for isa in order:
        with registry.overrides(GDN_CPU_ISA=isa):
            if isa in has:
                assert registry.cpu_arch() == f"cpu-{isa}"
                assert registry.decide("gdn_gates", arch="cpu").config == {"isa": isa}
            else:
                assert _message(registry.cpu_arch).startswith(f"GDN_CPU_ISA={isa}, but this CPU has only")
    assert registry.cpu_arch() == best


# What ran


def _gates() -> None:
    x = torch.zeros(1, 1, 2)
    torch.ops.strata_gdn.gdn_gates(x, x, x[0, 0], x[0, 0])


def test_served_counts_launches() -> None:
    registry.reset_served()
    assert registry.served() == {}
    for _ in range(3):
        _gates()
    assert registry.served() == {"gates_cpu": 3}
    registry.decide("gdn_gates", arch="cpu")
    assert registry.served() == {"gates_cpu": 3}
    registry.reset_served()
    assert registry.served() == {}


def test_a_refused_call_is_not_counted() -> None:
    registry.reset_served()
    x = torch.zeros(1, 1, 2)
    with pytest.raises(ValueError, match="A_log"):
        torch.ops.strata_gdn.gdn_gates(x, x, torch.zeros(3), x[0, 0])
    assert registry.served() == {}


def test_log_prints_each_new_decision_once() -> None:
    code = """
import torch, strata_gdn
x = torch.zeros(1, 1, 2)
for isa in ("baseline", "baseline", None):
    with strata_gdn.registry.overrides(GDN_CPU_ISA=isa):
        torch.ops.strata_gdn.gdn_gates(x, x, x[0, 0], x[0, 0])
        torch.ops.strata_gdn.gdn_gates(x, x, x[0, 0], x[0, 0])
"""
    result = _python(code, GDN_LOG="1")
    assert result.returncode == 0
    best = registry.cpu_arch()
    assert result.stderr.splitlines() == [
        "strata_gdn: gdn_gates on cpu-baseline: gates_cpu, the only kernel for gdn_gates on cpu; GDN_CPU_ISA=baseline",
        f"strata_gdn: gdn_gates on {best}: gates_cpu, the only kernel for gdn_gates on cpu",
    ]
    assert _python(code).stderr == ""


# The command line


def _command(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    status = command_line.main(argv)
    output = capsys.readouterr()
    return f"{output.out}{output.err}status {status}"


def _explained(capsys: pytest.CaptureFixture[str], argv: str) -> str:
    """Without the line that only a build without the device's kernels has."""
    return re.sub(r"^build .*\n", "", _command(capsys, *argv.split()), flags=re.M)


def test_explain_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    argv = "explain --op gated_delta_rule_ --arch cpu-avx512 --tokens 5 --env GDN_CPU_ISA=avx2 --env GDN_CHUNKED=1"
    assert_expected_inline(
        _command(capsys, *argv.split()),
        """\
op        gated_delta_rule_, N=1 T=5 H=16 HV=48 K=128 V=128, bfloat16, precision auto
device    cpu-avx512
kernel    rec_cpu
config    isa=avx2
reason    the only kernel for gated_delta_rule on cpu; GDN_CPU_ISA=avx2
rejected  none
switch    GDN_CHUNKED=1 (environment): no effect on this decision
switch    GDN_CPU_ISA=avx2 (environment)
switch    GDN_EMULATE=unset (built-in)
status 0""",
    )


def test_explain_without_a_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    argv = "explain --op gated_delta_rule_verify --arch gfx90a --sms 104 --tokens 8 --env GDN_CHUNKED=2"
    assert_expected_inline(
        _command(capsys, *argv.split()),
        """\
op        gated_delta_rule_verify, N=1 T=8 H=16 HV=48 K=128 V=128, bfloat16, precision auto
device    gfx90a, 104 SMs
kernel    none
config    none
reason    no kernel of this build serves gated_delta_rule_verify on gfx90a: needs gfx1030 or newer; this is gfx90a
rejected  verify: needs gfx1030 or newer; this is gfx90a
rejected  verify_tree: needs gfx1030 or newer; this is gfx90a
switch    GDN_CHUNKED=2 (environment): no effect on this decision
switch    GDN_SPLIT=0 (built-in)
switch    GDN_STEP_HEADS=unset (built-in)
switch    GDN_EMULATE=unset (built-in)
status 0""",
    )


def test_explain_a_decode_step(capsys: pytest.CaptureFixture[str]) -> None:
    argv = "explain --op gated_delta_rule_ --arch sm_86 --sms 28 --n 8 --env GDN_SPLIT=1"
    assert_expected_inline(
        _explained(capsys, argv),
        """\
op        gated_delta_rule_, N=8 T=1 H=16 HV=48 K=128 V=128, bfloat16, precision auto
device    sm_86, 28 SMs
kernel    step
config    heads=1, columns=32
reason    the first kernel that fits gated_delta_rule on sm_86, measured in benchmarks/decode_h200.json
rejected  none
switch    GDN_CHUNKED=unset (built-in)
switch    GDN_KEYHEAD=unset (built-in)
switch    GDN_PIPELINE=1 (built-in)
switch    GDN_STEP=1 (built-in)
switch    GDN_SPLIT=1 (environment)
switch    GDN_STEP_HEADS=unset (built-in)
switch    GDN_EMULATE=unset (built-in)
status 0""",
    )


def test_explain_a_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    argv = "explain --op gated_delta_rule_ --arch sm_86 --sms 28 --tokens 17 --env GDN_PIPELINE=0"
    assert_expected_inline(
        _explained(capsys, argv),
        """\
op        gated_delta_rule_, N=1 T=17 H=16 HV=48 K=128 V=128, bfloat16, precision auto
device    sm_86, 28 SMs
kernel    rec_keyhead
config    heads=3, columns=16, pipelined=0
reason    the first kernel that fits gated_delta_rule on sm_86, measured in benchmarks/prompt_h200.json
rejected  step: takes at most 16 tokens a sequence; this is T=17
rejected  chunk_fp32: GDN_CHUNKED is not set
switch    GDN_CHUNKED=unset (built-in)
switch    GDN_KEYHEAD=unset (built-in)
switch    GDN_PIPELINE=0 (environment)
switch    GDN_STEP=1 (built-in)
switch    GDN_SPLIT=0 (built-in)
switch    GDN_STEP_HEADS=unset (built-in)
switch    GDN_EMULATE=unset (built-in)
status 0""",
    )


def test_explain_a_tree(capsys: pytest.CaptureFixture[str]) -> None:
    argv = "explain --op gdn_verify_layer --arch sm_90 --tokens 8 --tree --env GDN_STEP=0"
    assert_expected_inline(
        _explained(capsys, argv),
        """\
op        gdn_verify_layer, N=1 T=8 H=16 HV=48 K=128 V=128, bfloat16, precision auto, a tree
device    sm_90
kernel    conv_gates, verify_tree, gated_rms_norm
config    heads=1, columns=64
reason    the only kernels for gdn_verify_layer of a tree on sm_90
rejected  verify_layer: takes a chain of tokens; this is a tree
rejected  conv_gates, verify_norm: takes a chain of tokens; this is a tree
rejected  conv_gates, verify, gated_rms_norm: takes a chain of tokens; this is a tree
switch    GDN_STEP=0 (environment): no effect on this decision
switch    GDN_SPLIT=0 (built-in)
switch    GDN_STEP_HEADS=unset (built-in)
switch    GDN_FUSED_LAYER=unset (built-in)
switch    GDN_EMULATE=unset (built-in)
status 0""",
    )


def test_explain_a_commit_of_all_layers(capsys: pytest.CaptureFixture[str]) -> None:
    argv = "explain --op gated_delta_rule_commit_layers_ --arch sm_90 --tokens 8 --env GDN_COMMIT_SPLIT=0"
    assert_expected_inline(
        _explained(capsys, argv),
        """\
op        gated_delta_rule_commit_layers_, N=1 T=8 H=16 HV=48 K=128 V=128, bfloat16, precision auto
device    sm_90
kernel    commit
config    columns=64, batched=0
reason    the first kernel that fits gated_delta_rule_commit_layers on sm_90, measured in benchmarks/decode_h200.json
rejected  none
switch    GDN_COMMIT_SPLIT=0 (environment)
switch    GDN_EMULATE=unset (built-in)
status 0""",
    )


def test_explain_more_tokens_than_the_op_takes(capsys: pytest.CaptureFixture[str]) -> None:
    argv = "explain --op causal_conv1d_verify --arch sm_90 --tokens 200 --env GDN_SPLIT=1"
    assert_expected_inline(
        _explained(capsys, argv),
        """\
op        causal_conv1d_verify, N=1 T=200 H=16 HV=48 K=128 V=128, bfloat16, precision auto
device    sm_90
kernel    none
config    none
reason    T must be at most 128; got 200
rejected  causal_conv1d: T must be at most 128; got 200
switch    GDN_SPLIT=1 (environment): no effect on this decision
switch    GDN_EMULATE=unset (built-in)
status 0""",
    )


def test_explain_a_rejected_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    argv = "explain --op gated_delta_rule --arch cpu-avx2 --precision fp32 --dtype float32"
    shape = "--h 2 --hv 4 --k 64 --v 64 --n 3"
    assert_expected_inline(
        _command(capsys, *argv.split(), *shape.split()),
        """\
op        gated_delta_rule, N=3 T=1 H=2 HV=4 K=64 V=64, float32, precision fp32
device    cpu-avx2
kernel    none
config    none
reason    precision="fp32" is not available on cpu: available are "auto" and "exact"
rejected  rec_cpu: precision="fp32" is not available on cpu: available are "auto" and "exact"
switch    GDN_CPU_ISA=unset (built-in)
switch    GDN_EMULATE=unset (built-in)
status 0""",
    )


def test_explain_says_when_this_build_lacks_the_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    text = _command(capsys, "explain", "--op", "gdn_gates", "--arch", "sm_90")
    assert "kernel    gdn_gates" in text
    lacks = "build     has no kernels for sm_90; this is the decision of one that has"
    assert (lacks in text) == (not registry.build().cuda)


def test_explain_reports_a_wrong_argument(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ("--op gdn_gate", "--op gdn_gates --arch h100", "--op gdn_gates --env GDN_LOG=2"):
        text = _command(capsys, "explain", *argv.split())
        assert text.startswith("strata_gdn: ")
        assert text.endswith("\nstatus 2")
    with pytest.raises(SystemExit):
        command_line.main(["explain", "--op", "gdn_gates", "--env", "GDN_LOG"])
    assert "expected NAME=VALUE; got 'GDN_LOG'" in capsys.readouterr().err


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    with registry.overrides(GDN_CHUNKED=2):
        text = _command(capsys, "info")
    assert re.search(rf"^version  {re.escape(strata_gdn.__version__)}$", text, re.M)
    assert re.search(rf"^torch    {re.escape(torch.__version__)}$", text, re.M)
    assert re.search(rf"^device   CPU, {registry.cpu_arch()}, \d+ threads$", text, re.M)
    assert ("CPU only" in text) == (not registry.build().cuda and not registry.build().hip)
    assert re.search(r"^  GDN_CHUNKED +2 +override +0, 1 or 2 ", text, re.M)
    for switch in registry.switches():
        assert switch.meaning in text
    for kernel in registry.kernels():
        assert re.search(rf"^  {kernel.kernel} +{kernel.op} +{kernel.architectures} ", text, re.M)


def test_info_reports_a_wrong_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    result = _python("import sys; from strata_gdn.__main__ import main; sys.exit(main(['info']))", GDN_LOG="2")
    assert result.returncode == 2
    assert result.stderr == "strata_gdn: GDN_LOG must be 0 or 1; got '2'\n"


def test_no_command_shows_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.main(["--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in command_line.COMMANDS)


# The documentation


def test_the_documented_kernels_are_the_table() -> None:
    documented = (Path(__file__).parent.parent / "docs" / "registry.md").read_text()
    kernels: dict[str, tuple[list[str], list[str], list[str]]] = {}
    for row in registry.kernels():
        vendors = kernels.setdefault(row.op, ([], [], []))
        vendors[0 if row.architectures == "cpu" else 1 if row.architectures[:3] == "sm_" else 2].append(row.kernel)
    rows = []
    for op, (cpu, cuda, rdna) in kernels.items():
        rows.append(
            f"| {op} | {'; '.join(cpu)} | {'; '.join(cuda)} | {'the same' if rdna == cuda else '; '.join(rdna)} |"
        )
    assert re.findall(r"^\| \w+ \| \w+_cpu \| [^|]+ \| [^|]+ \|", documented, re.M) == rows


def test_the_documented_switches_and_defaults_are_the_tables() -> None:
    documented = (Path(__file__).parent.parent / "docs" / "registry.md").read_text()
    for s in registry.switches():
        built_in = "unset" if s.value is None else s.value
        kind = "" if s.kind == "runtime" else f" ({s.kind})"
        assert f"| {s.name} | {s.allowed} | {built_in} | {s.meaning}{kind} |" in documented
    assert len(re.findall(r"^\| GDN_", documented, re.M)) == len(registry.switches())
    for arch in ARCHS:
        own = ", ".join(f"{s.name}={s.value}" for s in registry.effective(arch) if s.source == "arch default")
        assert (f"| {arch} | {own} |" in documented) == bool(own)
