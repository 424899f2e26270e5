"""What the registry decides for CUDA cards: the same on a build without kernels for them, and without a card."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import pytest
from expecttest import assert_expected_inline

from strata_gdn import registry

ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
VERIFIES = ("gated_delta_rule_verify", "gated_delta_rule_commit_verify_", "gdn_verify_layer")
COMMITS = ("gated_delta_rule_commit_", "gated_delta_rule_commit_layers_", "causal_conv1d_commit_layers_")
PROMPT = 2048  # tokens: more than the decode kernel takes
Env = Mapping[str, int | str]


def decide(op: str, arch: str = "sm_90", env: Env | None = None, **call: int | bool) -> registry.Decision:
    """On an empty environment but for `env`."""
    return registry.decide(op, arch=arch, env=env or {}, **call)


def served(op: str, arch: str = "sm_90", env: Env | None = None, **call: int | bool) -> str:
    """The kernel and its configuration in a line."""
    decision = decide(op, arch, env, **call)
    return " ".join([decision.kernel or "none", *(f"{name}={value}" for name, value in decision.config.items())])


def words(env: Env) -> str:
    return " ".join(f"{name}={value}" for name, value in env.items()) or "-"


def table(rows: Iterable[tuple[object, ...]]) -> str:
    """Lines, the last entry of a row after a colon."""
    return "\n".join(f"{' '.join(map(str, row[:-1]))}: {row[-1]}" for row in rows)


# Prompts


def test_recurrences_by_multiprocessors() -> None:
    """rec_keyhead where several heads a thread cost less than the rounds of blocks that one head a thread needs."""
    lines = []
    for sms in (28, 32, 38, 48, 64, 80, 128, 132, 170):
        for H, HV, N in ((16, 48, 1), (16, 32, 1), (2, 8, 1), (2, 8, 4)):
            found = decide("gated_delta_rule", sms=sms, tokens=PROMPT, n=N, h=H, hv=HV)
            lines.append(f"{sms:3} SMs HV={HV} N={N}: {found.kernel} {found.config['heads']}x{found.config['columns']}")
    assert_expected_inline(
        "\n".join(lines),
        """\
 28 SMs HV=48 N=1: rec_keyhead 3x16
 28 SMs HV=32 N=1: rec_keyhead 2x16
 28 SMs HV=8 N=1: rec_keyhead 4x16
 28 SMs HV=8 N=4: rec_keyhead 4x16
 32 SMs HV=48 N=1: rec_keyhead 3x16
 32 SMs HV=32 N=1: rec_keyhead 2x16
 32 SMs HV=8 N=1: rec_keyhead 2x16
 32 SMs HV=8 N=4: rec_keyhead 4x16
 38 SMs HV=48 N=1: rec_keyhead 3x16
 38 SMs HV=32 N=1: rec_keyhead 2x16
 38 SMs HV=8 N=1: rec_keyhead 2x16
 38 SMs HV=8 N=4: rec_keyhead 4x16
 48 SMs HV=48 N=1: rec_keyhead 3x16
 48 SMs HV=32 N=1: rec_keyhead 2x16
 48 SMs HV=8 N=1: rec_keyhead 2x16
 48 SMs HV=8 N=4: rec_keyhead 2x16
 64 SMs HV=48 N=1: rec_keyhead 3x16
 64 SMs HV=32 N=1: rec_keyhead 2x16
 64 SMs HV=8 N=1: rec_columns 1x16
 64 SMs HV=8 N=4: rec_keyhead 4x16
 80 SMs HV=48 N=1: rec_keyhead 3x16
 80 SMs HV=32 N=1: rec_keyhead 2x16
 80 SMs HV=8 N=1: rec_columns 1x16
 80 SMs HV=8 N=4: rec_keyhead 4x16
