"""The GPU's benchmark, as far as it needs no GPU: limits, the kernel that served, the record and what is printed.

Its cases are made on the CPU here, and a sample is one call by a clock that ticks once a call.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from strata_gdn import ops, registry
from strata_gdn._launches import kernels, launches
from strata_gdn.bench import chunked, cuda, decode, peers, prompts, roofline
from strata_gdn.bench.arms import decision, left_out
from strata_gdn.bench.case import Arm, Calls, Case, Mark, Peer
from strata_gdn.bench.cases import CASES
from strata_gdn.bench.graphs import SAMPLES, GraphClock, time_graph
from strata_gdn.bench.rates import measure_rates
from strata_gdn.bench.record import read
from strata_gdn.bench.report import report

# A card on which the arithmetic can be followed by hand: 4 TB/s, 100 multiprocessors of 128 lanes at 2 GHz.
RATES = roofline.Rates(
    copy_bytes_per_second=4e12, clock_hz=2e9, multiprocessors=100, lanes=128, matmul_fma_per_second=12.8e12
)
SAMPLE_SECONDS = 2e-6
PEER_SECONDS = 8e-6


# The roofline, by hand


def recurrence(tokens: int, heads: tuple[int, int] = (16, 48)) -> roofline.Work:
    H, HV = heads
    bf16 = {"dtype": torch.bfloat16, "device": "meta"}
    q, k, v = (torch.empty(1, tokens, n, 128, **bf16) for n in (H, H, HV))
    g, beta = torch.empty(1, tokens, HV, device="meta"), torch.empty(1, tokens, HV, **bf16)
    return roofline.recurrence(q, k, v, g, beta, torch.empty(1, HV, 128, 128, device="meta"))


def test_work_of_a_recurrence():
    work = recurrence(1000)
    # A token: q and k 16 * 128 * 2 bytes each, v and o 48 * 128 * 2 each, g 48 * 4, beta 48 * 2. The state, 48 * 128 *
    # 128 * 4 bytes, is read and written.
    assert work.moved_bytes == 1000 * (2 * 4096 + 2 * 12288 + 192 + 96) + 2 * 3145728
    assert work.fma == 4 * 786432 * 1000
    assert work.chain_tokens == 1000


def test_sequences_share_the_card_but_not_the_chain():
    q, v = torch.empty(4, 10, 2, 64), torch.empty(4, 10, 6, 64)
    gate = torch.empty(4, 10, 6)
    work = roofline.recurrence(q, q, v, gate, gate, torch.empty(4, 6, 64, 64))
    assert work.fma == 4 * (4 * 10) * (6 * 64 * 64)
    assert work.chain_tokens == 10


@pytest.mark.parametrize(
    ("heads", "tokens", "name", "seconds"),
    [
        # 3,145,728,000 operations at 100 * 128 * 2e9 a second; the chain would be 85 us.
        ((16, 48), 1000, "fma", 3145728000 / 25.6e12),
        # 524,288,000 operations are 20.48 us; 1000 * 170 cycles at 2 GHz are 85.
        ((2, 8), 1000, "chain", 85e-6),
        # One token: 32,960 + 96 bytes and a state of 3,145,728 in and out, at 4 TB/s.
        ((16, 48), 1, "memory", (2 * 4096 + 2 * 12288 + 288 + 2 * 3145728) / 4e12),
    ],
)
def test_binding_limit(heads, tokens, name, seconds):
    limits = RATES.limits(recurrence(tokens, heads))
    assert set(limits) == {"memory", "fma", "chain"}
    assert roofline.binding(limits)[0] == name
    assert math.isclose(limits[name], seconds, rel_tol=1e-12)


def test_pointwise_has_no_limit_but_memory():
    x, y = torch.empty(3, 5, dtype=torch.bfloat16), torch.empty(7)
    work = roofline.pointwise((x, y), (x,))
    assert work == roofline.Work(moved_bytes=30 + 28 + 30)
    assert RATES.limits(work) == {"memory": 88 / 4e12}


def test_lanes():
    assert [roofline.lanes(arch) for arch in ("sm_75", "sm_80", "sm_86", "sm_90", "sm_120")] == [64, 64, 128, 128, 128]


# By hand: H=16, HV=48, K=V=128. A state has 48 * 128 * 128 = 786,432 elements, 3,145,728 bytes.
STATE = 3145728
INPUTS = 2 * 4096 + 12288 + 192 + 96  # of a token: q and k, v, g and beta; q, k, v and beta are bfloat16
OUTPUT = 12288
LOGS = 4 * (16 * 128 + 48 * 128 + 48)  # of a token
CHANNELS = (2 * 16 + 48) * 128
LAYER_INPUTS = 2 * (CHANNELS + 6144 + 2 * 48)  # of a token: qkv, z, a and b
LAYER_WEIGHTS = 2 * 4 * CHANNELS + 2 * 4 * 48 + 2 * 128  # taps; A_log and dt_bias; the norm's
WINDOW = 2 * 3 * CHANNELS


def test_work_of_the_chunked_form():
    """40 tokens are two chunks; 53248 operations a value head and token of a chunk."""
    case = Case("some", "gated_delta_rule", 16, 48, 40, (), prompts.prompt_calls)
    with torch.device("meta"):
        x = prompts.recurrence_inputs(case)
    work = roofline.chunked(**x)
    assert work == roofline.Work(roofline.recurrence(**x).moved_bytes, 64 * 48 * 53248)


def test_work_of_decode():
    """4 sequences, 3 tokens."""
    case = Case("some", "gated_delta_rule", 16, 48, 3, (), prompts.prompt_calls, sequences=4)
    with torch.device("meta"):
        x = prompts.recurrence_inputs(case)
        layer = decode.layer_inputs(case, x["state"])
        states = torch.empty(5, *x["state"].shape)
    step_fma = 4 * 3 * 4 * 786432
    assert roofline.recurrence(**x) == roofline.Work(12 * (INPUTS + OUTPUT) + 8 * STATE, step_fma, 3)
    assert roofline.verify(**x) == roofline.Work(12 * (INPUTS + OUTPUT + LOGS) + 4 * STATE, step_fma, 3)
    replay_fma = 2 * 2 * 20 * 786432
    assert roofline.commit(states, 16, 2) == roofline.Work(40 * (STATE + LOGS), replay_fma)
    assert roofline.commit_verify(**x, log_tokens=2) == roofline.Work(
        12 * (INPUTS + OUTPUT + LOGS) + 8 * LOGS + 8 * STATE, step_fma + replay_fma // 5, 3
    )
    assert roofline.decode_layer(**layer) == roofline.Work(
        12 * (LAYER_INPUTS + OUTPUT) + LAYER_WEIGHTS + 8 * (WINDOW + STATE), step_fma, 3
    )
    assert roofline.verify_layer(**layer) == roofline.Work(
        12 * (LAYER_INPUTS + OUTPUT + LOGS) + LAYER_WEIGHTS + 4 * (WINDOW + STATE), step_fma, 3
    )


# The table


def test_every_kernel_of_the_table_is_the_registrys():
    """What an arm asks for on an H200 is what the registry decides there; a kernel without an arm is not timed."""
    arms = [(case, arm) for case in CASES for arm in case.arms]
    for case, arm in arms:
        assert left_out(case, arm, "sm_90", 132) is None
        assert kernels(decision(case, "sm_90", 132, arm.switches).kernel) == arm.kernels, str(case)
    on_gpu = {kernels(row.kernel) for row in registry.kernels() if row.architectures.startswith("sm_")}
    assert {arm.kernels for _, arm in arms} == on_gpu


def test_an_arm_that_the_card_lacks_is_left_out_with_the_reason():
    case = CASES[0]
    columns, keyhead = case.arms
    assert left_out(case, columns, "sm_75", 40) is None
    assert "sm_80" in left_out(case, keyhead, "sm_75", 40)


def test_every_mark_is_of_a_peer_that_is_there():
    """The marks are those of the task; what they are measured against is timed even where fla is not installed."""
    marked = [case for case in CASES if case.marks]
    assert len(marked) == 3 + 4 + 9 + 10 + 1 + 3  # chunked; step, verify, commit, commit and verify, layer
    assert all(case.name.startswith(("decode ", "chunked ")) for case in marked)
    with torch.device("meta"):
        for case in marked:
            beside = {peer.name for peer in replace(case, sequences=1).make(case).peers}
            assert {mark.of for mark in case.marks} - {""} <= beside


# A token's bytes at H=16, HV=48, and those of a call besides; by hand.
MOVED = {
    "gated_rms_norm": (3 * 48 * 128 * 2, 128 * 2),  # o, z and y; the weight
    "qk_l2norm": (4 * 16 * 128 * 2, 0),  # q and k, in and out
    "causal_conv1d": (2 * 10240 * 2, (4 + 2 * 4) * 10240 * 2),  # x and y; the weight, the window in and out
    "gdn_gates": (48 * (2 + 2 + 4 + 4), 2 * 48 * 4),  # a, b, g and beta; A_log and dt_bias
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_cases_can_be_called(case, monkeypatch):
    """On the CPU, with few tokens, sequences and layers: the op is the case's, and the peers can be called."""
    monkeypatch.setattr(peers, "fla", lambda: None)
    monkeypatch.setattr(decode, "MODEL_LAYERS", 2)
    case = replace(case, tokens=3, sequences=min(case.sequences, 2), repeats=min(case.repeats, 2), precision="auto")
    calls = case.calls(torch.device("cpu"))
    with launches() as served:
        calls.ours()
    (kernel,) = served
    assert served[kernel] == case.repeats
    op = registry.decide(case.op, arch="cpu", tokens=3, tree=case.tree)
    assert kernel == op.kernel
    assert calls.work.moved_bytes > 0
    if case.op in MOVED:
        each, once = MOVED[case.op]
        assert calls.work == roofline.Work(3 * each + once)
    elif case.name.startswith("prompt"):
        assert calls.work.fma == 4 * case.sequences * 3 * case.value_heads * 128 * 128
        assert not calls.peers
    for peer in calls.peers:
        peer.call()


