"""What the registry decides on RDNA, from its rows and the architectures' defaults: tables, on any machine."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest
from expecttest import assert_expected_inline

from strata_gdn import registry

ARCHS = ["gfx1030", "gfx1100", "gfx1151", "gfx1200", "gfx1201"]
OPS = [
    "gated_delta_rule", "gated_delta_rule_verify", "gated_delta_rule_commit_", "gated_delta_rule_commit_layers_",
    "gated_delta_rule_commit_verify_", "causal_conv1d", "causal_conv1d_verify", "causal_conv1d_commit_layers_",
    "qk_l2norm", "gdn_gates", "gated_rms_norm", "gdn_decode_layer_", "gdn_verify_layer",
]  # fmt: skip
PROMPT = {"tokens": 2048, "sms": 40}


def words(decision: registry.Decision) -> str:
    return f"{decision.kernel} [{' '.join(f'{k}={v}' for k, v in decision.config.items())}]"


def table(rows: dict[str, dict[str, object]], op: str | None = None, archs: list[str] = ARCHS) -> str:
    """What each row's call gets on each architecture; those that do not differ share a line."""
    lines = []
    for name, call in rows.items():
        served: dict[str, list[str]] = {}
        for arch in archs:
            served.setdefault(
                words(registry.decide(op or name.split()[0], arch=arch, **{"env": {}} | call)), []
            ).append(arch)
        lines += [name, *(f"  {' '.join(same)}: {decision}" for decision, same in served.items())]
    return "\n".join(lines)


def with_env(*settings: str, **call: object) -> dict[str, dict[str, object]]:
    """A row for each setting such as "GDN_SPLIT=0 GDN_LANES=1"."""
    return {s or "no switch": {"env": dict(part.split("=") for part in s.split()), **call} for s in settings}


def test_every_op() -> None:
    calls: dict[str, dict[str, object]] = {op: {} for op in OPS}
    calls |= {f"{op} of a tree": {"tree": True} for op in OPS if "verify" in op and "conv" not in op}
    calls |= {"gated_delta_rule of 2048 tokens": PROMPT}
    assert_expected_inline(
        table(calls),
        """\
gated_delta_rule
  gfx1030 gfx1100 gfx1200 gfx1201: step [heads=1 columns=64]
  gfx1151: step [heads=1 columns=32]
gated_delta_rule_verify
  gfx1030 gfx1100 gfx1200 gfx1201: verify [heads=1 columns=64]
  gfx1151: verify [heads=1 columns=32]
gated_delta_rule_commit_
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: commit [columns=64]
gated_delta_rule_commit_layers_
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: commit [columns=64]
gated_delta_rule_commit_verify_
  gfx1030 gfx1100 gfx1200 gfx1201: commit_verify [heads=1 columns=64]
  gfx1151: commit_verify [heads=1 columns=32]
causal_conv1d
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: causal_conv1d []
causal_conv1d_verify
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: causal_conv1d []
causal_conv1d_commit_layers_
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: conv_commit []
qk_l2norm
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: qk_l2norm []
gdn_gates
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: gdn_gates []
gated_rms_norm
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: gated_rms_norm []
gdn_decode_layer_
  gfx1030 gfx1100: conv_gates, step_norm [heads=1 columns=128]
  gfx1151: conv_l2, step, gated_rms_norm [heads=1 columns=32]
  gfx1200 gfx1201: conv_l2, step_norm [heads=1 columns=128]
gdn_verify_layer
  gfx1030 gfx1100: conv_gates, verify_norm [heads=1 columns=128]
  gfx1151: conv_l2, verify, gated_rms_norm [heads=1 columns=32]
  gfx1200 gfx1201: conv_l2, verify_norm [heads=1 columns=128]
gated_delta_rule_verify of a tree
  gfx1030 gfx1100 gfx1200 gfx1201: verify_tree [heads=1 columns=64]
  gfx1151: verify_tree [heads=1 columns=32]
gated_delta_rule_commit_verify_ of a tree
  gfx1030 gfx1100 gfx1200 gfx1201: commit, verify_tree [heads=1 columns=64]
  gfx1151: commit, verify_tree [heads=1 columns=32]
gdn_verify_layer of a tree
  gfx1030 gfx1100: conv_gates, verify_tree, gated_rms_norm [heads=1 columns=64]
  gfx1151: conv_l2, verify_tree, gated_rms_norm [heads=1 columns=32]
  gfx1200 gfx1201: conv_l2, verify_tree, gated_rms_norm [heads=1 columns=64]
gated_delta_rule of 2048 tokens
  gfx1030 gfx1100: rec_columns [heads=1 columns=16]
  gfx1151: rec_lanes [heads=1 columns=32]
  gfx1200 gfx1201: rec_lanes [heads=1 columns=16]""",
    )


