"""The resource gate for RDNA, without a card: what clang makes of every kernel on every target.

The table is for one version of clang and is re-accepted (EXPECTTEST_ACCEPT=1) when a kernel changes; the ceilings are
code and hold with every version.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from expecttest import assert_expected_inline
from rdna_cases import ARCHES, needs_compilers

pytestmark = [needs_compilers, pytest.mark.xdist_group("rdna_isa")]

if not needs_compilers.args[0]:
    from rdna import isa, toolchain
    from rdna.isa import Facts

TABLE_CLANG = "22.1"

SHARED_BYTES = 64 * 1024  # of a work-group, static and dynamic
VECTOR_REGISTERS = 256

# The exceptions. Files whose kernels keep scalar registers in lanes of a vector register, outside their loops, and how
# many; there are no others that spill, and none that have scratch.
SCALAR_SPILLS = {"verify_norm": 4}
# Files with barriers for memory of every kind, once a launch: the threads that write the windows wait for those that
# read them. And with LDS barriers that have a wait for other memory beside them: for the state that is stored, or for
# the inputs that go into LDS, in front of the tokens' loop.
FULL_BARRIERS = {"conv_gates", "conv_l2"}
WAITING_BARRIERS = {"step_norm", "verify_layer"}


@pytest.fixture(scope="module")
def found() -> list[Facts]:
    facts = [f for arch in ARCHES for f in isa.facts(arch)]
    order = [source.stem for source in toolchain.KERNELS]
    return sorted(facts, key=lambda f: (order.index(f.source), ARCHES.index(f.arch)))


def broken(facts: list[Facts]) -> list[str]:
    """A sentence for each ceiling that a kernel breaks."""
    return [f"{f.name} on {f.arch}: {what}" for f in facts for what in _broken(f)]


def _broken(f: Facts) -> list[str]:
    sentences = []
    if f.vector_registers > VECTOR_REGISTERS:
        sentences.append(f"{f.vector_registers} vector registers; {VECTOR_REGISTERS} are there")
    if f.vector_spills:
        sentences.append(f"spills {f.vector_spills} vector registers")
    if f.scratch_bytes:
        sentences.append(f"{f.scratch_bytes} bytes of scratch")
    if f.scalar_spills > (allowed := SCALAR_SPILLS.get(f.source, 0)):
        sentences.append(f"spills {f.scalar_spills} scalar registers; {allowed} are allowed")
    if f.shared_bytes > SHARED_BYTES:
        sentences.append(f"{f.shared_bytes} bytes of LDS; {SHARED_BYTES} are there")
    if f.barriers["full"] and f.source not in FULL_BARRIERS:
        sentences.append("a barrier for all memory; LDS barriers alone are allowed")
    if f.barriers["waiting"] and f.source not in WAITING_BARRIERS:
        sentences.append("an LDS barrier with a wait for other memory beside it")
    return sentences


def test_no_kernel_breaks_a_ceiling(found: list[Facts]) -> None:
    assert broken(found) == []


def test_every_exception_is_needed(found: list[Facts]) -> None:
    assert {f.source for f in found if f.scalar_spills} == set(SCALAR_SPILLS)
    assert {f.source for f in found if f.barriers["full"]} == FULL_BARRIERS
    assert {f.source for f in found if f.barriers["waiting"]} == WAITING_BARRIERS


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"vector_registers": 257}, "257 vector registers; 256 are there"),
        ({"vector_spills": 1}, "spills 1 vector registers"),
        ({"scalar_spills": 1}, "spills 1 scalar registers; 0 are allowed"),
        ({"scratch_bytes": 4}, "4 bytes of scratch"),
        ({"shared_bytes": 65540}, "65540 bytes of LDS; 65536 are there"),
        ({"barriers": {"full": 1, "waiting": 0}}, "a barrier for all memory; LDS barriers alone are allowed"),
        ({"barriers": {"full": 0, "waiting": 1}}, "an LDS barrier with a wait for other memory beside it"),
    ],
)
def test_a_broken_ceiling_is_named(found: list[Facts], change: dict[str, object], sentence: str) -> None:
    commit = next(f for f in found if f.source == "commit" and f.arch == "gfx1201")
    assert broken([commit]) == []
    assert broken([replace(commit, **change)]) == [f"{commit.name} on gfx1201: {sentence}"]


@pytest.mark.parametrize(
    ("instructions", "kind"),
    [
        (["s_waitcnt lgkmcnt(0)", "s_barrier", "v_nop"], "lds"),
        (["s_waitcnt vmcnt(0) lgkmcnt(0)", "s_barrier", "v_nop"], "waiting"),
        (["s_wait_loadcnt_dscnt 0x0", "s_barrier_signal -1", "v_nop", "s_barrier_wait 0xffff"], "waiting"),
        (["s_wait_loadcnt 0x0", "s_branch 3", "s_wait_dscnt 0x0", "s_barrier_signal -1", "s_barrier_wait -1"], "lds"),
        (["s_waitcnt lgkmcnt(0)", "s_barrier", "buffer_gl0_inv"], "full"),
        (["s_barrier_signal -1", *["v_nop"] * 9, "s_barrier_wait -1", "global_inv scope:SCOPE_SE"], "full"),
    ],
)
def test_kinds_of_barriers(instructions: list[str], kind: str) -> None:
    (at,) = [i for i, text in enumerate(instructions) if isa.BARRIER.match(text)]
    assert isa.kind(instructions, at) == kind


def test_table(found: list[Facts]) -> None:
    version = re.search(r"version ([\d.]+)", toolchain.version())[1]
    if not version.startswith(f"{TABLE_CLANG}."):
        pytest.skip(f"the table is clang {TABLE_CLANG}'s; this is {version}")
    assert_expected_inline(
        f"{isa.table(found)}\n",
        """\
