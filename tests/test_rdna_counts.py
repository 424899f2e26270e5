"""What a token costs on RDNA in instructions and barriers, and how many work-groups a WGP holds: the runner's counts.

The table is for one version of clang and is re-accepted (EXPECTTEST_ACCEPT=1) when a kernel changes; the bounds are
code and hold with every version.
"""

from __future__ import annotations

import re

import pytest
from expecttest import assert_expected_inline
from rdna_cases import ARCHES, needs_compilers

pytestmark = [needs_compilers, pytest.mark.xdist_group("rdna_counts")]

if not needs_compilers.args[0]:
    from rdna import counts, toolchain
    from rdna.counts import SUBJECTS, Counted
    from rdna.ops import Ops

TABLE_CLANG = "22.1"

DECODE = ("step", "step_norm", "verify", "verify_norm", "verify_tree", "verify_layer", "commit", "commit_verify")
LEAST_BLOCKS = 2  # of a decode kernel in a WGP
# Barriers a token, of LDS alone: what pairs of warps exchange, and a stage's share of two (of one for prompts).
MOST_BARRIERS = dict.fromkeys(DECODE, 1.5) | {"commit": 0, "verify_tree": 2, "rec_columns": 0.25}
# A head's 16384 state values take four vector operations each: 2048 instructions of a wave, or half as many dual ones.
LEAST_VECTOR = 16384 * 4 // 32 // 2


@pytest.fixture(scope="module")
def found() -> list[Counted]:
    ops = {arch: Ops(arch) for arch in ARCHES}
    return [counts.counted(ops[arch], subject) for subject in SUBJECTS for arch in ARCHES]


def of(found: list[Counted], name: str, arch: str) -> Counted:
    return next(c for c in found if c.subject.name == name and c.arch == arch)


def test_decode_kernels_share_a_wgp(found: list[Counted]) -> None:
    assert {c.subject.kernel for c in found} >= set(DECODE)
    assert [c for c in found if c.subject.kernel in DECODE and c.blocks < LEAST_BLOCKS] == []


def test_barriers_a_token(found: list[Counted]) -> None:
    for c in found:
        assert c.barriers <= MOST_BARRIERS.get(c.subject.kernel, 0.5), (c.subject.name, c.arch)


def test_the_least_that_a_step_takes(found: list[Counted]) -> None:
    """The control of the counts: none is below what the recurrence itself executes."""
    for c in found:
        if c.subject.kernel.startswith(("step", "verify", "rec_")):
            assert c.counts["valu"] + c.counts["dual"] >= LEAST_VECTOR, (c.subject.name, c.arch)


@pytest.mark.parametrize("arch", ARCHES)
def test_what_the_defaults_are_for(found: list[Counted], arch: str) -> None:
    """Two columns a lane, and queries and keys that are normalised once, execute less."""

    def executed(*names: str) -> float:
        return sum(sum(of(found, name, arch).counts.values()) for name in names)

    assert executed("rec_lanes, two columns") < executed("rec_columns") < executed("rec_lanes, one column")
    assert executed("step_norm, GDN_CONVL2=1") < executed("step_norm")


