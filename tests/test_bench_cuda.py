"""The GPU's benchmark, as far as it needs no GPU: limits, the kernel that served, the record and what is printed.

Its cases are made on the CPU here, and a sample is one call by a clock that ticks once a call.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from strata_gdn import ops, registry
from strata_gdn._launches import launches
from strata_gdn.bench import cases, cuda, peers, roofline
from strata_gdn.bench.arms import left_out
from strata_gdn.bench.cases import CASES, Arm, Calls, Case, Peer
from strata_gdn.bench.graphs import SAMPLES, time_graph
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


# The table


def test_every_kernel_of_the_table_is_the_registrys():
    """What an arm asks for on an H200 is what the registry decides there; a kernel without an arm is not timed."""
    arms = [(case, arm) for case in CASES for arm in case.arms]
    for case, arm in arms:
        assert left_out(case, arm, "sm_90", 132) is None
        decision = registry.decide(
            case.op, arch="sm_90", sms=132, tokens=case.tokens, n=case.sequences, h=case.key_heads,
            hv=case.value_heads, env=arm.switches,
        )  # fmt: skip
        assert decision.kernel in arm.kernels, str(case)
    on_gpu = {row.kernel for row in registry.kernels() if row.architectures.startswith("sm_")}
    assert {kernel for _, arm in arms for kernel in arm.kernels} == on_gpu


def test_an_arm_that_the_card_lacks_is_left_out_with_the_reason():
    case = CASES[0]
    columns, keyhead = case.arms
    assert left_out(case, columns, "sm_75", 40) is None
    assert "sm_80" in left_out(case, keyhead, "sm_75", 40)


# A token's bytes at H=16, HV=48, and those of a call besides; by hand.
MOVED = {
    "gated_rms_norm": (3 * 48 * 128 * 2, 128 * 2),  # o, z and y; the weight
    "qk_l2norm": (4 * 16 * 128 * 2, 0),  # q and k, in and out
    "causal_conv1d": (2 * 10240 * 2, (4 + 2 * 4) * 10240 * 2),  # x and y; the weight, the window in and out
    "gdn_gates": (48 * (2 + 2 + 4 + 4), 2 * 48 * 4),  # a, b, g and beta; A_log and dt_bias
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_cases_can_be_called(case, monkeypatch):
    """On the CPU, with few tokens: the op is the case's, and the peer of a pointwise op moves what it says."""
    monkeypatch.setattr(cases, "DEVICE", "cpu")
    monkeypatch.setattr(peers, "fla", lambda: None)
    case = replace(case, tokens=3)
    calls = case.make(case)
    with launches() as served:
        calls.ours()
    (kernel,) = served
    assert kernel in {row.kernel for row in registry.kernels() if row.op == case.op}
    if case.op == "gated_delta_rule":
        assert calls.work.fma == 4 * case.sequences * 3 * case.value_heads * 128 * 128
        assert calls.peer is None
    else:
        each, once = MOVED[case.op]
        assert calls.work == roofline.Work(3 * each + once)
        calls.peer.call()


# Cases on the CPU


def timer(call) -> list[float]:
    """Calls as often as a graph is made of and gives 30 samples; those of a peer are longer."""
    seconds = PEER_SECONDS if call() is None else SAMPLE_SECONDS
    call()
    return [seconds] * SAMPLES


def gates_case(kernel: str, *, repeats: int = 1, call=None) -> Case:
    """gdn_gates on the CPU, which gates_cpu serves, claimed to be served by `kernel`."""
    gate, weight = torch.randn(1, 16, 4), torch.randn(4)

    def make(case: Case) -> Calls:
        work = roofline.Work(moved_bytes=4_000_000)  # 1 us
        return Calls(call or (lambda: ops.gdn_gates(gate, gate, weight, weight)), work, Peer("fla", lambda: None))

    return Case("prompt HV=48 H=16", "gdn_gates", 1, 4, 128, (Arm((kernel,)),), make, repeats=repeats)


def time_cases(cases, file=None):
    record = cuda.new_record(["python"], torch.device("cpu"), RATES)
    return cuda.time_cases(cases, record, RATES, registry.cpu_arch(), timer, file), record


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


def test_repeats_share_a_replay():
    (result,), _ = time_cases([gates_case("gates_cpu", repeats=4)])
    assert result.median == SAMPLE_SECONDS / 4
    assert result.peer_seconds == PEER_SECONDS / 4


def test_record(tmp_path):
    file = tmp_path / "cuda.json"
    time_cases([gates_case("gates_cpu"), gates_case("gdn_gates")], file)
    record = read(file)
    (result,) = record["results"]
    assert result["seconds"] == [SAMPLE_SECONDS] * 30
    assert result["peer_samples"] == [PEER_SECONDS] * 30
    assert (result["median_seconds"], result["peer_seconds"], result["peer"]) == (SAMPLE_SECONDS, PEER_SECONDS, "fla")
    assert (result["limit"], result["limits"]) == ("memory", {"memory": 1e-6})
    assert math.isclose(result["limit_reached"], 0.5)
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


def test_quoted_ratios():
    """Best peer over fla, as the source gives them with two digits."""
    ratios = [round(quote.ratio, 2) for quote in peers.QUOTES]
    assert ratios == [0.30, 0.41, 0.44, 0.43, 0.37, 0.32, 0.52, 0.57, 0.41, 0.33]
    names = {(case.name, case.tokens) for case in CASES}
    assert {(quote.case, quote.tokens) for quote in peers.QUOTES} <= names
    assert all(set(row) == {"case", "tokens", "peer", "over_fla"} for row in peers.quoted()["rows"])


# On a GPU

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.xdist_group("cuda")
def test_a_graph_is_timed():
    x = torch.zeros(1 << 28, device="cuda")
    samples = time_graph(lambda: x.add_(1))
    assert len(samples) == SAMPLES
    assert min(samples) > 100e-6  # 2 GiB moved: faster than 20 TB/s, which no card is
    assert x[0] == 2 + 1 + SAMPLES  # two calls before the capture, then replays


@needs_gpu
@pytest.mark.xdist_group("cuda")
def test_rates_of_this_card():
    rates = measure_rates(torch.device("cuda"), lambda call: time_graph(call, 3))
    assert 5e10 < rates.copy_bytes_per_second < 2e13
    assert 3e8 < rates.clock_hz < 4e9
    assert 0.2 < rates.matmul_fma_per_second / rates.fma_per_second <= 1.02