128 SMs HV=48 N=1: rec_keyhead 3x16
128 SMs HV=32 N=1: rec_keyhead 2x16
128 SMs HV=8 N=1: rec_columns 1x8
128 SMs HV=8 N=4: rec_keyhead 2x16
132 SMs HV=48 N=1: rec_keyhead 3x16
132 SMs HV=32 N=1: rec_keyhead 2x16
132 SMs HV=8 N=1: rec_columns 1x8
132 SMs HV=8 N=4: rec_keyhead 2x16
170 SMs HV=48 N=1: rec_keyhead 3x16
170 SMs HV=32 N=1: rec_keyhead 2x16
170 SMs HV=8 N=1: rec_columns 1x8
170 SMs HV=8 N=4: rec_keyhead 2x16""",
    )


def test_recurrences_by_key_dim_and_architecture() -> None:
    """rec_keyhead needs sm_80, several value heads a key head and, with K = 256, an even number of them."""
    rows = [
        (f"K={k} HV={hv}", arch, served("gated_delta_rule", arch, sms=84, tokens=PROMPT, k=k, v=k, h=16, hv=hv))
        for k in (64, 128, 256)
        for hv in (16, 32, 48)
        for arch in ("sm_75", "sm_86", "sm_90")
    ]
    assert_expected_inline(
        table(rows),
        """\
K=64 HV=16 sm_75: rec_columns heads=1 columns=16
K=64 HV=16 sm_86: rec_columns heads=1 columns=16
K=64 HV=16 sm_90: rec_columns heads=1 columns=16
K=64 HV=32 sm_75: rec_columns heads=1 columns=16
K=64 HV=32 sm_86: rec_keyhead heads=2 columns=16
K=64 HV=32 sm_90: rec_keyhead heads=2 columns=16
K=64 HV=48 sm_75: rec_columns heads=1 columns=16
K=64 HV=48 sm_86: rec_keyhead heads=3 columns=16
K=64 HV=48 sm_90: rec_keyhead heads=3 columns=16
K=128 HV=16 sm_75: rec_columns heads=1 columns=16
K=128 HV=16 sm_86: rec_columns heads=1 columns=16
K=128 HV=16 sm_90: rec_columns heads=1 columns=16
K=128 HV=32 sm_75: rec_columns heads=1 columns=16
K=128 HV=32 sm_86: rec_keyhead heads=2 columns=16
K=128 HV=32 sm_90: rec_keyhead heads=2 columns=16
K=128 HV=48 sm_75: rec_columns heads=1 columns=16
K=128 HV=48 sm_86: rec_keyhead heads=3 columns=16
K=128 HV=48 sm_90: rec_keyhead heads=3 columns=16
K=256 HV=16 sm_75: rec_columns heads=1 columns=16
K=256 HV=16 sm_86: rec_columns heads=1 columns=16
K=256 HV=16 sm_90: rec_columns heads=1 columns=16
K=256 HV=32 sm_75: rec_columns heads=1 columns=16
K=256 HV=32 sm_86: rec_keyhead heads=2 columns=16
K=256 HV=32 sm_90: rec_keyhead heads=2 columns=16
K=256 HV=48 sm_75: rec_columns heads=1 columns=16
K=256 HV=48 sm_86: rec_columns heads=1 columns=16
K=256 HV=48 sm_90: rec_columns heads=1 columns=16""",
    )


def test_resident_blocks_need_shared_memory() -> None:
    """Two blocks of one head a thread on each SM are cheaper than one of three heads, where an SM has room for two."""
    rows = [(arch, served("gated_delta_rule", arch, sms=128, tokens=PROMPT, h=8, hv=24)) for arch in ARCHS]
    assert_expected_inline(
        table(rows),
        """\