def test_prompts() -> None:
    """A user's setting wins over the architecture's; GDN_ARCH_DEFAULTS=0 leaves prompts to rec_columns."""
    settings = ("", "GDN_ARCH_DEFAULTS=0", "GDN_LANES=0", "GDN_LANES=1", "GDN_LANES=2", "GDN_KEYHEAD=1",
                "GDN_PIPELINE=0", "GDN_ARCH_DEFAULTS=0 GDN_LANES=2")  # fmt: skip
    assert_expected_inline(
        table(with_env(*settings, **PROMPT), "gated_delta_rule"),
        """\
no switch
  gfx1030 gfx1100: rec_columns [heads=1 columns=16]
  gfx1151: rec_lanes [heads=1 columns=32]
  gfx1200 gfx1201: rec_lanes [heads=1 columns=16]
GDN_ARCH_DEFAULTS=0
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: rec_columns [heads=1 columns=16]
GDN_LANES=0
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: rec_columns [heads=1 columns=16]
GDN_LANES=1
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: rec_lanes [heads=1 columns=16]
GDN_LANES=2
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: rec_lanes [heads=1 columns=32]
GDN_KEYHEAD=1
  gfx1030 gfx1100: rec_columns [heads=1 columns=16]
  gfx1151: rec_lanes [heads=1 columns=32]
  gfx1200 gfx1201: rec_lanes [heads=1 columns=16]
GDN_PIPELINE=0
  gfx1030 gfx1100: rec_columns [heads=1 columns=16 pipelined=0]
  gfx1151: rec_lanes [heads=1 columns=32 pipelined=0]
  gfx1200 gfx1201: rec_lanes [heads=1 columns=16 pipelined=0]
GDN_ARCH_DEFAULTS=0 GDN_LANES=2
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: rec_lanes [heads=1 columns=32]""",
    )


def test_heads_and_dimensions_of_prompts() -> None:
    shapes = [(16, 32, 128), (16, 64, 128), (16, 48, 64), (8, 32, 64), (16, 32, 256)]
    rows = {
        f"H={h} HV={hv} K={k} GDN_KEYHEAD={keyhead}": {
            "h": h,
            "hv": hv,
            "k": k,
            "env": {"GDN_KEYHEAD": keyhead},
            **PROMPT,
        }
        for h, hv, k in shapes
        for keyhead in (0, 1)
    }
    assert_expected_inline(
        table(rows, "gated_delta_rule", ["gfx1100", "gfx1151"]),
        """\
H=16 HV=32 K=128 GDN_KEYHEAD=0
  gfx1100: rec_columns [heads=1 columns=16]
  gfx1151: rec_lanes [heads=1 columns=32]
H=16 HV=32 K=128 GDN_KEYHEAD=1
  gfx1100: rec_columns [heads=1 columns=16]
  gfx1151: rec_lanes [heads=1 columns=32]
H=16 HV=64 K=128 GDN_KEYHEAD=0
  gfx1100: rec_columns [heads=1 columns=16]
  gfx1151: rec_lanes [heads=1 columns=32]
H=16 HV=64 K=128 GDN_KEYHEAD=1
  gfx1100 gfx1151: rec_keyhead [heads=4 columns=16]
H=16 HV=48 K=64 GDN_KEYHEAD=0
  gfx1100: rec_columns [heads=1 columns=16]
  gfx1151: rec_lanes [heads=1 columns=32]
H=16 HV=48 K=64 GDN_KEYHEAD=1
  gfx1100: rec_columns [heads=1 columns=16]
  gfx1151: rec_lanes [heads=1 columns=32]
H=8 HV=32 K=64 GDN_KEYHEAD=0
  gfx1100: rec_columns [heads=1 columns=16]
  gfx1151: rec_lanes [heads=1 columns=32]
H=8 HV=32 K=64 GDN_KEYHEAD=1
  gfx1100 gfx1151: rec_keyhead [heads=4 columns=16]
H=16 HV=32 K=256 GDN_KEYHEAD=0
  gfx1100: rec_columns [heads=1 columns=16]
  gfx1151: rec_lanes [heads=1 columns=32]
H=16 HV=32 K=256 GDN_KEYHEAD=1
  gfx1100 gfx1151: rec_keyhead [heads=2 columns=16]""",
    )


