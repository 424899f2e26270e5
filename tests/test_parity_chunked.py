"""`python -m strata_gdn parity --precision fp32`: that it passes, and that it notices what it is there to notice.

On a CPU, which has no such kernel, float32 torch in the kernel's order stands in for it (chunked_stand_in.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import chunked_stand_in
import pytest
import torch
from cases import BF16, DTYPES, F32, Heads

from strata_gdn import __main__ as command_line
from strata_gdn import registry
from strata_gdn.parity import chunked, chunked_cases
from strata_gdn.parity.chunked_cases import HARD, HARD_LIMIT, Case, cases
from strata_gdn.parity.prompts import DIMS, GROUPS, HEAD_MAPS, LAYOUTS, Prompt

OPS = ("gated_delta_rule", "gated_delta_rule_")
Results = dict[str, torch.Tensor]


def run(*arguments: str) -> int:
    return command_line.main(["parity", "--precision", "fp32", *arguments])


class StandIn:
    """Serves precision="fp32" on the CPU; `served` is said to have run, and `wrong` is done to the results."""

    def __init__(self) -> None:
        self.served = {"chunk_fp32": 1}
        self.wrong: Callable[[Results, dict[str, Any]], None] = lambda results, arguments: None

    def op(self, name: str) -> Callable[..., Any]:
        own, ours = getattr(torch.ops.strata_gdn, name), getattr(chunked_stand_in, name)

        def serve(precision: str, **arguments: Any) -> Any:
            if precision != "fp32":
                return own(**arguments, precision=precision)
            results = ours(**arguments)
            state = arguments["state"] if name.endswith("_") else results[1]
            self.wrong({"o": results if name.endswith("_") else results[0], "state": state}, arguments)
            return results

        return serve

    @contextmanager
    def launches(self) -> Iterator[dict[str, int]]:
        yield self.served


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()
    decision = registry.Decision("chunk_fp32", {"heads": "1"}, "", ())
    monkeypatch.setattr(registry, "decide", lambda *_, **__: decision)
    monkeypatch.setattr(chunked, "launches", made.launches)
    for name in OPS:
        monkeypatch.setattr(torch.ops.strata_gdn, name, made.op(name))
    return made


SOME = [
    "T=33 N=1 H=2 HV=4 K=128 V=256 float16 vk grouped",
    "T=1 N=1 H=2 HV=2 K=64 V=64 float32 kv grouped l2norm",
    "packed HV/H=2 K=128 V=256 bfloat16 vk grouped",
    "packed, pool HV/H=2 K=128 V=256 bfloat16 vk grouped",
    "padded, pool HV/H=1 K=64 V=128 float32 kv grouped",
    "g=-316 for some tokens: T=257 N=1 H=1 HV=3 K=128 V=128 bfloat16 kv grouped l2norm",
    "b=1.9, equal keys: T=257 N=1 H=1 HV=1 K=128 V=128 float32 kv grouped",
]
CHECKS = {F32: 1 + 8, BF16: 2 + 8 + 2}  # the kernel, two results against two with a control each; 16 bits: two more


def named(name: str) -> Case:
    return next(case for case in cases() if case.name.startswith(name))


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The table is these cases."""
    return lambda *names: monkeypatch.setattr(chunked, "cases", lambda tokens: [named(name) for name in names])


