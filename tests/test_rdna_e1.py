"""E1 on RDNA: the package's kernels, compiled for five targets and run by the RDNA runner, give the CPU's bits.

GDN_RDNA_LONG=1 adds longer prompts, more shapes and the larger calls.
"""

from __future__ import annotations

import os
import re
from typing import Any

import cases
import pytest
import torch
from cases import BF16, CALLS, DTYPES, F16, F32, Call, Heads, call
from compare import assert_same_bits
from rdna_cases import ARCHES, each_arch, needs_compilers

from strata_gdn.parity.calls import MORE_CALLS
from strata_gdn.parity.kernels import choices, distinct, shape_of

pytestmark = needs_compilers

if not needs_compilers.args[0]:
    import run_rdna
    from rdna import toolchain
    from rdna.ops import MULTIPROCESSORS, Ops, Options

LONG = os.environ.get("GDN_RDNA_LONG") == "1"


@pytest.fixture(scope="session")
def all_ops() -> dict[str, Ops]:
    return {}


@pytest.fixture
def ops(arch: str, all_ops: dict[str, Ops]) -> Ops:
    if arch not in all_ops:
        all_ops[arch] = Ops(arch)
    all_ops[arch].runner.options = Options()
    return all_ops[arch]


def same_as_on_the_cpu(ops: Ops, made: Call, what: str, **switches: Any) -> None:
    """Results and all argument memory of a call on the CPU and of the same call under the runner."""
    here = made.copy()
    expected = here.run()
    before = ops.runner.launches.total()
    with ops.device(**switches):
        there = made.copy()
        actual = there.run(ops)
    assert ops.runner.launches.total() > before, f"{what}: nothing was launched"
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert_same_bits(a, e, f"{what}: result {i}")
    for (name, a), (_, e) in zip(there.buffers(), here.buffers(), strict=True):
        assert_same_bits(a, e, f"{what}: {name}")


@each_arch
@pytest.mark.parametrize("name", CALLS)
def test_every_op(ops: Ops, name: str) -> None:
    same_as_on_the_cpu(ops, call(name), name)


def prompt(heads: Heads, tokens: int, dtype: torch.dtype = BF16, layout: str = "kv", **options: Any) -> Call:
    made = cases.recurrence(heads, 1, tokens, dtype)
    made |= {"state": cases.state_pool(heads, 1, layout), "qk_l2norm": True, "state_layout": layout}
    return Call("gated_delta_rule_", made | options)


PROMPT_KERNELS = {
    "rec_columns": {"GDN_STEP": 0, "GDN_KEYHEAD": 0, "GDN_LANES": 0},
    "rec_keyhead": {"GDN_STEP": 0, "GDN_KEYHEAD": 1},
    "rec_lanes, one column": {"GDN_STEP": 0, "GDN_KEYHEAD": 0, "GDN_LANES": 1},
    "rec_lanes, two columns": {"GDN_STEP": 0, "GDN_KEYHEAD": 0, "GDN_LANES": 2},
}
PROMPTS = {
    "rec_columns": [*((Heads(1, 1, 128, 64), T) for T in (1, 17, 33, 65)), (Heads(1, 2, 64, 64), 18),
                    (Heads(1, 2, 256, 64), 9)],
    "rec_keyhead": [(Heads(1, 4, 128, 64), 1), (Heads(1, 4, 128, 64), 33), (Heads(1, 2, 64, 64), 18),
                    (Heads(1, 2, 256, 64), 9)],
    "rec_lanes, one column": [(Heads(1, 1, 128, 64), 33), (Heads(1, 1, 64, 64), 18), (Heads(1, 1, 256, 64), 9)],
    "rec_lanes, two columns": [*((Heads(1, 1, 128, 64), T) for T in (1, 8, 33)), (Heads(1, 2, 64, 64), 18),
                               (Heads(1, 1, 256, 64), 9)],
}  # fmt: skip
# A prompt's own choice.
DEFAULTS = dict.fromkeys(ARCHES, "rec_columns") | dict.fromkeys(("gfx1151", "gfx1200", "gfx1201"), "rec_lanes")
if LONG:
    for grid in PROMPTS.values():
        grid += [(Heads(2, 8, K, V), T) for K in (64, 128, 256) for V in (64, 128, 256) for T in (5, 65, 257)]