@pytest.mark.parametrize("case", [next(prompts.prompts()), next(chunked.chunked())], ids=str)
def test_fla_gets_the_inputs_of_the_op(case, monkeypatch):
    """A case's inputs are made once: the call and its peers read the same tensors."""
    made, got = [], {}
    own = prompts.recurrence_inputs
    for module in (prompts, chunked):
        monkeypatch.setattr(module, "recurrence_inputs", lambda case: made.append(own(case)) or made[-1])
    monkeypatch.setattr(peers, "fla", lambda: SimpleNamespace(chunk_gated_delta_rule=lambda **x: got.update(x)))
    with torch.device("meta"):
        named = {peer.name: peer for peer in case.make(case).peers}
    named["fla"].call()
    (x,) = made
    assert all(got[name] is x[name] for name in ("q", "k", "v", "g", "beta"))
    assert got["initial_state"] is x["state"]


def test_the_multiply_leaves_the_states_as_they_are():
    """It is repeated as often as the op that it stands beside, on the same states."""
    case = replace(next(case for case in CASES if case.name == "decode step"), sequences=2)
    states = []
    calls = replace(case, make=lambda case: states.append(torch.randn(2, 3)) or Calls(
        lambda: 0, roofline.Work(1), (decode.multiply(*states),))).calls(torch.device("cpu"))  # fmt: skip
    before = states[0].clone()
    calls.peers[0].call()
    assert torch.equal(states[0], before)