sm_75: rec_columns heads=1 columns=16
sm_80: rec_keyhead heads=3 columns=16
sm_86: rec_keyhead heads=3 columns=16
sm_89: rec_keyhead heads=3 columns=16
sm_90: rec_keyhead heads=3 columns=16
sm_100: rec_keyhead heads=3 columns=16
sm_120: rec_keyhead heads=3 columns=16""",
    )


def test_switches_of_the_prompt_kernels() -> None:
    """A switch is a wish, for a kernel that fits; the user's word wins over what the table expects to be faster."""
    rows = []
    for name, values in (("GDN_KEYHEAD", (0, 1)), ("GDN_PIPELINE", (0, 1))):
        for value, (H, HV) in itertools.product(values, ((16, 48), (16, 16), (2, 8))):
            env = {name: value}
            call = {"sms": 132, "tokens": PROMPT, "h": H, "hv": HV}
            rows.append((f"H={H} HV={HV}", words(env), served("gated_delta_rule", env=env, **call)))
    assert_expected_inline(
        table(rows),
        """\
H=16 HV=48 GDN_KEYHEAD=0: rec_columns heads=1 columns=16
H=16 HV=16 GDN_KEYHEAD=0: rec_columns heads=1 columns=16
H=2 HV=8 GDN_KEYHEAD=0: rec_columns heads=1 columns=8
H=16 HV=48 GDN_KEYHEAD=1: rec_keyhead heads=3 columns=16
H=16 HV=16 GDN_KEYHEAD=1: rec_columns heads=1 columns=16
H=2 HV=8 GDN_KEYHEAD=1: rec_keyhead heads=2 columns=16
H=16 HV=48 GDN_PIPELINE=0: rec_keyhead heads=3 columns=16 pipelined=0
H=16 HV=16 GDN_PIPELINE=0: rec_columns heads=1 columns=16 pipelined=0
H=2 HV=8 GDN_PIPELINE=0: rec_columns heads=1 columns=8 pipelined=0
H=16 HV=48 GDN_PIPELINE=1: rec_keyhead heads=3 columns=16
H=16 HV=16 GDN_PIPELINE=1: rec_columns heads=1 columns=16
H=2 HV=8 GDN_PIPELINE=1: rec_columns heads=1 columns=8""",
    )


# Decode


def test_decode_steps() -> None:
    """One token a sequence: the decode kernel whatever the number of sequences, unless GDN_STEP=0."""
    rows = []
    for env in ({}, {"GDN_SPLIT": 1}, {"GDN_STEP": 0}, {"GDN_STEP": 0, "GDN_PIPELINE": 0}, {"GDN_PIPELINE": 0}):
        rows += [(f"N={n:<3}", words(env), served("gated_delta_rule_", sms=132, n=n, env=env)) for n in (1, 8, 64, 256)]
    assert_expected_inline(
        table(rows),
        """\
N=1   -: step heads=1 columns=64
N=8   -: step heads=1 columns=64
N=64  -: step heads=1 columns=64
N=256 -: step heads=1 columns=64
N=1   GDN_SPLIT=1: step heads=1 columns=32
N=8   GDN_SPLIT=1: step heads=1 columns=32
N=64  GDN_SPLIT=1: step heads=1 columns=32
N=256 GDN_SPLIT=1: step heads=1 columns=32
N=1   GDN_STEP=0: rec_keyhead heads=3 columns=16
N=8   GDN_STEP=0: rec_keyhead heads=3 columns=16
N=64  GDN_STEP=0: rec_keyhead heads=3 columns=16
N=256 GDN_STEP=0: rec_keyhead heads=3 columns=16
N=1   GDN_STEP=0 GDN_PIPELINE=0: rec_keyhead heads=3 columns=16 pipelined=0
N=8   GDN_STEP=0 GDN_PIPELINE=0: rec_keyhead heads=3 columns=16 pipelined=0
N=64  GDN_STEP=0 GDN_PIPELINE=0: rec_keyhead heads=3 columns=16 pipelined=0
N=256 GDN_STEP=0 GDN_PIPELINE=0: rec_keyhead heads=3 columns=16 pipelined=0
N=1   GDN_PIPELINE=0: step heads=1 columns=64
N=8   GDN_PIPELINE=0: step heads=1 columns=64
N=64  GDN_PIPELINE=0: step heads=1 columns=64
N=256 GDN_PIPELINE=0: step heads=1 columns=64""",
    )


@pytest.mark.parametrize("arch", ARCHS)
def test_decode_is_the_same_on_every_card(arch: str) -> None:
    for n, sms in itertools.product((1, 256), (28, 170)):
        assert decide("gated_delta_rule_", arch, sms=sms, n=n).kernel == "step"
    assert decide("gated_delta_rule_", arch, env={"GDN_STEP": 0}).kernel == (
        "rec_columns" if arch == "sm_75" else "rec_keyhead"
    )