@each_arch
@pytest.mark.parametrize(
    ("kernel", "heads", "tokens"), [(kernel, *shape) for kernel, grid in PROMPTS.items() for shape in grid]
)
def test_prompts(ops: Ops, kernel: str, heads: Heads, tokens: int) -> None:
    before = ops.runner.launches.copy()
    same_as_on_the_cpu(ops, prompt(heads, tokens), f"{kernel}, {heads}, T={tokens}", **PROMPT_KERNELS[kernel])
    assert sources(ops, ops.runner.launches - before) == {kernel.split(",")[0]}


@each_arch
def test_the_registrys_own_choice(arch: str, ops: Ops) -> None:
    before = ops.runner.launches.copy()
    same_as_on_the_cpu(ops, prompt(Heads(1, 2, 128, 64), 20), "a prompt")
    assert sources(ops, ops.runner.launches - before) == {DEFAULTS[arch]}


@each_arch
@pytest.mark.parametrize("kernel", PROMPT_KERNELS)
@pytest.mark.parametrize(("dtype", "layout", "head_map"), [(F32, "vk", "grouped"), (F16, "kv", "tiled")])
def test_dtypes_layouts_and_maps(ops: Ops, kernel: str, dtype: torch.dtype, layout: str, head_map: str) -> None:
    assert dtype in DTYPES
    made = prompt(Heads(2, 8, 128, 64), 19, dtype, layout, head_map=head_map)
    same_as_on_the_cpu(ops, made, kernel, **PROMPT_KERNELS[kernel])


@each_arch
@pytest.mark.parametrize(
    "name", [name for name in MORE_CALLS if LONG or re.search(r"special|gaps|odd|nan|contiguous, ", name)]
)
def test_special_values_gaps_and_odd_addresses(ops: Ops, name: str) -> None:
    same_as_on_the_cpu(ops, call(name), name)


@each_arch
@pytest.mark.parametrize("op", ["gated_delta_rule_commit_layers_", "causal_conv1d_commit_layers_"])
def test_a_split_step_commits_all_layers_at_once(ops: Ops, op: str) -> None:
    """With GDN_SPLIT=1 the batched commit was lost once, silently: the bits are the same."""
    launches = {}
    for commit_split in (None, 0):
        before = ops.runner.launches.total()
        made = call(next(name for name in CALLS if name.startswith(op)))
        same_as_on_the_cpu(ops, made, op, GDN_SPLIT=1, GDN_COMMIT_SPLIT=commit_split)
        launches[commit_split] = ops.runner.launches.total() - before
    assert launches == {None: 1, 0: len(made.arguments["states"])}
    assert launches[0] > 1


def first_of_each_op() -> list[str]:
    return list({name.split()[0]: name for name in reversed(CALLS)}.values())


@each_arch
@pytest.mark.parametrize("name", CALLS if LONG else first_of_each_op())
def test_every_configuration(ops: Ops, name: str) -> None:
    """By all switches that the op's kernels go by, each kernel and configuration once."""
    made, arch = call(name), ops.runner.arch
    for _, switches in distinct(made.op, arch, MULTIPROCESSORS, choices(made.op, arch), **shape_of(made.arguments)):
        same_as_on_the_cpu(ops, made, f"{name}, {switches}", **switches)


# What divides, takes a root, or approximates with the processor's exp2 and reciprocal.
APPROXIMATE = re.compile("conv1d |conv1d_ |conv1d_verify|gates|norm|layer|delta_rule_ ")


@each_arch
@pytest.mark.parametrize("ulp", ["up", "down", "either"])
@pytest.mark.parametrize("name", [name for name in CALLS if APPROXIMATE.search(name) and (LONG or "many" not in name)])
def test_less_exact_hardware(ops: Ops, name: str, ulp: str) -> None:
    """The processor's rcp, rsq, sqrt, exp2 and log2 may be off by a unit in the last place."""
    ops.runner.options = Options(ulp=ulp)
    same_as_on_the_cpu(ops, call(name), f"{name}, {ulp}")


@each_arch
@pytest.mark.parametrize("seed", range(1, 9 if LONG else 3))
def test_waves_in_any_order(ops: Ops, seed: int) -> None:
    ops.runner.options = Options(seed=seed)
    for name in ("gated_delta_rule_verify tree", "gated_delta_rule_commit_verify_ chain", "gdn_decode_layer_ bf16"):
        same_as_on_the_cpu(ops, call(name), f"{name}, seed {seed}")
    same_as_on_the_cpu(ops, prompt(Heads(1, 1, 128, 64), 33), f"prompt, seed {seed}", **PROMPT_KERNELS["rec_columns"])


