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

# The exceptions. Files whose kernels spill, with the most vector registers and bytes of scratch (K = 256 above all):
# written for CUDA's registers, they are to be fitted into RDNA's.
SPILLING = {
    "step": (33, 136),
    "step_norm": (36, 148),
    "verify": (16, 68),
    "verify_norm": (21, 88),
    "commit_verify": (47, 192),
    "verify_layer": (0, 2016),  # objects that are not kept in registers at all
}
# Files with barriers for memory of every kind, and with LDS barriers that have a wait for other memory beside them.
FULL_BARRIERS = {"rec_columns", "rec_keyhead", "verify_tree", "conv_gates"}
WAITING_BARRIERS = {"step_norm"}


@pytest.fixture(scope="module")
def found() -> list[Facts]:
    facts = [f for arch in ARCHES for f in isa.facts(arch)]
    order = [source.stem for source in toolchain.KERNELS]
    return sorted(facts, key=lambda f: (order.index(f.source), ARCHES.index(f.arch)))


def broken(facts: list[Facts]) -> list[str]:
    """A sentence for each ceiling that a kernel breaks."""
    return [f"{f.name} on {f.arch}: {what}" for f in facts for what in _broken(f)]


def _broken(f: Facts) -> list[str]:
    spills, scratch = SPILLING.get(f.source, (0, 0))
    sentences = []
    if f.vector_registers > VECTOR_REGISTERS:
        sentences.append(f"{f.vector_registers} vector registers; {VECTOR_REGISTERS} are there")
    if f.vector_spills > spills:
        sentences.append(f"spills {f.vector_spills} vector registers; {spills} are allowed")
    if f.scratch_bytes > scratch:
        sentences.append(f"{f.scratch_bytes} bytes of scratch; {scratch} are allowed")
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
    assert {f.source for f in found if f.vector_spills or f.scratch_bytes} == set(SPILLING)
    assert {f.source for f in found if f.barriers["full"]} == FULL_BARRIERS
    assert {f.source for f in found if f.barriers["waiting"]} == WAITING_BARRIERS


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"vector_registers": 257}, "257 vector registers; 256 are there"),
        ({"vector_spills": 1}, "spills 1 vector registers; 0 are allowed"),
        ({"scratch_bytes": 4}, "4 bytes of scratch; 0 are allowed"),
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
file            architecture                             vector  scalar   scratch  LDS    barriers  exchanges
rec_columns     gfx1030 gfx1100 gfx1151 gfx1200 gfx1201  189     107      0        0      0/0/36    936+0
rec_keyhead     gfx1030 gfx1100 gfx1151 gfx1200 gfx1201  256     107      0        0      0/0/63    2265+0
step            gfx1030                                  256+33  107+76   136      20544  28/0/0    566+0
step            gfx1100                                  256+31  107+80   128      20544  28/0/0    566+0
step            gfx1151                                  256+31  107+67   128      20544  28/0/0    566+0
step            gfx1200 gfx1201                          256+31  107+68   128      20544  28/0/0    566+0
step_norm       gfx1030                                  256+36  107+112  148      20544  32/5/0    343+0
step_norm       gfx1100                                  256+34  107+97   140      20544  32/5/0    343+0
step_norm       gfx1151                                  256+34  107+102  140      20544  32/5/0    343+0
step_norm       gfx1200 gfx1201                          256+34  107+93   140      20544  32/5/0    343+0
verify          gfx1030                                  256+16  107+129  68       20544  28/0/0    566+0
verify          gfx1100                                  256+13  107+115  56       20544  28/0/0    566+0
verify          gfx1151                                  256+13  107+117  56       20544  28/0/0    566+0
verify          gfx1200 gfx1201                          256+14  107+94   60       20544  28/0/0    566+0
verify_norm     gfx1030                                  256+21  107+162  88       20544  32/0/0    343+0
verify_norm     gfx1100                                  256+21  107+174  88       20544  32/0/0    343+0
verify_norm     gfx1151                                  256+19  107+156  80       20544  32/0/0    343+0
verify_norm     gfx1200 gfx1201                          256+19  107+157  80       20544  32/0/0    343+0
verify_tree     gfx1030                                  238     107+47   0        8704   16/0/2    512+0
verify_tree     gfx1100 gfx1151                          236     107+31   0        8704   16/0/2    512+0
verify_tree     gfx1200 gfx1201                          237     107+38   0        8704   16/0/2    512+0
commit_verify   gfx1030                                  256+47  107+223  192      20544  28/0/0    566+0
commit_verify   gfx1100                                  256+47  107+218  192      20544  28/0/0    566+0
commit_verify   gfx1151                                  256+47  107+214  192      20544  28/0/0    566+0
commit_verify   gfx1200 gfx1201                          256+47  107+170  192      20544  28/0/0    566+0
commit          gfx1030 gfx1151                          204     44       0        0      0/0/0     0+0
commit          gfx1100                                  204     43       0        0      0/0/0     0+0
commit          gfx1200 gfx1201                          204     46       0        0      0/0/0     0+0
conv_commit     gfx1030 gfx1100 gfx1151 gfx1200 gfx1201  15      52       0        0      0/0/0     0+0
causal_conv1d   gfx1030 gfx1100 gfx1151                  83      95       0        0      0/0/0     480+0
causal_conv1d   gfx1200 gfx1201                          83      96       0        0      0/0/0     480+0
conv_gates      gfx1030                                  37      86       0        0      0/0/3     0+0
conv_gates      gfx1100 gfx1200 gfx1201                  35      86       0        0      0/0/3     0+0
conv_gates      gfx1151                                  35      85       0        0      0/0/3     0+0
verify_layer    gfx1030 gfx1100 gfx1151 gfx1200 gfx1201  161     86       1984     20544  26/0/0    313+0
qk_l2norm       gfx1030                                  87      36       0        0      0/0/0     60+0
qk_l2norm       gfx1100 gfx1151                          81      34       0        0      0/0/0     60+0
qk_l2norm       gfx1200 gfx1201                          89      36       0        0      0/0/0     60+0
gdn_gates       gfx1030 gfx1100 gfx1151                  40      58       0        0      0/0/0     0+0
gdn_gates       gfx1200 gfx1201                          40      62       0        0      0/0/0     0+0
gated_rms_norm  gfx1030                                  156     77       0        0      0/0/0     60+0
gated_rms_norm  gfx1100 gfx1151                          150     59       0        0      0/0/0     60+0
gated_rms_norm  gfx1200 gfx1201                          161     62       0        0      0/0/0     60+0
""",
    )
