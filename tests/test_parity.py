"""`python -m strata_gdn parity`: that it passes, and that it notices each thing that it is there to notice."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from strata_gdn import __main__ as command_line
from strata_gdn import parity, reference, registry
from strata_gdn.bench.arms import left_out
from strata_gdn.bench.case import Arm, Case
from strata_gdn.bench.prompts import prompt_calls
from strata_gdn.parity import bound, calls, check, prompts, turns
from strata_gdn.parity.compare import difference_in_bits, distance
from strata_gdn.parity.inputs import BF16, DTYPES, F16, F32, Heads
from strata_gdn.parity.kernels import GPU_SWITCHES, ISAS, choices, shape_of
from strata_gdn.parity.prompts import Prompt

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GATES = "gdn_gates f32"
OWN_ISAS = ISAS[: ISAS.index(registry.cpu_arch().removeprefix("cpu-")) + 1]


def run(*arguments: str) -> int:
    return command_line.main(["parity", *arguments])


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """The table is one call."""

    def keep(name: str) -> None:
        made = (calls.CALLS | calls.MORE_CALLS)[name]
        monkeypatch.setattr(check, "CALLS", {name: made})
        monkeypatch.setattr(check, "MORE_CALLS", {})
        monkeypatch.setattr(check, "prompts", lambda tokens: [])

    return keep


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[..., None]], None]:
    """`plant(op, f)`: the first call after the plain one ends with f(results, arguments)."""

    def plant(op: str, wrong: Callable[[Any, dict[str, Any]], None]) -> None:
        own, made = getattr(torch.ops.strata_gdn, op), []

        def faulty(**arguments: Any) -> Any:
            results = own(**arguments)
            made.append(op)
            if len(made) == 2:
                wrong(results, arguments)
            return results

        monkeypatch.setattr(torch.ops.strata_gdn, op, faulty)

    return plant


def flip_last_bit(x: Tensor, at: tuple[int, ...]) -> None:
    x.view({4: torch.int32, 2: torch.int16}[x.element_size()])[at] ^= 1


# What passes


@pytest.mark.parametrize("op", parity.OPS)
def test_every_op(op: str, capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    file = tmp_path / "parity.json"
    assert run("--op", op, "--tokens", "3", "--json", str(file)) == 0
    record = json.loads(file.read_text())
    assert record["checks"] > 0
    assert last_line(capsys) == f"{record['checks']} checks, 0 failures"
    assert record["checks"] == sum(row["checks"] for row in record["rows"])
    assert {row["op"] for row in record["rows"]} == {op}
    assert [row["case"] for row in record["rows"]][-1] == "every kernel is reached"
    assert {row["config"].get("isa") for row in record["rows"]} == {*OWN_ISAS, None}


def test_prompts_are_held_against_float64(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    file = tmp_path / "parity.json"
    assert run("--op", "gated_delta_rule", "--tokens", "9", "65", "--json", str(file)) == 0
    rows = [row for row in json.loads(file.read_text())["rows"] if row["case"].startswith("T=")]
    assert len(rows) == len(list(prompts.prompts((9, 65)))) * len(OWN_ISAS)
    table = capsys.readouterr().out
    for row in rows:
        assert set(row["distances"]) == {"o", "state"}
        for found in row["distances"].values():
            assert 0 < found["used"] <= 1
            assert f"{found['largest']:.1e}" in table
            assert ",".join(map(str, found["at"])) in table


def test_any_two_values_of_two_columns_meet() -> None:
    table = [
        {"group": p.heads.HV // p.heads.H, "K": p.heads.K, "V": p.heads.V} | p._asdict()
        for p in prompts.prompts()
        if p.tokens <= prompts.SHORT_TOKENS
    ]
    columns = [name for name in table[0] if name != "heads"]
    for a, b in combinations(columns, 2):
        together = {(row[a], row[b]) for row in table}
        assert len(together) == len({row[a] for row in table}) * len({row[b] for row in table}), f"{a} and {b}"
    every = [p.tokens for p in prompts.prompts()]
    assert set(every) == set(prompts.TOKENS)
    assert {p.heads.HV // p.heads.H for p in prompts.prompts() if p.tokens > 64} == set(prompts.LONG_GROUPS)


def test_memory_is_poisoned() -> None:
    with check.poisoned_memory():
        assert torch.empty(3).isnan().all()


# What fails


def test_one_flipped_bit(only: Any, fault: Any, capsys: pytest.CaptureFixture[str]) -> None:
    only(GATES)
    fault("gdn_gates", lambda results, _: flip_last_bit(results[1], (1, 2, 3)))
    assert run("--op", "gdn_gates") == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].endswith(" checks, 1 failures")
    assert err.startswith(
        f"strata_gdn: gdn_gates: f32, gates_cpu (isa {OWN_ISAS[0]}): result 1: 1 of 60 elements differ in bits;"
    )
    assert "the worst at [1, 2, 3]: 0." in err


@pytest.mark.parametrize("where", ["state", "beside it"])
def test_a_flipped_bit_in_a_pool(only: Any, fault: Any, where: str, capsys: pytest.CaptureFixture[str]) -> None:
    only("gated_delta_rule_ f32 vk")
    slot = {"state": lambda state: state, "beside it": lambda state: state.as_strided((1,), (1,), state.stride(0) - 1)}
    fault("gated_delta_rule_", lambda _, arguments: flip_last_bit(slot[where](arguments["state"]), (0,)))
    assert run("--op", "gated_delta_rule_") == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].endswith(" checks, 1 failures")
    assert "memory of state: " in err


def test_a_missing_nan(only: Any, fault: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def forget_one(results: Any, _: dict[str, Any]) -> None:
        g = results[0].view(-1)
        g[g.isnan().nonzero()[0]] = 0.0

    only("gdn_gates special values")
    fault("gdn_gates", forget_one)
    assert run("--op", "gdn_gates") == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].endswith(" checks, 1 failures")
    assert "0.0 (0x00000000), expected nan (0x" in err


def test_another_kernel_than_the_one_asked_for(
    only: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(GATES)
    own = torch.ops.strata_gdn.gdn_gates

    def faulty(**arguments: Any) -> Any:
        results = own(**arguments)
        registry.reset_served()
        return results

    monkeypatch.setattr(torch.ops.strata_gdn, "gdn_gates", faulty)
    assert run("--op", "gdn_gates") == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].endswith(f" checks, {len(OWN_ISAS)} failures")
    assert err.splitlines()[0].endswith("asked for gates_cpu; served: {}")


def test_an_op_of_several_kernels_counts_for_each(
    only: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row of the registry that is several launches: each kernel once, and no other."""
    only(GATES)
    decision = registry.Decision("commit, verify_tree", {}, "", ())
    monkeypatch.setattr(check, "asked", lambda *_, **__: [(decision, {})])
    counts = iter([{"commit": 3}, {"commit": 3, "commit, verify_tree": 1}, {"commit": 3}, {"commit": 5}])
    monkeypatch.setattr(registry, "served", lambda: next(counts))
    assert run("--op", "gdn_gates") == 0
    assert run("--op", "gdn_gates") == 1
    err = capsys.readouterr().err
    assert err.splitlines()[0].endswith("asked for commit, verify_tree; served: {'commit': 2}")


