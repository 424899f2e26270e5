"""`python -m strata_gdn bench --device cuda`: the ops on a GPU, with fla beside them where it is installed.

A sample is one replay of a CUDA graph of one call between two events, after the L2 cache has been overwritten; a line
is the median of all samples. The recurrences are timed with every kernel that can serve them (GDN_KEYHEAD), the
pointwise ops beside a copy that moves as many bytes. Every line asks the registry which kernel really ran.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _devices, ops, registry
from ._table import columns

try:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule as fla_prompt
except ImportError:
    fla_prompt = None  # no peer to time: the table says so

HEAD_DIM, CONV_WIDTH = 128, 4
LAYERS = ((16, 48), (16, 32), (2, 8))  # H, HV
PROMPT_TOKENS = (128, 512, 2048, 8192, 32768)
MORE_PROMPTS = ((2, 8, 4096, 1), (2, 8, 4096, 4), (4, 16, 4096, 1), (16, 32, 2048, 8))  # H, HV, T, N
POINTWISE_TOKENS = 8192
SAMPLES = 30
L2_FLUSH_BYTES = 256 << 20
KEYHEAD = {"rec_columns": 0, "rec_keyhead": 1}


@dataclass
class Result:
    """One line: a median of samples, and what it is to be held against."""

    case: str
    tokens: int
    sequences: int
    kernel: str
    seconds: list[float] = field(repr=False)
    peer_seconds: float | None = None  # fla's median, or a copy's of as many bytes
    chosen: bool = True  # what the registry takes by itself

    @property
    def median(self) -> float:
        return median(self.seconds)


def time_graph(call: Callable[[], Any], samples: int = SAMPLES) -> list[float]:
    """Seconds of `samples` graph replays of `call`, each with a flushed L2."""
    flush = torch.empty(L2_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # loads modules and compiles what a peer compiles
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    seconds = []
    for _ in range(samples):
        flush.fill_(0)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) * 1e-3)
    return seconds


def prompt_inputs(H: int, HV: int, tokens: int, sequences: int) -> dict[str, Tensor]:
    """Reference inputs: normalised q and k, the slow gates (a quarter of the heads does not decay), bfloat16."""
    q, k = (
        F.normalize(torch.randn(sequences, tokens, H, HEAD_DIM, device="cuda"), dim=-1).bfloat16() for _ in range(2)
    )
    g = F.logsigmoid(torch.randn(sequences, tokens, HV, device="cuda")) / 16
    g[..., ::4] = 0
    return {
        "q": q,
        "k": k,
        "v": torch.randn(sequences, tokens, HV, HEAD_DIM, device="cuda", dtype=torch.bfloat16),
        "g": g,
        "beta": torch.randn(sequences, tokens, HV, device="cuda").sigmoid().bfloat16(),
        "state": 0.1 * torch.randn(sequences, HV, HEAD_DIM, HEAD_DIM, device="cuda"),
    }


def served(call: Callable[[], Any]) -> str:
    """The kernels that served one call."""
    registry.reset_served()
    call()
    return " + ".join(registry.served())


def prompt(H: int, HV: int, tokens: int, sequences: int) -> Iterator[Result]:
    """One shape with every kernel that serves it, beside fla on the same inputs."""
    torch.manual_seed(0)
    x = prompt_inputs(H, HV, tokens, sequences)
    arguments = {n: x[n] for n in ("q", "k", "v", "g", "beta")} | {"initial_state": x["state"]}

    def ours() -> Tensor:
        return ops.gated_delta_rule_(**x)

    peer = median(time_graph(lambda: fla_prompt(**arguments, output_final_state=True))) if fla_prompt else None
    chosen = served(ours)
    for kernel, keyhead in KEYHEAD.items():
        with registry.overrides(GDN_KEYHEAD=keyhead):
            if served(ours) == kernel:
                yield Result(
                    f"prompt HV={HV} H={H}", tokens, sequences, kernel, time_graph(ours), peer, kernel == chosen
                )


def prompts() -> Iterator[Result]:
    for H, HV, tokens, sequences in (*((*layer, T, 1) for layer in LAYERS for T in PROMPT_TOKENS), *MORE_PROMPTS):
        yield from prompt(H, HV, tokens, sequences)


def pointwise() -> Iterator[Result]:
    """Each op beside a copy of as many bytes as it has to read and write."""
    H, HV, T = 16, 48, POINTWISE_TOKENS
    channels = (2 * H + HV) * HEAD_DIM
    bf16 = {"device": "cuda", "dtype": torch.bfloat16}
    o, z = (torch.randn(1, T, HV, HEAD_DIM, **bf16) for _ in range(2))
    q, k = (torch.randn(1, T, H, HEAD_DIM, **bf16) for _ in range(2))
    x, state = torch.randn(1, T, channels, **bf16), torch.randn(1, channels, CONV_WIDTH, **bf16)
    weight, norm_weight = torch.randn(channels, CONV_WIDTH, **bf16), torch.randn(HEAD_DIM, **bf16)
    a, b = (torch.randn(1, T, HV, **bf16) for _ in range(2))
    A_log, dt_bias = torch.randn(HV, device="cuda"), torch.randn(HV, device="cuda")
    one = torch.zeros(1, device="cuda")
    cases = [
        ("gated_rms_norm", lambda: ops.gated_rms_norm(o, z, norm_weight), 3 * o.numel()),
        ("qk_l2norm", lambda: ops.qk_l2norm(q, k), 4 * q.numel()),
        ("causal_conv1d_", lambda: ops.causal_conv1d_(x, weight, None, state), 2 * x.numel()),
    ]
    for name, call, elements in cases:
        source = torch.empty(elements // 2, **bf16)
        target = torch.empty_like(source)
        copy = median(time_graph(lambda s=source, t=target: t.copy_(s)))
        yield Result(f"{name} against a copy", T, 1, served(call), time_graph(call), copy)
    gates = lambda: ops.gdn_gates(a, b, A_log, dt_bias)  # noqa: E731
    yield Result("gdn_gates against one element", T, 1, served(gates), time_graph(gates), median(time_graph(one.zero_)))


def run(args: argparse.Namespace) -> int:
    """Times everything, prints the table and writes the JSON."""
    environment = _devices.describe(torch.device("cuda"))
    environment["fla"] = importlib.metadata.version("flash-linear-attention") if fla_prompt else "not installed"
    with torch.inference_mode():
        results = [*prompts(), *pointwise()]
    rows = [("case", "tokens", "N", "kernel", "us", "us a token", "beside", "ratio", "chosen")]
    for r in results:
        peer = "-" if r.peer_seconds is None else f"{r.peer_seconds * 1e6:.1f}"
        ratio = "-" if r.peer_seconds is None else f"{r.peer_seconds / r.median:.2f}"
        a_token = f"{r.median * 1e6 / r.tokens:.4f}"
        rows.append((r.case, str(r.tokens), str(r.sequences), r.kernel, f"{r.median * 1e6:.1f}", a_token, peer, ratio,
                     "yes" if r.chosen else ""))  # fmt: skip
    print(f"{environment['device']}, torch {environment['torch']}, fla {environment['fla']}; medians of graph replays")
    print(columns(rows))
    if args.json:
        record = {"command": _devices.command(args.json), "environment": environment,
                  "results": [asdict(r) | {"median_seconds": r.median} for r in results]}  # fmt: skip
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0