def test_columns_of_a_decode_block() -> None:
    """GDN_SPLIT=1: four blocks a head of V = 128; 0: as few as four warps a block allow."""
    rows = []
    for k, v in itertools.product((64, 128, 256), repeat=2):
        columns = [int(decide("gated_delta_rule_", k=k, v=v, env={"GDN_SPLIT": s}).config["columns"]) for s in (0, 1)]
        rows.append((f"K={k:<3} V={v:<3}", " / ".join(f"{v // c} of {c}" for c in columns)))
    assert_expected_inline(
        table(rows),
        """\
K=64  V=64 : 1 of 64 / 2 of 32
K=64  V=128: 1 of 128 / 4 of 32
K=64  V=256: 2 of 128 / 8 of 32
K=128 V=64 : 1 of 64 / 2 of 32
K=128 V=128: 2 of 64 / 4 of 32
K=128 V=256: 4 of 64 / 8 of 32
K=256 V=64 : 2 of 32 / 2 of 32
K=256 V=128: 4 of 32 / 4 of 32
K=256 V=256: 8 of 32 / 8 of 32""",
    )


def test_where_the_decode_kernel_ends() -> None:
    assert decide("gated_delta_rule", tokens=16).kernel == "step"
    longer = decide("gated_delta_rule", tokens=17, sms=132)
    assert longer.kernel == "rec_keyhead"
    off = ("chunk_fp32", "GDN_CHUNKED is not set")
    assert longer.rejected == (("step", "takes at most 16 tokens a sequence; this is T=17"), off)
    switched_off = decide("gated_delta_rule", tokens=16, sms=132, env={"GDN_STEP": 0})
    assert switched_off.kernel == "rec_keyhead"
    assert switched_off.rejected == (("step", "GDN_STEP=0"), off)


# The chunked form


def test_where_the_chunked_form_runs() -> None:
    """By itself never; with GDN_CHUNKED=1 where it is expected to win, with 2 from 256 tokens on; ordered, always."""
    cards = (("sm_75", 72), ("sm_80", 108), ("sm_86", 28), ("sm_89", 128), ("sm_90", 132), ("sm_120", 170))
    calls: list[dict[str, int]] = [{"tokens": PROMPT}, {"tokens": 255}, {"tokens": PROMPT, "h": 2, "hv": 8}]
    settings: dict[str, tuple[Env, str]] = {
        "-": ({}, "auto"),
        "0": ({"GDN_CHUNKED": 0}, "auto"),
        "1": ({"GDN_CHUNKED": 1}, "auto"),
        "2": ({"GDN_CHUNKED": 2}, "auto"),
        "ordered": ({}, "fp32"),
        "ordered, 0": ({"GDN_CHUNKED": 0}, "fp32"),
    }
    rows = []
    for (arch, sms), call in itertools.product(cards, calls):
        takes = [
            name
            for name, (env, precision) in settings.items()
            if registry.decide("gated_delta_rule", arch=arch, sms=sms, env=env, precision=precision, **call).kernel
            == "chunk_fp32"
        ]
        rows.append((arch, sms, f"T={call['tokens']} HV={call.get('hv', 48)}", "; ".join(takes) or "never"))
    assert_expected_inline(
        table(rows),
        """\
sm_75 72 T=2048 HV=48: never
sm_75 72 T=255 HV=48: never
sm_75 72 T=2048 HV=8: never
sm_80 108 T=2048 HV=48: 2; ordered; ordered, 0
sm_80 108 T=255 HV=48: ordered; ordered, 0
sm_80 108 T=2048 HV=8: 2; ordered; ordered, 0
sm_86 28 T=2048 HV=48: 2; ordered; ordered, 0
sm_86 28 T=255 HV=48: ordered; ordered, 0
sm_86 28 T=2048 HV=8: 2; ordered; ordered, 0
sm_89 128 T=2048 HV=48: 1; 2; ordered; ordered, 0
sm_89 128 T=255 HV=48: ordered; ordered, 0
sm_89 128 T=2048 HV=8: 2; ordered; ordered, 0
sm_90 132 T=2048 HV=48: 1; 2; ordered; ordered, 0
sm_90 132 T=255 HV=48: ordered; ordered, 0
sm_90 132 T=2048 HV=8: 2; ordered; ordered, 0
sm_120 170 T=2048 HV=48: 1; 2; ordered; ordered, 0
sm_120 170 T=255 HV=48: ordered; ordered, 0
sm_120 170 T=2048 HV=8: 2; ordered; ordered, 0""",
    )