def test_table(found: list[Counted]) -> None:
    version = re.search(r"version ([\d.]+)", toolchain.version())[1]
    if not version.startswith(f"{TABLE_CLANG}."):
        pytest.skip(f"the table is clang {TABLE_CLANG}'s; this is {version}")
    assert_expected_inline(
        f"{counts.table(found)}\n",
        """\
kernel                   architecture     all   vector  LDS  memory  barriers  VGPR  LDS    blocks
step                     gfx1030          4407  3487    102  16      1.4       199   12352  4
step                     gfx1100          4125  2604    102  16      1.4       189   12352  8
step                     gfx1151          4122  2604    102  16      1.4       189   12352  8
step                     gfx1200 gfx1201  4272  2604    102  16      1.4       189   12352  8
step, GDN_SPLIT=1        gfx1030          4910  3763    107  21      1.4       199   12352  8
step, GDN_SPLIT=1        gfx1100          4718  2867    107  21      1.4       189   12352  10
step, GDN_SPLIT=1        gfx1151          4712  2867    107  21      1.4       189   12352  10
step, GDN_SPLIT=1        gfx1200 gfx1201  4888  2867    107  21      1.4       189   12352  10
step_norm                gfx1030          4296  3453    110  14      1         193   16448  2
step_norm                gfx1100          3906  2473    110  14      1         192   16448  4
step_norm                gfx1151          3900  2473    110  14      1         192   16448  4
step_norm                gfx1200 gfx1201  4044  2469    110  14      1         192   16448  4
step_norm, GDN_CONVL2=1  gfx1030          4184  3361    110  14      1         193   16448  2
step_norm, GDN_CONVL2=1  gfx1100          3754  2381    110  14      1         192   16448  4
step_norm, GDN_CONVL2=1  gfx1151          3750  2381    110  14      1         192   16448  4
step_norm, GDN_CONVL2=1  gfx1200 gfx1201  3878  2377    110  14      1         192   16448  4
verify                   gfx1030          4528  3503    102  22      1.4       200   12352  4
verify                   gfx1100          4015  2422    102  22      1.4       199   12352  7
verify                   gfx1151          4011  2422    102  22      1.4       199   12352  7
verify                   gfx1200 gfx1201  4129  2421    102  22      1.4       199   12352  7
verify_norm              gfx1030          4377  3470    110  19      1         211   16448  2
verify_norm              gfx1100          4066  2570    110  19      1         208   16448  3
verify_norm              gfx1151          4060  2570    110  19      1         208   16448  3
verify_norm              gfx1200 gfx1201  4191  2566    110  19      1         209   16448  3
verify_tree of a chain   gfx1030          5604  4018    66   87      2         196   12800  4
verify_tree of a chain   gfx1100          5493  3216    66   87      2         195   12800  7
verify_tree of a chain   gfx1151          5481  3214    66   87      2         195   12800  7
verify_tree of a chain   gfx1200 gfx1201  5834  3214    66   87      2         195   12800  7
verify_layer             gfx1030          5053  3953    138  22      1         127   16448  4
verify_layer             gfx1100          5231  3191    138  22      1         126   16448  5
verify_layer             gfx1151          5165  3167    138  22      1         126   16448  5
verify_layer             gfx1200 gfx1201  5407  3173    138  22      1         127   16448  5
commit                   gfx1030          2688  2248    0    40      0         204   0      4
commit                   gfx1100          2048  1504    0    40      0         204   0      7
commit                   gfx1151          2024  1336    0    40      0         204   0      7
commit                   gfx1200 gfx1201  1864  1104    0    40      0         204   0      7
commit_verify            gfx1030          4474  3503    102  22      1.4       226   12352  4
commit_verify            gfx1100          3875  2398    102  22      1.4       225   12352  6
commit_verify            gfx1151          3871  2398    102  22      1.4       227   12352  6
commit_verify            gfx1200 gfx1201  3980  2397    102  22      1.4       225   12352  6
rec_columns              gfx1030          4569  3476    452  46      0.062     117   53248  2
rec_columns              gfx1100          4910  2976    452  46      0.062     117   53248  2
rec_columns              gfx1151          4908  2976    452  46      0.062     117   53248  2
rec_columns              gfx1200 gfx1201  5148  2976    452  46      0.062     117   53248  2
rec_lanes, one column    gfx1030          4902  3581    473  48      0.12      119   27136  4
rec_lanes, one column    gfx1100          5332  3079    473  48      0.12      119   27136  4
rec_lanes, one column    gfx1151          5328  3079    473  48      0.12      119   27136  4
rec_lanes, one column    gfx1200 gfx1201  5652  3079    473  48      0.12      119   27136  4
rec_lanes, two columns   gfx1030          3627  2958    242  26      0.12      138   36352  3
rec_lanes, two columns   gfx1100          3978  2588    242  26      0.12      137   36352  3
rec_lanes, two columns   gfx1151          3828  2496    242  26      0.12      137   36352  3
rec_lanes, two columns   gfx1200 gfx1201  3988  2492    242  26      0.12      137   36352  3
rec_keyhead, four heads  gfx1030          3050  2657    148  17      0.12      212   54784  2
rec_keyhead, four heads  gfx1100          3054  2109    148  17      0.12      212   54784  2
rec_keyhead, four heads  gfx1151          3024  2174    148  17      0.12      212   54784  2
rec_keyhead, four heads  gfx1200 gfx1201  3131  2149    148  17      0.12      212   54784  2
conv_gates               gfx1030          1794  1103    0    48      0.11      23    0      8
conv_gates               gfx1100          2084  1072    0    48      0.11      23    0      8
conv_gates               gfx1151          2071  1064    0    48      0.11      23    0      8
conv_gates               gfx1200 gfx1201  2312  1060    0    48      0.11      23    0      8
conv_l2                  gfx1030          2400  1240    0    39      0.094     49    0      8
conv_l2                  gfx1100          2673  1178    0    39      0.094     51    0      8
conv_l2                  gfx1151          2653  1158    0    39      0.094     51    0      8
conv_l2                  gfx1200 gfx1201  2775  1162    0    39      0.094     49    0      8
causal_conv1d            gfx1030          570   476     0    7       0         77    0      12
causal_conv1d            gfx1100          642   444     0    7       0         83    0      16
causal_conv1d            gfx1151          641   444     0    7       0         83    0      16
causal_conv1d            gfx1200 gfx1201  700   430     0    7       0         81    0      16
qk_l2norm                gfx1030          159   120     0    4       0         68    0      12
qk_l2norm                gfx1100 gfx1151  174   116     0    4       0         77    0      16
qk_l2norm                gfx1200 gfx1201  184   113     0    4       0         72    0      16
gated_rms_norm           gfx1030          420   332     0    8       0         113   0      8
gated_rms_norm           gfx1100          465   304     0    8       0         115   0      12
gated_rms_norm           gfx1151          465   306     0    8       0         115   0      12
gated_rms_norm           gfx1200 gfx1201  511   307     0    8       0         114   0      12
""",
    )