def test_steps() -> None:
    settings = ("", "GDN_ARCH_DEFAULTS=0", "GDN_SPLIT=0", "GDN_SPLIT=1", "GDN_STEP_HEADS=4", "GDN_STEP=0")
    assert_expected_inline(
        table(with_env(*settings, sms=40), "gated_delta_rule"),
        """\
no switch
  gfx1030 gfx1100 gfx1200 gfx1201: step [heads=1 columns=64]
  gfx1151: step [heads=1 columns=32]
GDN_ARCH_DEFAULTS=0
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: step [heads=1 columns=64]
GDN_SPLIT=0
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: step [heads=1 columns=64]
GDN_SPLIT=1
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: step [heads=1 columns=32]
GDN_STEP_HEADS=4
  gfx1030 gfx1100 gfx1200 gfx1201: step [heads=3 columns=64]
  gfx1151: step [heads=3 columns=32]
GDN_STEP=0
  gfx1030 gfx1100: rec_columns [heads=1 columns=16]
  gfx1151: rec_lanes [heads=1 columns=32]
  gfx1200 gfx1201: rec_lanes [heads=1 columns=16]""",
    )


def test_layers() -> None:
    settings = ("", "GDN_ARCH_DEFAULTS=0", "GDN_SPLIT=0", "GDN_SPLIT=1", "GDN_CONVL2=0", "GDN_CONVL2=1",
                "GDN_FUSED_LAYER=1", "GDN_FUSED_LAYER=1 GDN_SPLIT=0")  # fmt: skip
    rows = {f"decode, {name}": call for name, call in with_env(*settings, sms=64).items()}
    assert_expected_inline(
        table(rows, "gdn_decode_layer"),
        """\
decode, no switch
  gfx1030 gfx1100: conv_gates, step_norm [heads=1 columns=128]
  gfx1151: conv_l2, step, gated_rms_norm [heads=1 columns=32]
  gfx1200 gfx1201: conv_l2, step_norm [heads=1 columns=128]
decode, GDN_ARCH_DEFAULTS=0
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: conv_gates, step_norm [heads=1 columns=128]
decode, GDN_SPLIT=0
  gfx1030 gfx1100: conv_gates, step_norm [heads=1 columns=128]
  gfx1151 gfx1200 gfx1201: conv_l2, step_norm [heads=1 columns=128]
decode, GDN_SPLIT=1
  gfx1030 gfx1100: conv_gates, step, gated_rms_norm [heads=1 columns=32]
  gfx1151 gfx1200 gfx1201: conv_l2, step, gated_rms_norm [heads=1 columns=32]
decode, GDN_CONVL2=0
  gfx1030 gfx1100 gfx1200 gfx1201: conv_gates, step_norm [heads=1 columns=128]
  gfx1151: conv_gates, step, gated_rms_norm [heads=1 columns=32]
decode, GDN_CONVL2=1
  gfx1030 gfx1100 gfx1200 gfx1201: conv_l2, step_norm [heads=1 columns=128]
  gfx1151: conv_l2, step, gated_rms_norm [heads=1 columns=32]
decode, GDN_FUSED_LAYER=1
  gfx1030 gfx1100: conv_gates, step_norm [heads=1 columns=128]
  gfx1151: conv_l2, step, gated_rms_norm [heads=1 columns=32]
  gfx1200 gfx1201: conv_l2, step_norm [heads=1 columns=128]
decode, GDN_FUSED_LAYER=1 GDN_SPLIT=0
  gfx1030 gfx1100: conv_gates, step_norm [heads=1 columns=128]
  gfx1151 gfx1200 gfx1201: conv_l2, step_norm [heads=1 columns=128]""",
    )
    rows = {f"verify, {name}": call for name, call in with_env(*settings, sms=64, tokens=4).items()}
    assert_expected_inline(
        table(rows, "gdn_verify_layer"),
        """\
verify, no switch
  gfx1030 gfx1100: conv_gates, verify_norm [heads=1 columns=128]
  gfx1151: conv_l2, verify, gated_rms_norm [heads=1 columns=32]
  gfx1200 gfx1201: conv_l2, verify_norm [heads=1 columns=128]
verify, GDN_ARCH_DEFAULTS=0
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: conv_gates, verify_norm [heads=1 columns=128]
verify, GDN_SPLIT=0
  gfx1030 gfx1100: conv_gates, verify_norm [heads=1 columns=128]
  gfx1151 gfx1200 gfx1201: conv_l2, verify_norm [heads=1 columns=128]
verify, GDN_SPLIT=1
  gfx1030 gfx1100: conv_gates, verify, gated_rms_norm [heads=1 columns=32]
  gfx1151 gfx1200 gfx1201: conv_l2, verify, gated_rms_norm [heads=1 columns=32]
verify, GDN_CONVL2=0
  gfx1030 gfx1100 gfx1200 gfx1201: conv_gates, verify_norm [heads=1 columns=128]
  gfx1151: conv_gates, verify, gated_rms_norm [heads=1 columns=32]
verify, GDN_CONVL2=1
  gfx1030 gfx1100 gfx1200 gfx1201: conv_l2, verify_norm [heads=1 columns=128]
  gfx1151: conv_l2, verify, gated_rms_norm [heads=1 columns=32]
verify, GDN_FUSED_LAYER=1
  gfx1030 gfx1100 gfx1200 gfx1201: verify_layer [heads=1 columns=128]
  gfx1151: conv_l2, verify, gated_rms_norm [heads=1 columns=32]
verify, GDN_FUSED_LAYER=1 GDN_SPLIT=0
  gfx1030 gfx1100 gfx1151 gfx1200 gfx1201: verify_layer [heads=1 columns=128]""",
    )