# Cases on the CPU


class Ticks:
    """A clock whose samples are given. A call that returns nothing is a peer's, and takes longer."""

    def record(self, call) -> float:
        """Calls as often as a graph is made of."""
        seconds = PEER_SECONDS if call() is None else SAMPLE_SECONDS
        call()
        return seconds

    def time(self, recorded) -> list[list[float]]:
        return [[seconds] * SAMPLES for seconds in recorded]


def gates_case(kernel: str, *, repeats: int = 1, call=None, marks=(), peer_names=("fla",)) -> Case:
    """gdn_gates on the CPU, which gates_cpu serves, claimed to be served by `kernel`."""

    def make(case: Case) -> Calls:
        gate, weight = torch.randn(1, 16, 4), torch.randn(4)
        work = roofline.Work(moved_bytes=4_000_000)  # 1 us
        beside = tuple(Peer(name, lambda: None) for name in peer_names)
        return Calls(call or (lambda: ops.gdn_gates(gate, gate, weight, weight)), work, beside)

    return Case("prompt HV=48 H=16", "gdn_gates", 1, 4, 128, (Arm((kernel,)),), make, repeats=repeats, marks=marks)


def time_cases(cases, file=None):
    device = torch.device("cpu")
    record = cuda.new_record(["python"], device, RATES)
    return cuda.time_cases(cases, record, RATES, device, Ticks(), file), record


def test_the_kernel_that_served_is_the_one_that_was_asked_for():
    (result,), record = time_cases([gates_case("gates_cpu")])
    assert (result.kernel, result.chosen, result.median) == ("gates_cpu", True, SAMPLE_SECONDS)
    assert record["failed"] == []


def test_another_kernel_is_no_measurement():
    results, record = time_cases([gates_case("gdn_gates"), gates_case("gates_cpu")])
    assert [result.kernel for result in results] == ["gates_cpu"]  # the others are still timed
    assert record["failed"] == [
        "prompt HV=48 H=16, 128 tokens, 1 sequence: expected gdn_gates with no switches; served: gates_cpu"
    ]