def test_a_kernel_that_no_call_reaches(only: Any, capsys: pytest.CaptureFixture[str]) -> None:
    only(GATES)
    assert run("--op", "qk_l2norm") == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "1 checks, 1 failures"
    assert f"no call reached {', '.join(f'l2norm_cpu for {isa}' for isa in OWN_ISAS)}\n" in err


def test_nothing_checked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check, "asked", lambda *_, **__: [])
    assert run("--op", "gdn_gates") == 1
    assert capsys.readouterr().out.splitlines()[1:] == ["", "gdn_gates", f"  no kernel on {registry.cpu_arch()}", "",
                                                        "0 checks, 0 failures"]  # fmt: skip


def test_a_prompt_outside_its_bound(
    only: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = bound.prompt
    one = Prompt(5, Heads(1, 2, 64, 64), F32)
    only("gated_delta_rule f32 kv")
    monkeypatch.setattr(check, "prompts", lambda tokens: [one])
    monkeypatch.setattr(bound, "prompt", lambda *arguments: tuple(b / 1e4 for b in own(*arguments)))
    assert run("--op", "gated_delta_rule") == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].endswith(f" checks, {2 * len(OWN_ISAS)} failures")
    assert err.count("bounds from float64 at [") == 2 * len(OWN_ISAS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--op", "foo"], ["argument --op: invalid choice: 'foo'", *parity.OPS]),
        (["--tokens", "0"], ["argument --tokens: expected a number of at least 1; got '0'"]),
        (["--device", "tpu"], ["argument --device: invalid choice: 'tpu'", "cpu", "cuda"]),
    ],
)
def test_options_that_are_refused(arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        run(*arguments)
    assert exit_status.value.code == 2
    error = capsys.readouterr().err
    for word in words:
        assert word in error


def test_what_this_machine_cannot_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run("--device", "cuda") == 2
    assert run("--bench") == 2
    assert run("--json", "no/such/folder/x.json") == 2
    assert capsys.readouterr().err.splitlines() == [
        "strata_gdn: --device cuda needs a GPU that torch sees and a build with kernels for it",
        "strata_gdn: --bench needs --device cuda and takes no --op",
        "strata_gdn: no folder to write no/such/folder/x.json to",
    ]


# What can serve


def test_every_switch_of_the_gpus_kernels_is_tried() -> None:
    """On every architecture, those apart that are no kernel's own or that ask for another precision's bits."""
    for arch in ("sm_75", "sm_80", "sm_90", "sm_120"):
        for op in parity.OPS:
            read = set(registry.switches_read(op, arch)) - {"GDN_EMULATE", "GDN_CHUNKED"}
            assert read <= set(GPU_SWITCHES)
            tried = choices(op, arch)
            assert all(set(switches) == read for switches in tried)
            every = math.prod(len(GPU_SWITCHES[name]) for name in read)
            assert len({tuple(switches.items()) for switches in tried}) == len(tried) == every


WITH_HEADS = [name for name in calls.CALLS if name.startswith(("gated_delta", "gdn_decode", "gdn_verify"))]


@pytest.mark.parametrize("name", WITH_HEADS)
def test_what_a_decision_goes_by(name: str) -> None:
    made = calls.call(name).arguments
    found = shape_of(made)
    for state in [made[n] for n in ("initial_state", "state", "states") if n in made]:
        K, V = (found[n] for n in "kv")
        rows = {"kv": (K, V), "vk": (V, K)}[made.get("state_layout", "kv")]
        assert (state[0] if isinstance(state, list) else state).shape[1:] == (found["hv"], *rows)
    assert found["tree"] == (made.get("parents") is not None)
    if "cu_seqlens" in made:
        lengths = made["cu_seqlens"].diff().tolist()
        assert (found["n"], found["tokens"]) == (len(lengths), math.ceil(sum(lengths) / len(lengths)))


# Times


class OneCall:
    """On the CPU: taking a call down is one call, and the samples are given."""

    def record(self, call: Callable[[], Any]) -> Any:
        return call()

    def time(self, recorded: list[Any]) -> list[list[float]]:
        return [[2.0, 1.0, 4.0], [3.0, 3.0, 3.0]][: len(recorded)]


def test_kernels_in_turn() -> None:
    arms = (
        Arm(("rec_cpu",), {"GDN_CPU_ISA": "baseline"}),
        Arm(("rec_cpu",)),
        Arm(("rec_columns",)),  # is said to serve, and does not
        Arm(("rec_keyhead",), {"GDN_KEYHEAD": 1}),  # is not on this device
    )
    case = Case("prompt HV=2 H=1", "gated_delta_rule", 1, 2, 3, arms, prompt_calls)
    results, failures = turns.results_of(case, torch.device("cpu"), OneCall())
    assert [(r.kernel, r.tokens, r.median, r.ratio, r.chosen) for r in results] == [
        ("rec_cpu", 3, 2.0, 1.0, registry.cpu_arch() == "cpu-baseline"),
        ("rec_cpu", 3, 3.0, 1.5, True),
    ]
    assert failures == ["prompt HV=2 H=1, 3 tokens, 1 sequence: expected rec_columns with no switches; served: rec_cpu"]


def test_what_takes_turns() -> None:
    """For few tokens the decode kernel too; without it nothing but the recurrences."""
    for case in turns.cases_of([16, 17]):
        timed = [str(arm) for arm in case.arms if left_out(case, arm, "sm_90", 132) is None]
        assert timed == ["rec_columns", "rec_keyhead", "step"][: 3 if case.tokens == 16 else 2]
    assert {case.tokens for case in turns.cases_of(None)} == {128, 512, 2048, 4096, 8192, 32768}


# What a sanitizer sees


@pytest.fixture
def every_cuda_kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).resolve().parent.parent / "tools")
    return importlib.import_module("every_cuda_kernel")