def test_what_passes(stand_in: StandIn, only: Any, capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    only(*SOME)
    file = tmp_path / "parity.json"
    assert run("--json", str(file)) == 0
    record, out = json.loads(file.read_text()), capsys.readouterr().out
    assert out.splitlines()[-1] == f"{record['checks']} checks, 0 failures"
    assert [row["kernel"] for row in record["rows"]] == ["chunk_fp32"] * len(SOME)
    for row in record["rows"]:
        dtype = F32 if "float32" in row["case"] else BF16
        assert row["checks"] > CHECKS[dtype]  # and all memory
        assert set(row["distances"]) == {"o", "state", "o - exact", "state - exact"}
        for name, found in row["distances"].items():
            assert 0 < found["used"] <= (0.2 if name in ("o", "state") else 1)
            assert f"{found['largest']:.1e}" in out
            assert ",".join(map(str, found["at"])) in out


# What fails


@pytest.mark.parametrize("result", ["o", "state"])
@pytest.mark.parametrize("name", SOME[1:5])
def test_two_and_a_half_bounds(
    name: str, result: str, stand_in: StandIn, only: Any, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Far below the limit against the exact lane, where the bound is as tight as that; in the last element."""
    only(name)
    bounds: Results = {}
    own = chunked._float64

    def remember(made: Any) -> Any:
        found = own(made)
        bounds.update({name: bound.expand_as(expected) for name, (expected, bound) in found.items()})
        return found

    monkeypatch.setattr(chunked, "_float64", remember)
    assert run() == 0
    at = tuple(int(i) for i in bounds[result].nonzero()[-1])
    off = 2.5 * bounds[result][at].item()

    def push(results: Results, arguments: dict[str, Any]) -> None:
        x = results[result]
        expected = own(chunked.Call("", before))[result][0][at] if x.dtype == F32 else x[at]
        x[at] = expected + off

    before = {n: x.clone() if isinstance(x, torch.Tensor) else x for n, x in wide(name).items()}
    stand_in.wrong = push
    capsys.readouterr()
    assert run() == 1
    err = capsys.readouterr().err
    assert f": {result} is 2.5 bounds from float64 at {list(at)}\n" in err


def wide(name: str) -> dict[str, Any]:
    """The arguments of the case as the harness makes them, with float32 activations."""
    made = seeded(name)
    return made | {n: made[n].float() for n in chunked.ACTIVATIONS}


def seeded(name: str) -> dict[str, Any]:
    case = named(name)
    chunked.seed(case)
    return case.make().arguments


@pytest.mark.parametrize("result", ["o", "state"])
def test_a_nan_too_many(result: str, stand_in: StandIn, only: Any, capsys: pytest.CaptureFixture[str]) -> None:
    only(SOME[1])

    def spoil(results: Results, arguments: dict[str, Any]) -> None:
        results[result][0, ..., -1, 3] = torch.nan

    stand_in.wrong = spoil
    assert run() == 1
    err = capsys.readouterr().err
    assert f": {result} is inf bounds from exact at [0, " in err
    assert f": {result} is inf bounds from float64 at [0, " in err


def test_a_missing_nan(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A NaN in the state of one column, which is then one in all of its outputs."""

    def make() -> Any:
        made = named(SOME[1]).make()
        made.arguments["initial_state"][0, 1, 2, 3] = torch.nan
        return made

    monkeypatch.setattr(chunked, "cases", lambda tokens: [Case("a NaN", make)])
    assert run() == 0

    def forget(results: Results, arguments: dict[str, Any]) -> None:
        assert results["o"][0, :, 1, 3].isnan().all()
        results["o"][0, 0, 1, 3] = 0.0

    stand_in.wrong = forget
    assert run() == 1
    err = capsys.readouterr().err
    assert ": o is inf bounds from exact at [0, 0, 1, 3]" in err
    assert ": o is inf bounds from float64 at [0, 0, 1, 3]" in err


@pytest.mark.parametrize("served", [{"rec_keyhead": 1}, {}, {"chunk_fp32": 2}, {"chunk_fp32": 1, "step": 1}])
def test_another_kernel(
    served: dict[str, int], stand_in: StandIn, only: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    only(SOME[1])
    stand_in.served = served
    assert run() == 1
    out, err = capsys.readouterr()
    assert err.endswith(f"asked for chunk_fp32; served: {served}\n")
    assert out.splitlines()[-1].endswith(" checks, 1 failures")


@pytest.mark.parametrize("where", ["another slot", "beside the slot", "keys"])
def test_memory_that_no_result_is_in(
    where: str, stand_in: StandIn, only: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    only(SOME[4])

    def write(results: Results, arguments: dict[str, Any]) -> None:
        pool = arguments["state"]
        unused = ({*range(len(pool))} - {*arguments["state_indices"].tolist()}).pop()
        x = {"another slot": pool[unused], "beside the slot": pool.as_strided((1,), (1,), pool.stride(0) - 1),
             "keys": arguments["k"]}[where]  # fmt: skip
        x.view(-1)[0:1].add_(1.0) if x.is_contiguous() else x[0, 0, 0, :1].add_(1.0)

    stand_in.wrong = write
    assert run() == 1
    err = capsys.readouterr().err
    assert f": memory of {'q' if where == 'keys' else 'state'}: 1 of " in err  # q, k and v are views of one


def test_sixteen_bits_that_are_not_the_rounded_ones(
    stand_in: StandIn, only: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    only(SOME[2])

    def flip(results: Results, arguments: dict[str, Any]) -> None:
        if results["o"].dtype != F32:
            results["o"].view(torch.int16)[0, 5, 1, 7] ^= 1

    stand_in.wrong = flip
    assert run() == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].endswith(" checks, 1 failures")
    assert ": o with torch.bfloat16: 1 of " in err
    assert "at [0, 5, 1, 7]" in err


def test_a_control_that_passes(
    stand_in: StandIn, only: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(SOME[1])
    monkeypatch.setattr(chunked, "CONTROL", 0.9)
    assert run() == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].endswith(" checks, 4 failures")
    assert [line.rpartition(": ")[2] for line in err.splitlines()] == [
        f"0.9 bounds from {what} pass" for what in ("exact", "float64") * 2
    ]


def test_a_device_without_the_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 1
    assert capsys.readouterr().out.splitlines()[-3:] == [f"  no kernel on {registry.cpu_arch()}", "",
                                                         "0 checks, 0 failures"]  # fmt: skip


def test_options_that_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    for more in (["--op", "gated_delta_rule"], ["--logits"]):
        assert run(*more) == 2
        assert capsys.readouterr().err == "strata_gdn: --precision fp32 takes none of --bench, --logits and --op\n"


# The table


def test_the_table_has_every_kind() -> None:
    made = list(chunked_cases.prompts(chunked_cases.TOKENS))
    assert {p.tokens for p in made} == set(chunked_cases.TOKENS)
    assert {(p.heads.K, p.heads.HV // p.heads.H) for p in made} == set(product(DIMS, GROUPS))
    assert {(p.heads.K, p.heads.V) for p in made} == set(product(DIMS, DIMS))
    assert {(p.layout, p.head_map, p.dtype) for p in made} == set(product(LAYOUTS, HEAD_MAPS, DTYPES))
    assert {p.tokens for p in made if p.heads == Heads(16, 48, 128, 128)} == {4099, 8192, 32768}
    names = [case.name for case in cases()]
    assert len(names) == len(set(names))
    assert {case.limit for case in cases() if case.name.split(":")[0] in HARD} == {HARD_LIMIT}


@pytest.mark.parametrize("name", HARD)
def test_hard_inputs_are_what_they_say(name: str) -> None:
    prompt = Prompt(40, Heads(1, 2, 64, 64), F32)
    a = chunked_cases._hard(name, prompt).arguments
    b = a["beta"].amax(-1) * a["k"].double().square().sum(-1).amax(-1)
    for text, holds in {
        "g=0": (a["g"] == 0).all(),
        "g=-316": (a["g"] == -316).all(),
        "g=-316 for some tokens": (a["g"] == -316).any() and (a["g"] > -1).any(),
        "g=-0.1": (a["g"] == -0.1).all(),
        "equal keys": (a["k"] == a["k"][:, :1]).all(),
        "beta=1": (a["beta"] == 1).all(),
        "b=1.9": not a["qk_l2norm"] and 1.8 < b.max() <= 1.9001,
        "v=25": (a["v"] == 25).all(),
        "|v|=25": (a["v"].abs() == 25).all(),
    }.items():
        if text in name.split(", ") or text == name:
            assert holds, text


# On a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_the_gpu(tmp_path: Any) -> None:
    file = tmp_path / "parity.json"
    assert run("--device", "cuda", "--tokens", "1", "65", "--json", str(file)) == 0
    assert {row["kernel"] for row in json.loads(file.read_text())["rows"]} == {"chunk_fp32"}