def sources(ops: Ops, launches: dict[str, int]) -> set[str]:
    """The files in csrc/cuda that the kernels come from."""
    arch = ops.runner.arch
    files = {path.stem for path in toolchain.KERNELS}
    found = {re.sub(rf"^[0-9a-f]+_(\w+)_{arch}$", r"\1", ops.runner.kernels[name].code.stem) for name in launches}
    assert found <= files
    return found


@each_arch
def test_every_file_is_reached(arch: str) -> None:
    ops = Ops(arch)
    for name in CALLS:
        same_as_on_the_cpu(ops, call(name), name)
    same_as_on_the_cpu(ops, call("gdn_verify_layer chain"), "one launch", GDN_FUSED_LAYER=1, GDN_SPLIT=0)
    for split, convl2 in ((0, 0), (0, 1), (1, 1)):
        for name in ("gdn_decode_layer_ bf16", "gdn_verify_layer chain"):
            same_as_on_the_cpu(ops, call(name), name, GDN_SPLIT=split, GDN_CONVL2=convl2)
    for kernel, switches in PROMPT_KERNELS.items():
        same_as_on_the_cpu(ops, prompt(Heads(1, 2, 64, 64), 3), kernel, **switches)
    assert sources(ops, ops.runner.launches) == {path.stem for path in toolchain.KERNELS}


@pytest.mark.parametrize("arch", [pytest.param(a, marks=pytest.mark.xdist_group(f"rdna_{a}")) for a in ARCHES[-1:]])
def test_the_tool(arch: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_rdna.main([arch, "--call", "qk_l2norm f32", "--ulp", "up", "--seed", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"{arch}  qk_l2norm f32: the same bits; \d+ valu, .*", lines[0])
    assert lines[-1] == "1 calls, 0 failures"
    assert run_rdna.main([arch, "--call", "no such call"]) == 1
    with pytest.raises(SystemExit):
        run_rdna.main(["gfx90a"])
    assert "gfx90a: the targets are gfx1030, gfx1100" in capsys.readouterr().err


@pytest.mark.parametrize("arch", [pytest.param(a, marks=pytest.mark.xdist_group(f"rdna_{a}")) for a in ARCHES[-1:]])
def test_a_wrong_instruction_is_seen(arch: str) -> None:
    """The control of all of the above: one fma of a kernel turned into another."""
    ops, made = Ops(arch), call("qk_l2norm f32")
    same_as_on_the_cpu(ops, made, "before")
    (kernel,) = ops.runner.launches
    ops.runner.edit(kernel, lambda text: re.sub(r"\tv_fma_f32 (v\d+), (v\d+)", r"\tv_fma_f32 \1, -\2", text, count=1))
    with pytest.raises(AssertionError, match=r"elements differ in bits"):
        same_as_on_the_cpu(ops, made, "after")


@each_arch
def test_a_kernel_without_its_barriers(arch: str) -> None:
    """A race in the package's own kernels is seen, whatever the bits are."""
    ops, made = Ops(arch), call("gated_delta_rule_ bf16 step")
    same_as_on_the_cpu(ops, made, "before")
    (kernel,) = ops.runner.launches
    ops.runner.edit(kernel, lambda text: re.sub(r"\ts_barrier[^/]*//", "\ts_nop 0 //", text))
    with pytest.raises(
        RuntimeError, match=r"^(LDS race|read of LDS that nobody wrote): .*; in _ZN3gdn3gpu11step_kernel"
    ):
        same_as_on_the_cpu(ops, made, "after")


@pytest.mark.parametrize("arch", [pytest.param(a, marks=pytest.mark.xdist_group(f"rdna_{a}")) for a in ARCHES[-1:]])
def test_a_fault_of_a_kernel_reaches_the_caller(arch: str) -> None:
    ops, made = Ops(arch), call("gated_delta_rule_ bf16 step")
    same_as_on_the_cpu(ops, made, "before")
    (kernel,) = ops.runner.launches
    ops.runner.edit(kernel, lambda text: re.sub(r"\ts_wait_dscnt 0x0 ", "\ts_nop 0 ", text))
    with pytest.raises(RuntimeError, match=r"^missing wait: .*; in _ZN3gdn3gpu11step_kernel.*, work-group \(\d"):
        same_as_on_the_cpu(ops, made, "after")