def test_every_cuda_kernel_is_launched(every_cuda_kernel: Any) -> None:
    """Decided for an H200: all rows of the registry; all instances of the kernels that hold states."""
    kernels, instances = set(), set()
    for made in every_cuda_kernel.every_call():
        shape, arguments = shape_of(made.arguments), made.arguments
        if arguments.get("precision") == "fp32":
            for switches in every_cuda_kernel.ORDERED:
                decision = registry.decide(made.op, arch="sm_90", sms=132, **shape, precision="fp32", env=switches)
                kernels.add(decision.kernel)
                how = decision.config["heads"], "pipelined" in decision.config
                instances.add((decision.kernel, shape["k"], arguments["q"].dtype, how))
            continue
        for switches in choices(made.op, "sm_90"):
            decision = registry.decide(made.op, arch="sm_90", sms=132, **shape, env=switches)
            kernels.add(decision.kernel)
            if decision.kernel.startswith("rec_"):
                how = decision.config["heads"], decision.config["columns"], "pipelined" in decision.config
                instances.add((decision.kernel, shape["k"], arguments["q"].dtype, how))
            elif "state" in arguments and "k" in shape and "qkv" not in arguments:
                odd = arguments["state"].data_ptr() % 16 > 0
                how = "one by one" if odd else arguments.get("state_layout", "kv")
                instances.add((decision.kernel, shape["k"], how))
    assert every_cuda_kernel.never_ran("sm_90", kernels) == []
    assert every_cuda_kernel.never_ran("sm_90", kernels - {"step"}) == ["step"]
    held = ("step", "verify", "verify_tree", "commit", "commit_verify", "commit, verify_tree")
    wanted = {(kernel, K, how) for kernel in held for K in (64, 128, 256) for how in ("kv", "vk", "one by one")}
    shapes = [("rec_columns", K, ("1", "16")) for K in (64, 128, 256)] + [("rec_columns", 128, ("1", "8"))]
    shapes += [("rec_keyhead", K, (heads, "16")) for K in (64, 128) for heads in "234"]
    shapes += [("rec_keyhead", 256, ("2", "16"))]
    wanted |= {
        (kernel, K, dtype, (*how, off)) for kernel, K, how in shapes for dtype in DTYPES for off in (False, True)
    }
    chunked = [(K, heads) for K in (64, 128) for heads in "123"] + [(256, "1")]
    wanted |= {
        ("chunk_fp32", K, dtype, (heads, off)) for K, heads in chunked for dtype in DTYPES for off in (False, True)
    }
    assert wanted <= instances