def test_a_further_kernel_is_no_measurement():
    gate, weight, x = torch.randn(1, 16, 4), torch.randn(4), torch.randn(1, 4, 2, 64)
    both = gates_case("gates_cpu", call=lambda: (ops.gdn_gates(gate, gate, weight, weight), ops.qk_l2norm(x, x)))
    results, record = time_cases([both])
    assert results == []
    assert record["failed"][0].endswith("expected gates_cpu with no switches; served: gates_cpu + l2norm_cpu")


def test_nothing_served_is_no_measurement():
    results, record = time_cases([gates_case("gates_cpu", call=lambda: 0)])
    assert results == []
    assert record["failed"][0].endswith("expected gates_cpu with no switches; served: nothing")


def test_what_the_registry_takes_by_itself_is_chosen():
    """The kernel is the same, its configuration is not."""
    isas = registry.cpu_arch().removeprefix("cpu-"), "baseline"
    case = replace(gates_case("gates_cpu"), arms=tuple(Arm(("gates_cpu",), {"GDN_CPU_ISA": isa}) for isa in isas))
    results, _ = time_cases([case])
    assert [(r.switches, r.config, r.chosen) for r in results] == [
        ({"GDN_CPU_ISA": isa}, {"isa": isa}, isa == isas[0]) for isa in isas
    ]


def test_repeats_share_a_replay():
    (result,), _ = time_cases([gates_case("gates_cpu", repeats=4)])
    assert result.median == SAMPLE_SECONDS / 4
    assert result.peer_seconds == PEER_SECONDS / 4


MARKS = (Mark(2.0), Mark(1.9), Mark(0.25, "fla"), Mark(0.2, "fla"))
HELD = [
    ("us", 2.0, 2.0, True),
    ("us", 1.9, 2.0, False),
    ("times fla", 0.25, 0.25, True),
    ("times fla", 0.2, 0.25, False),
]


def test_record(tmp_path):
    file = tmp_path / "cuda.json"
    cases = [gates_case("gates_cpu", marks=MARKS, peer_names=("fla", "other")), gates_case("gdn_gates")]
    time_cases(cases, file)
    record = read(file)
    (result,) = record["results"]
    assert result["seconds"] == [SAMPLE_SECONDS] * 30
    assert result["peer_samples"] == [PEER_SECONDS] * 30
    assert (result["median_seconds"], result["peer_seconds"], result["peer"]) == (SAMPLE_SECONDS, PEER_SECONDS, "fla")
    assert result["more_peers"] == {"other": {"samples": [PEER_SECONDS] * 30, "median_seconds": PEER_SECONDS}}
    assert (result["limit"], result["limits"]) == ("memory", {"memory": 1e-6})
    assert math.isclose(result["limit_reached"], 0.5)
    assert [(m["measure"], m["at_most"], pytest.approx(m["value"]), m["met"]) for m in result["marks"]] == HELD
    assert len(record["failed"]) == 1
    assert record["complete"]
    assert record["rates"]["fma_per_second"] == 25.6e12
    assert record["environment"]["torch"] == torch.__version__


def test_a_stopped_run_leaves_what_it_has(tmp_path):
    file = tmp_path / "cuda.json"

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        time_cases([gates_case("gates_cpu"), gates_case("gates_cpu", call=stop)], file)
    record = json.loads(file.read_text())
    assert len(record["results"]) == 1
    assert not record["complete"]


# What is printed


@pytest.mark.parametrize("installed", [True, False])
def test_report(installed, monkeypatch):
    monkeypatch.setattr(peers, "fla", lambda: peers if installed else None)
    results, record = time_cases([gates_case("gates_cpu")])
    record["left_out"] = [{"case": "a prompt", "kernel": "rec_keyhead", "reason": "needs sm_80"}]
    head, table, missing, last = report(results, record).split("\n\n")
    assert "copy 4.00 TB/s; 100 multiprocessors x 128 lanes x 2.00 GHz = 25.6 TFMA/s, of which" in head
    assert "reaches 50%" in head
    cells = table.splitlines()[1].split()
    assert cells[4:] == ["1", "gates_cpu", "2.0", "0.0156", "fla", "8.0", "0.25", "50%", "of", "memory", "yes"]
    assert missing == "a prompt: no rec_keyhead: needs sm_80"
    if installed:  # 15.6 us beside fla's 52.1 elsewhere; fla takes 8 us here
        assert last.startswith("QUOTED, not measured in this run; from one NVIDIA H200")
        assert last.splitlines()[-1].split()[-3:] == ["0.6.9", "0.30", "2.4"]
    else:
        assert last == peers.FLA_INSTALL
        assert "pip download --no-deps --dest wheels flash-linear-attention fla-core" in last