def test_why_the_chunked_form_does_not_run() -> None:
    def why(arch: str = "sm_90", sms: int | None = 132, precision: str = "auto", chunked: int = 1, **call: int) -> str:
        decision = registry.decide(
            "gated_delta_rule", arch=arch, sms=sms, precision=precision, env={"GDN_CHUNKED": chunked}, **call
        )
        return dict(decision.rejected)["chunk_fp32"]

    rows = [
        ("0", why(chunked=0, tokens=PROMPT)),
        ("tokens", why(tokens=255)),
        ("tokens, 2", why(chunked=2, tokens=255)),
        ("card", why(sms=108, arch="sm_80", tokens=PROMPT)),
        ("blocks", why(tokens=PROMPT, hv=64)),
        ("idle card", why(tokens=PROMPT, h=2, hv=8)),
        ("sequences", why(tokens=PROMPT, n=64)),
        ("shared memory", why(arch="sm_89", sms=128, tokens=PROMPT, k=256, chunked=2)),
        ("shared memory, ordered", why(arch="sm_89", sms=128, tokens=PROMPT, k=256, precision="fp32")),
        ("exact", why(tokens=PROMPT, precision="exact") + "."),
    ]
    assert_expected_inline(
        table(rows),
        """\
0: GDN_CHUNKED=0
tokens: needs at least 256 tokens a sequence; this is T=255
tokens, 2: needs at least 256 tokens a sequence; this is T=255
card: with GDN_CHUNKED=1 needs an SM for each of a sequence's blocks, and at least 128 SMs; this card has 108
blocks: with GDN_CHUNKED=1 needs an SM for each of a sequence's blocks, and at least 128 SMs; this card has 132
idle card: its blocks keep too few of the 132 SMs busy
sequences: with GDN_CHUNKED=1 needs room for two chunks of each sequence in its work buffer; there is room for 67, N=64
shared memory: a block needs 126176 bytes of shared memory; sm_89 gives it 101376
shared memory, ordered: a block needs 126176 bytes of shared memory; sm_89 gives it 101376
exact: computes in precision="fp32"; asked for is "exact".""",
    )


def test_a_card_of_unknown_size_keeps_the_exact_kernels() -> None:
    decision = registry.decide("gated_delta_rule", arch="sm_90", tokens=PROMPT, env={"GDN_CHUNKED": 1})
    assert dict(decision.rejected)["chunk_fp32"].endswith("how many there are is not known")


def test_an_order_is_not_served_by_another_precision() -> None:
    refused = registry.decide("gated_delta_rule", arch="sm_89", sms=128, tokens=PROMPT, k=256, precision="fp32", env={})
    assert not refused
    assert refused.reason == "a block needs 126176 bytes of shared memory; sm_89 gives it 101376"
    older = registry.decide("gated_delta_rule", arch="sm_75", sms=72, tokens=PROMPT, precision="fp32", env={})
    assert older.reason == (
        'no kernel of this build serves gated_delta_rule on sm_75 with precision="fp32": '
        "needs sm_80 or newer; this is sm_75"
    )
    refused_exact = registry.decide("gated_delta_rule", arch="sm_90", sms=132, k=96, precision="exact", env={})
    assert refused_exact.reason == "K must be 64, 128 or 256; got 96"


@pytest.mark.parametrize(("k", "group", "heads"), [
    (128, 1, 1), (128, 2, 2), (128, 3, 3), (128, 4, 2), (128, 8, 2), (64, 6, 3), (128, 5, 1), (256, 4, 1),
])  # fmt: skip
def test_value_heads_of_a_chunked_block(k: int, group: int, heads: int) -> None:
    decision = registry.decide("gated_delta_rule", arch="sm_90", sms=132, tokens=1, precision="fp32", k=k, h=2,
                               hv=2 * group, env={})  # fmt: skip
    assert (decision.kernel, decision.config) == ("chunk_fp32", {"heads": str(heads), "columns": "16"})


def test_an_emulated_card_has_the_real_ones_shared_memory() -> None:
    refused = registry.decide("gated_delta_rule", arch="sm_86", sms=84, tokens=PROMPT, precision="fp32", k=256,
                              env={"GDN_EMULATE": "sm_90"})  # fmt: skip
    assert refused.reason == "a block needs 126176 bytes of shared memory; sm_86 gives it 101376"