def test_the_sanitizers_calls_can_be_made(every_cuda_kernel: Any) -> None:
    """On the CPU; slots that are skipped, branches and odd addresses are among them."""
    made = list(every_cuda_kernel.every_call())
    assert {one.arguments.get("precision") for one in made} == {None, "exact", "fp32"}
    for one in made:  # the CPU has the exact lane alone
        type(one)(one.op, one.arguments | ({"precision": "exact"} if "precision" in one.arguments else {})).run()
    on_states = [one.arguments for one in made if "state_indices" in one.arguments]
    assert sum(bool((x["state_indices"] < 0).any()) for x in on_states) > len(every_cuda_kernel.STATES)
    assert any(x.get("parents") is not None for x in on_states)


# Comparisons


def test_bits() -> None:
    nan, other_nan = torch.tensor([torch.nan, 1.0]), torch.tensor([-torch.nan, 1.0])
    assert difference_in_bits(nan, other_nan) == ""
    assert "at [0]: 0.0 (0x00000000), expected nan" in difference_in_bits(torch.tensor([0.0, 1.0]), nan)
    assert "at [0]: nan" in difference_in_bits(nan, torch.tensor([0.0, 1.0]))
    assert "at [1]: -0.0 (0x8000), expected 0.0 (0x0000)" in difference_in_bits(
        torch.tensor([1.0, -0.0]).bfloat16(), torch.tensor([1.0, 0.0]).bfloat16()
    )
    assert difference_in_bits(torch.zeros(2), torch.zeros(3)).startswith("shape")
    assert difference_in_bits(torch.zeros(2), torch.zeros(2).half()).startswith("dtype")