def test_marks_and_further_peers_are_printed(monkeypatch):
    monkeypatch.setattr(peers, "fla", lambda: peers)
    case = replace(gates_case("gates_cpu", marks=MARKS, peer_names=("copy", "fla")), name="other")
    results, record = time_cases([case])
    _, table, further, marks = report(results, record).split("\n\n")
    assert table.splitlines()[1].split()[5:8] == ["0.0156", "copy", "8.0"]
    assert further.splitlines()[0] == "further peers"
    assert further.splitlines()[2].split() == ["other", "128", "1", "gates_cpu", "fla", "8.0", "0.25"]
    assert marks.splitlines()[0] == "marks"
    assert [line.split()[-5:-1] for line in marks.splitlines()[2:]] == [
        [measure.split()[-1], f"{at_most:.2f}", f"{value:.2f}", "met" if met else "MISSED"]
        for measure, at_most, value, met in HELD
    ]


def test_quoted_decode_is_printed_beside_ours():
    names = ("decode step", "decode verify")
    cases = [replace(gates_case("gates_cpu", peer_names=(decode.MULTIPLY,)), name=name, sequences=8) for name in names]
    results, record = time_cases([replace(case, tokens=1 + i) for i, case in enumerate(cases)])
    last = report(results, record).split("\n\n")[-1]
    assert last.startswith("QUOTED, not measured in this run; from one NVIDIA H200")
    assert "HV = 48" in last.splitlines()[0]
    rows = [line.split() for line in last.splitlines()[2:]]
    assert [row[-4:] for row in rows] == [
        ["17.5", "1.07", "2.0", "0.25"],
        ["13.2", "-", "2.0", "0.25"],
        ["17.8", "-", "2.0", "0.25"],
        ["25.6", "-", "2.0", "0.25"],
    ]


def test_quoted_ratios():
    """Best peer over fla, and a decode peer over a multiply, as the source gives them with two digits."""
    ratios = [round(quote.ratio, 2) for quote in peers.QUOTES]
    assert ratios == [0.30, 0.41, 0.44, 0.43, 0.37, 0.32, 0.52, 0.57, 0.41, 0.33]
    names = {(case.name, case.tokens) for case in CASES}
    assert {(quote.case, quote.tokens) for quote in peers.QUOTES} <= names
    assert all(set(row) == {"case", "tokens", "peer", "over_fla"} for row in peers.quoted()["rows"])
    over = [round(quote.over_multiply, 2) for quote in peers.DECODE_QUOTES if quote.over_multiply]
    assert over == [1.25, 1.07, 1.03, 1.02]
    shapes = {(case.name, case.tokens, case.sequences) for case in CASES}
    assert {(quote.case, quote.tokens, quote.sequences) for quote in peers.DECODE_QUOTES} <= shapes
    keys = {"case", "tokens", "sequences", "peer", "us", "over_multiply"}
    assert all(set(row) == keys for row in peers.quoted()["decode"])


# On a GPU

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.xdist_group("cuda")
def test_a_graph_is_timed():
    x = torch.zeros(1 << 26, device="cuda")
    samples = time_graph(lambda: x.add_(1))
    assert len(samples) == SAMPLES
    assert min(samples) > 25e-6  # 512 MiB moved: faster than 20 TB/s, which no card is
    assert x[0] == 2 + 1 + SAMPLES  # two calls before the capture, then replays


@needs_gpu
@pytest.mark.xdist_group("cuda")
def test_decode_is_timed(tmp_path):
    """Each of the decode kernels once, at its smallest number of sequences; the file is a record."""
    smallest = {case.name: case for case in reversed(CASES) if case.name.startswith("decode ")}
    file, device = tmp_path / "decode.json", torch.device("cuda")
    record = cuda.new_record(["python"], device, RATES)
    results = cuda.time_cases([*smallest.values()], record, RATES, device, GraphClock(3), file)
    assert not record["failed"]
    assert not record["left_out"]
    assert {result.case for result in results} == set(smallest)
    assert all(min(result.seconds) > 0 for result in results)
    assert all(any(r.chosen for r in results if r.case == name) for name in smallest)
    assert read(file)["complete"]


@needs_gpu
@pytest.mark.xdist_group("cuda")
def test_rates_of_this_card():
    rates = measure_rates(torch.device("cuda"), lambda call: time_graph(call, 3))
    assert 5e10 < rates.copy_bytes_per_second < 2e13
    assert 3e8 < rates.clock_hz < 4e9
    assert 0.2 < rates.matmul_fma_per_second / rates.fma_per_second <= 1.02