file            architecture                             vector  scalar  scratch  LDS    barriers  exchanges
rec_columns     gfx1030                                  193     107     0        0      36/0/0    0+792
rec_columns     gfx1100                                  194     107     0        0      36/0/0    0+792
rec_columns     gfx1151 gfx1200 gfx1201                  195     107     0        0      36/0/0    0+792
rec_keyhead     gfx1030 gfx1100 gfx1151 gfx1200 gfx1201  240     107     0        0      63/0/0    0+2028
step            gfx1030                                  232     76      0        20544  28/0/0    0+494
step            gfx1100 gfx1200 gfx1201                  231     78      0        20544  28/0/0    0+494
step            gfx1151                                  231     76      0        20544  28/0/0    0+494
step_norm       gfx1030                                  221     88      0        20544  32/4/0    0+295
step_norm       gfx1100                                  216     90      0        20544  32/4/0    0+295
step_norm       gfx1151                                  216     88      0        20544  32/4/0    0+295
step_norm       gfx1200 gfx1201                          216     92      0        20544  32/4/0    0+295
verify          gfx1030                                  231     96      0        20544  28/0/0    0+494
verify          gfx1100 gfx1151 gfx1200 gfx1201          230     96      0        20544  28/0/0    0+494
verify_norm     gfx1030                                  242     107+3   0        20544  32/0/0    0+295
verify_norm     gfx1100 gfx1151                          239     106     0        20544  32/0/0    0+295
verify_norm     gfx1200 gfx1201                          239     107+4   0        20544  32/0/0    0+295
verify_tree     gfx1030                                  235     53      0        8704   16/0/0    0+440
verify_tree     gfx1100 gfx1151                          234     53      0        8704   16/0/0    0+440
verify_tree     gfx1200 gfx1201                          234     54      0        8704   16/0/0    0+440
commit_verify   gfx1030                                  242     98      0        20544  28/0/0    0+494
commit_verify   gfx1100 gfx1151                          237     98      0        20544  28/0/0    0+494
commit_verify   gfx1200 gfx1201                          237     102     0        20544  28/0/0    0+494
commit          gfx1030 gfx1151                          204     44      0        0      0/0/0     0+0
commit          gfx1100                                  204     43      0        0      0/0/0     0+0
commit          gfx1200 gfx1201                          204     46      0        0      0/0/0     0+0
conv_commit     gfx1030 gfx1100 gfx1151 gfx1200 gfx1201  15      52      0        0      0/0/0     0+0
causal_conv1d   gfx1030 gfx1100 gfx1151                  83      95      0        0      0/0/0     0+384
causal_conv1d   gfx1200 gfx1201                          83      96      0        0      0/0/0     0+384
conv_gates      gfx1030                                  37      86      0        0      0/0/3     0+0
conv_gates      gfx1100 gfx1200 gfx1201                  35      86      0        0      0/0/3     0+0
conv_gates      gfx1151                                  35      85      0        0      0/0/3     0+0
verify_layer    gfx1030 gfx1100                          151     62      0        20544  26/2/0    0+271
verify_layer    gfx1151                                  151     60      0        20544  26/2/0    0+271
verify_layer    gfx1200 gfx1201                          151     62      0        20544  26/1/0    0+271
qk_l2norm       gfx1030                                  83      34      0        0      0/0/0     0+60
qk_l2norm       gfx1100 gfx1151                          77      34      0        0      0/0/0     0+60
qk_l2norm       gfx1200 gfx1201                          85      36      0        0      0/0/0     0+60
gdn_gates       gfx1030 gfx1100 gfx1151                  40      58      0        0      0/0/0     0+0
gdn_gates       gfx1200 gfx1201                          40      62      0        0      0/0/0     0+0
gated_rms_norm  gfx1030                                  152     77      0        0      0/0/0     0+60
gated_rms_norm  gfx1100 gfx1151                          146     59      0        0      0/0/0     0+60
gated_rms_norm  gfx1200 gfx1201                          157     62      0        0      0/0/0     0+60
conv_l2         gfx1030                                  107     60      0        0      0/0/18    0+72
conv_l2         gfx1100 gfx1151                          106     60      0        0      0/0/18    0+72
conv_l2         gfx1200 gfx1201                          106     59      0        0      0/0/18    0+72
rec_lanes       gfx1030 gfx1151                          238     107     0        0      54/0/0    0+1086
rec_lanes       gfx1100                                  239     107     0        0      54/0/0    0+1086
rec_lanes       gfx1200 gfx1201                          238     106     0        0      54/0/0    0+1086
""",
    )