def test_sequences_that_a_window_has_room_for() -> None:
    """What one window holds, however many they are; of more windows, few sequences."""

    def switched(sequences: int, tokens: int) -> bool:
        decision = registry.decide("gated_delta_rule", arch="sm_90", sms=132, n=sequences, tokens=tokens, h=16, hv=48,
                                   env={"GDN_CHUNKED": 1})  # fmt: skip
        return decision.kernel == "chunk_fp32"

    chunks = 67  # 64 MiB of work at this layer
    assert switched(chunks // 2, PROMPT)
    assert not switched(chunks // 2 + 1, PROMPT)
    assert switched(8, 256)
    assert not switched(chunks, 256)


def test_where_the_chunked_scan_has_a_second_stage() -> None:
    def pipelined(arch: str, sms: int, hv: int = 48, env: dict[str, str] | None = None, **shape: int) -> bool:
        decision = registry.decide("gated_delta_rule", arch=arch, sms=sms, tokens=PROMPT, precision="fp32", h=16, hv=hv,
                                   env=env or {}, **shape)  # fmt: skip
        assert decision.kernel == "chunk_fp32"
        return "pipelined" not in decision.config

    assert pipelined("sm_90", 132)
    assert pipelined("sm_80", 108)
    assert not pipelined("sm_86", 84)  # two do not fit
    assert not pipelined("sm_90", 132, env={"GDN_PIPELINE": "0"})
    assert not pipelined("sm_86", 132, env={"GDN_EMULATE": "sm_90"})  # what runs is the card that there is
    # One chain a block: with more blocks than multiprocessors, several a multiprocessor with a stage each.
    assert pipelined("sm_90", 132, hv=16)
    assert not pipelined("sm_90", 132, hv=16, n=2)
    assert pipelined("sm_90", 132, n=2)
    assert pipelined("sm_90", 132, hv=16, n=2, k=256)  # no room for two, even so


# Verify and commit


def test_verify_chains_and_trees() -> None:
    rows = [
        (op, f"{'tree' if tree else 'chain'},", words(env), served(op, tokens=8, tree=tree, env=env))
        for op in VERIFIES
        for tree in (False, True)
        for env in ({}, {"GDN_SPLIT": 0}, {"GDN_SPLIT": 1})
    ]
    assert_expected_inline(
        table(rows),
        """\
gated_delta_rule_verify chain, -: verify heads=1 columns=64
gated_delta_rule_verify chain, GDN_SPLIT=0: verify heads=1 columns=64
gated_delta_rule_verify chain, GDN_SPLIT=1: verify heads=1 columns=32
gated_delta_rule_verify tree, -: verify_tree heads=1 columns=64
gated_delta_rule_verify tree, GDN_SPLIT=0: verify_tree heads=1 columns=64
gated_delta_rule_verify tree, GDN_SPLIT=1: verify_tree heads=1 columns=32
gated_delta_rule_commit_verify_ chain, -: commit_verify heads=1 columns=64
gated_delta_rule_commit_verify_ chain, GDN_SPLIT=0: commit_verify heads=1 columns=64
gated_delta_rule_commit_verify_ chain, GDN_SPLIT=1: commit_verify heads=1 columns=32
gated_delta_rule_commit_verify_ tree, -: commit, verify_tree heads=1 columns=64
gated_delta_rule_commit_verify_ tree, GDN_SPLIT=0: commit, verify_tree heads=1 columns=64
gated_delta_rule_commit_verify_ tree, GDN_SPLIT=1: commit, verify_tree heads=1 columns=32
gdn_verify_layer chain, -: conv_gates, verify_norm heads=1 columns=128
gdn_verify_layer chain, GDN_SPLIT=0: conv_gates, verify_norm heads=1 columns=128
gdn_verify_layer chain, GDN_SPLIT=1: conv_gates, verify, gated_rms_norm heads=1 columns=32
gdn_verify_layer tree, -: conv_gates, verify_tree, gated_rms_norm heads=1 columns=64
gdn_verify_layer tree, GDN_SPLIT=0: conv_gates, verify_tree, gated_rms_norm heads=1 columns=64
gdn_verify_layer tree, GDN_SPLIT=1: conv_gates, verify_tree, gated_rms_norm heads=1 columns=32""",
    )


def test_commits() -> None:
    rows = [
        (op, words(env), served(op, tokens=8, env=env))
        for op in COMMITS
        for env in ({}, {"GDN_COMMIT_SPLIT": 1}, {"GDN_COMMIT_SPLIT": 0}, {"GDN_SPLIT": 1})
    ]
    assert_expected_inline(
        table(rows),
        """\
gated_delta_rule_commit_ -: commit columns=64
gated_delta_rule_commit_ GDN_COMMIT_SPLIT=1: commit columns=64
gated_delta_rule_commit_ GDN_COMMIT_SPLIT=0: commit columns=64
gated_delta_rule_commit_ GDN_SPLIT=1: commit columns=64
gated_delta_rule_commit_layers_ -: commit columns=64
gated_delta_rule_commit_layers_ GDN_COMMIT_SPLIT=1: commit columns=64
gated_delta_rule_commit_layers_ GDN_COMMIT_SPLIT=0: commit columns=64 batched=0
gated_delta_rule_commit_layers_ GDN_SPLIT=1: commit columns=64
causal_conv1d_commit_layers_ -: conv_commit
causal_conv1d_commit_layers_ GDN_COMMIT_SPLIT=1: conv_commit
causal_conv1d_commit_layers_ GDN_COMMIT_SPLIT=0: conv_commit batched=0
causal_conv1d_commit_layers_ GDN_SPLIT=1: conv_commit""",
    )


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("op", COMMITS[1:])
def test_a_split_step_does_not_lose_the_batched_commit(arch: str, op: str) -> None:
    for split, defaults in itertools.product((0, 1), repeat=2):
        env = {"GDN_SPLIT": split, "GDN_ARCH_DEFAULTS": defaults}
        assert decide(op, arch, env) == decide(op, arch)
        assert "batched" not in decide(op, arch, env).config
        assert decide(op, arch, env | {"GDN_COMMIT_SPLIT": 0}).config["batched"] == "0"


# Limits of the ops


@pytest.mark.parametrize("arch", ["cpu-avx2", "sm_90"])
@pytest.mark.parametrize(
    ("op", "most"),
    [(op, 8 if "layer" in op else 128) for op in (*VERIFIES, "causal_conv1d_verify")] + [("gdn_decode_layer_", 8)],
)
@pytest.mark.parametrize("tree", [False, True])
def test_more_tokens_than_an_op_takes(arch: str, op: str, most: int, tree: bool) -> None:
    assert decide(op, arch, tokens=most, tree=tree)
    refused = decide(op, arch, tokens=most + 1, tree=tree)
    assert not refused
    assert refused.reason == f"T must be at most {most}; got {most + 1}"


@pytest.mark.parametrize("arch", ["cpu-avx2", "sm_75", "sm_90"])
@pytest.mark.parametrize("op", ["gated_delta_rule", *VERIFIES, *COMMITS[:2], "gdn_decode_layer_"])
@pytest.mark.parametrize("tokens", [1, 8])
def test_head_dimensions_that_no_kernel_has(arch: str, op: str, tokens: int) -> None:
    """An op's error names the argument alone, not what its kernels would need otherwise."""
    assert decide(op, arch, tokens=tokens, k=96).reason == "K must be 64, 128 or 256; got 96"
    assert decide(op, arch, tokens=tokens, v=512).reason == "V must be 64, 128 or 256; got 512"


def test_rejected_kernels_still_have_all_reasons() -> None:
    assert decide("gated_delta_rule", "sm_75", k=96).rejected == (
        ("step", "K must be 64, 128 or 256; got 96"),
        ("chunk_fp32", "needs sm_80 or newer; this is sm_75"),
        ("rec_keyhead", "needs sm_80 or newer; this is sm_75"),
        ("rec_columns", "K must be 64, 128 or 256; got 96"),
    )
    few_heads = decide("gated_delta_rule", sms=132, tokens=PROMPT, h=2, hv=8).rejected[-1]
    assert few_heads == ("rec_keyhead", "one head a thread is expected to be faster: more of the 132 SMs have work")
    odd_group = decide("gated_delta_rule", tokens=PROMPT, h=16, hv=16).rejected[-1]
    assert odd_group == (
        "rec_keyhead",
        "needs a multiple of 2 value heads a key head, or for K=64 and 128 of 3; got K=128, H=16, HV=16",
    )


# GDN_EMULATE


def test_emulation_of_an_older_card() -> None:
    """The older card's decision, and a reason that says so."""
    calls = [("gated_delta_rule", {"tokens": PROMPT}), ("gated_delta_rule_", {}), *((op, {}) for op in VERIFIES)]
    for (op, call), older in itertools.product(calls, ("sm_75", "sm_86")):
        emulating = decide(op, "sm_90", {"GDN_EMULATE": older}, sms=84, **call)
        itself = decide(op, older, sms=84, **call)
        assert (emulating.kernel, emulating.config, emulating.rejected) == (
            itself.kernel, itself.config, itself.rejected,
        )  # fmt: skip
        assert emulating.reason == f"{itself.reason}; GDN_EMULATE={older} in place of sm_90"


def test_emulation_never_goes_upwards() -> None:
    """A newer card's kernel is not launched on one that lacks what it needs; the next one is, as on the newer card."""
    prompt = decide("gated_delta_rule", "sm_75", {"GDN_EMULATE": "sm_90"}, tokens=PROMPT, sms=68)
    assert prompt.kernel == "rec_columns"
    assert prompt.rejected[-1] == (
        "rec_keyhead",
        "GDN_EMULATE=sm_90, but the real device is sm_75, which cannot run it",
    )
    for op in ("gated_delta_rule", "gated_delta_rule_", *VERIFIES, *COMMITS):
        assert decide(op, "sm_90", {"GDN_EMULATE": "sm_70"}).kernel == ""
        lacking = decide(op, "sm_70", {"GDN_EMULATE": "sm_90"})
        assert not lacking
        assert lacking.reason == "GDN_EMULATE=sm_90, but the real device is sm_70, which cannot run it"


# Switches


def test_the_switches_that_an_op_goes_by() -> None:
    ops = ("gated_delta_rule", *VERIFIES, "gdn_decode_layer_", *COMMITS, "causal_conv1d", "causal_conv1d_verify")
    rows = [(op, " ".join(n for n in registry.switches_read(op, "sm_90") if n != "GDN_EMULATE") or "-") for op in ops]
    assert_expected_inline(
        table(rows),
        """\
gated_delta_rule: GDN_CHUNKED GDN_KEYHEAD GDN_PIPELINE GDN_STEP GDN_SPLIT GDN_STEP_HEADS
gated_delta_rule_verify: GDN_SPLIT GDN_STEP_HEADS
gated_delta_rule_commit_verify_: GDN_SPLIT GDN_STEP_HEADS
gdn_verify_layer: GDN_SPLIT GDN_STEP_HEADS GDN_FUSED_LAYER
gdn_decode_layer_: GDN_SPLIT GDN_STEP_HEADS GDN_FUSED_LAYER
gated_delta_rule_commit_: -
gated_delta_rule_commit_layers_: GDN_COMMIT_SPLIT
causal_conv1d_commit_layers_: GDN_COMMIT_SPLIT
causal_conv1d: -
causal_conv1d_verify: -""",
    )


@pytest.mark.parametrize("op", ["gated_delta_rule", *VERIFIES, "gdn_decode_layer_", *COMMITS])
def test_a_switch_that_an_op_does_not_go_by_changes_nothing(op: str) -> None:
    choices = {
        "GDN_KEYHEAD": (0, 1), "GDN_PIPELINE": (0, 1), "GDN_STEP": (0, 1), "GDN_SPLIT": (0, 1),
        "GDN_COMMIT_SPLIT": (0, 1), "GDN_CHUNKED": (0, 1, 2), "GDN_CONVL2": (0, 1), "GDN_CPU_ISA": ("avx2",),
    }  # fmt: skip
    calls = [{"tokens": tokens, "tree": tree} for tokens in (1, 8, PROMPT) for tree in (False, True)]
    read = registry.switches_read(op, "sm_90")
    for name, values in choices.items():
        different = [
            value
            for value, call in itertools.product(values, calls)
            if decide(op, env={name: value}, sms=132, **call) != decide(op, sms=132, **call)
        ]
        assert bool(different) == (name in read)