@pytest.mark.parametrize("op", ["gated_delta_rule_commit_layers_", "causal_conv1d_commit_layers_"])
@pytest.mark.parametrize("arch", ARCHS)
def test_a_split_step_keeps_the_commit_of_all_layers(arch: str, op: str) -> None:
    """It was lost silently once, where GDN_SPLIT was on."""
    for split in (None, 0, 1):
        env = {} if split is None else {"GDN_SPLIT": split}
        assert registry.decide(op, arch=arch, env=env).config.get("batched", "1") == "1"
        assert registry.decide(op, arch=arch, env=env | {"GDN_COMMIT_SPLIT": 0}).config["batched"] == "0"


def test_older_cards_have_no_kernel() -> None:
    decision = registry.decide("gdn_gates", arch="gfx90a", env={})
    assert not decision
    assert decision.reason == (
        "no kernel of this build serves gdn_gates on gfx90a: needs gfx1030 or newer; this is gfx90a"
    )


def test_explain() -> None:
    argv = shlex.split("-m strata_gdn explain --op gated_delta_rule --arch gfx1151 --sms 40 --tokens 2048")
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GDN_")}
    done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=True, env=plain)
    assert_expected_inline(
        "\n".join(line for line in done.stdout.splitlines() if not line.startswith("build")),
        """\
op        gated_delta_rule, N=1 T=2048 H=16 HV=48 K=128 V=128, bfloat16, precision auto
device    gfx1151, 40 SMs
kernel    rec_lanes
config    heads=1, columns=32
reason    the first kernel that fits gated_delta_rule on gfx1151, carried over from tuned engines, not measured here
rejected  step: takes at most 16 tokens a sequence; this is T=2048
rejected  rec_keyhead: not measured on RDNA; GDN_KEYHEAD=1 asks for it
switch    GDN_KEYHEAD=unset (built-in)
switch    GDN_PIPELINE=1 (built-in)
switch    GDN_LANES=2 (arch default)
switch    GDN_STEP=1 (built-in)
switch    GDN_SPLIT=1 (arch default)
switch    GDN_STEP_HEADS=unset (built-in)
switch    GDN_EMULATE=unset (built-in)""",
    )