BOUNDED = [
    Prompt(1, Heads(1, 2, 64, 64), F32),
    Prompt(33, Heads(2, 4, 128, 64), BF16, "vk", "tiled", True, 2),
    Prompt(65, Heads(1, 2, 256, 64), F16, qk_l2norm=False),
    Prompt(1000, Heads(1, 4, 128, 64), F32),
]


def exact_and_bounds(prompt: Prompt) -> tuple[dict[str, Any], list[Tensor], list[Tensor]]:
    arguments = prompt.call().arguments
    exact = reference.gated_delta_rule(**arguments, chunk_size=check.CHUNK)
    return arguments, list(exact), list(bound.prompt(arguments, exact[0]))


@pytest.mark.parametrize("prompt", BOUNDED, ids=str)
def test_the_bound_holds_and_two_and_a_half_bounds_do_not_pass(prompt: Prompt) -> None:
    arguments, exact, bounds = exact_and_bounds(prompt)
    for actual, want, allowed in zip(torch.ops.strata_gdn.gated_delta_rule(**arguments), exact, bounds, strict=True):
        assert distance(actual, want, allowed).within
        pushed = actual.double()
        at = torch.unravel_index(torch.randint(pushed.numel(), ()), pushed.shape)
        pushed[at] += torch.where(pushed[at] < want[at], -2.5, 2.5) * allowed.expand_as(want)[at]
        found = distance(pushed, want, allowed)
        assert not found.within
        assert found.at == tuple(map(int, at))
        pushed[at] = torch.nan
        assert not distance(pushed, want, allowed).within


@pytest.mark.parametrize("prompt", [BOUNDED[0], BOUNDED[3]], ids=str)
def test_arithmetic_with_fewer_bits_does_not_pass(prompt: Prompt) -> None:
    """A state that keeps as many bits as TF32 has, from one piece of a prompt to the next."""
    arguments, exact, bounds = exact_and_bounds(prompt)
    state, piece_tokens = arguments["initial_state"], 8
    for begin in range(0, prompt.tokens, piece_tokens):
        piece = {n: arguments[n][:, begin : begin + piece_tokens] for n in ("q", "k", "v", "g", "beta")}
        kept = (state.contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32)
        _, state = torch.ops.strata_gdn.gated_delta_rule(**arguments | piece | {"initial_state": kept})
    assert not distance(state, exact[1], bounds[1]).within


def test_the_bound_knows_where_it_ends() -> None:
    arguments = Prompt(5, Heads(1, 1, 64, 64), F32, qk_l2norm=False).call().arguments
    arguments["k"] *= 10
    with pytest.raises(ValueError, match=r"the bound holds for β‖k‖² below 2; got \d"):
        bound.prompt(arguments, arguments["v"].double())


# On a GPU


@needs_gpu
def test_on_the_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    file = tmp_path / "parity.json"
    assert run("--device", "cuda", "--tokens", "1", "17", "--json", str(file)) == 0
    rows = json.loads(file.read_text())["rows"]
    assert {"rec_columns", "rec_keyhead"} <= {row["kernel"] for row in rows}


@needs_gpu
def test_bench_on_the_gpu(tmp_path: Any) -> None:
    file = tmp_path / "bench.json"
    assert run("--device", "cuda", "--bench", "--tokens", "128", "--json", str(file)) == 0
    record = json.loads(file.read_text())
    assert {r["kernel"] for r in record["results"]} == {"rec_columns", "rec_keyhead"}
    assert run("--device", "cuda", "--bench", "--tokens", "4", "--json", str(file)) == 0
    few = json.loads(file.read_text())
    assert {r["kernel"] for r in few["results"]} == {"rec_columns", "rec_keyhead", "step"}
    assert [r["kernel"] for r in few["results"] if r["chosen"]] == ["step"] * 3
    assert not few["failed"]
    assert all(min(r["seconds"]) > 0 for r in record["results"])
    assert not record["failed"]
