"""`python -m strata_gdn demo`: a small Qwen3-Next on these ops beside Transformers' own, and a draft rolled back.

It runs on the GPU where there is one. There it also shows that the GPU's exact results are the CPU's. What can be
compared: the results and states of every op, each called on both devices with the same inputs; and the tokens, when the
model's own matrix products, attention and experts stay on the GPU and only the ops move to the CPU. What cannot: the
whole model on one device with the whole model on another, because torch's matrix products have other bits there.

Nothing is downloaded: the weights are random, from a fixed seed, the prompt is a text file of this package, and a byte
is a token.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn

from . import _devices, ops, registry
from ._launches import launches
from ._table import columns
from .integrations import transformers as integration
from .ops import Precision
from .parity.beside_the_cpu import BesideTheCpu
from .parity.kernels import sms

try:
    from tqdm import tqdm
except ImportError as error:
    raise ImportError("the demo needs tqdm; install it with `pip install .[transformers]`") from error
from transformers import DynamicCache, Qwen3NextConfig, Qwen3NextForCausalLM
from transformers.generation.streamers import BaseStreamer
from transformers.models.qwen3_next import modeling_qwen3_next as modeling
from transformers.utils import logging as transformers_logging

MAX_LOGITS_DIFFERENCE = 1e-3  # of the logits' range
PROGRESS_AFTER_SECONDS = 2.0
SEED = 0

DRAFTED, ACCEPTED, CONTINUED = 4, 2, 16
SHOWN_FAILURES = 5

# Qwen3-Next's own architecture, both layer types and the experts, with fewer and narrower of each.
MODEL = {
    "vocab_size": 256,
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "initializer_range": 0.06,  # about 1 / sqrt(hidden_size): the layers matter beside the residual
}

# The ops that a generation and a draft go through: the ones whose kernels are named.
GENERATION_OPS = ("gated_delta_rule", "causal_conv1d", "gdn_gates", "gated_rms_norm")
DRAFT_OPS = (
    "gated_delta_rule_verify",
    "causal_conv1d_verify",
    "gated_delta_rule_commit_layers",
    "causal_conv1d_commit_layers",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", type=torch.device, help="cpu, cuda, cuda:1 (default: a GPU that is served)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate (default 64)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's choice)")


def run(args: argparse.Namespace) -> int:
    if args.tokens < 1:
        print(f"strata_gdn: --tokens must be at least 1; got {args.tokens}", file=sys.stderr)
        return 2
    if args.threads:
        torch.set_num_threads(args.threads)
    device, why = (args.device, "as asked") if args.device else _choose_device()
    transformers_logging.set_verbosity_error()  # its fallback, wanted here, advises to install other packages
    with torch.inference_mode():
        return _demo(device, why, args.tokens)


def _demo(device: torch.device, why: str, tokens: int) -> int:
    model, prompt = build_model(device), load_prompt(device)
    layer_types, parameters = model.config.layer_types, sum(p.numel() for p in model.parameters())
    print(
        f"Model: Qwen3-Next with random weights, {parameters / 1e6:.1f} M parameters, float32, "
        f"{layer_types.count('linear_attention')} gated DeltaNet layers, "
        f"{layer_types.count('full_attention')} attention layers\n"
        f"Device: {_devices.name(device)} ({_devices.arch(device)}, {torch.get_num_threads()} CPU threads), {why}\n"
        f"Prompt: {prompt.shape[1]} bytes, a token each\n"
    )
    passed = [_compare_generations(model, prompt, tokens)]
    with integration.enable(precision="exact"):
        passed.append(_roll_back_a_draft(model, prompt))
        if device.type == "cpu":
            print("\n3. The ops beside the CPU's: nothing to compare, they ran there")
        else:
            passed.append(_compare_with_the_cpu(model, prompt, tokens))
    print("\nDemo passed." if all(passed) else "\nDemo FAILED.")
    return 0 if all(passed) else 1


def _choose_device() -> tuple[torch.device, str]:
    if not torch.cuda.is_available():
        return torch.device("cpu"), "no GPU found"
    gpu = torch.device("cuda")
    build, arch = registry.build(), _devices.arch(gpu)
    if not (build.hip if torch.version.hip else build.cuda):
        return torch.device("cpu"), f"because this build has no kernels for the GPU ({arch})"
    for op in (*GENERATION_OPS, *DRAFT_OPS):
        decision = registry.decide(op, arch=arch)
        if not decision:
            return torch.device("cpu"), f"because {op} has no kernel for the GPU ({arch}): {decision.reason}"
    return gpu, "the GPU found"


def build_model(device: torch.device) -> Qwen3NextForCausalLM:
    torch.manual_seed(SEED)
    return Qwen3NextForCausalLM(Qwen3NextConfig(**MODEL)).eval().to(device)


def load_prompt(device: torch.device) -> Tensor:
    text = files("strata_gdn").joinpath("data/prompt.txt").read_bytes()
    return torch.tensor([list(text)], device=device)


# Greedy generation, both ways


class _Clock(BaseStreamer):
    """Notes when each token came, and shows a bar once that takes long."""

    def __init__(self, label: str, tokens: int) -> None:
        self.times: list[float] = []
        self._bar = tqdm(total=tokens, desc=label, unit="token", delay=PROGRESS_AFTER_SECONDS, leave=False)

    def put(self, value: Tensor) -> None:
        if self.times:  # the first value is the prompt
            self._bar.update()
        self.times.append(time.perf_counter())

    def end(self) -> None:
        self._bar.close()


@dataclass(frozen=True)
class Generation:
    tokens: list[int]
    logits: Tensor  # [tokens, vocabulary], float32, on the CPU
    prompt_seconds: float
    token_seconds: float  # of a token after the first, the median


def generate(model: Qwen3NextForCausalLM, prompt: Tensor, tokens: int, label: str) -> Generation:
    clock = _Clock(label, tokens)
    result = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=None,
        return_dict_in_generate=True,
        output_logits=True,
        streamer=clock,
    )
    start, first = clock.times[:2]
    steps = [later - earlier for earlier, later in pairwise(clock.times[1:])]
    return Generation(
        tokens=result.sequences[0, prompt.shape[1] :].tolist(),
        logits=torch.cat(result.logits).float().cpu(),
        prompt_seconds=first - start,
        token_seconds=median(steps) if steps else float("nan"),
    )


@contextmanager
def own_fallback() -> Iterator[None]:
    """Transformers' torch code itself: its functions hand over to packages that are installed, on any device."""
    wrapped = {name: function for name, function in vars(modeling).items() if inspect.isfunction(function)}
    own = {name: inspect.unwrap(function) for name, function in wrapped.items()}
    vars(modeling).update(own)
    try:
        yield
    finally:
        vars(modeling).update(wrapped)


def _compare_generations(model: Qwen3NextForCausalLM, prompt: Tensor, tokens: int) -> bool:
    print(f"1. Greedy generation of {tokens} tokens, Transformers' own fallback against strata_gdn")
    results = {}
    for name, scope in (("Transformers", own_fallback), ("strata_gdn", integration.enable)):
        with scope():
            generate(model, prompt[:, :64], 2, f"{name}, warming up")
            with launches() as ran:
                results[name] = generate(model, prompt, tokens, name)
    theirs, ours = results["Transformers"], results["strata_gdn"]
    compared = common_prefix(theirs.tokens, ours.tokens)
    # After the first token that differs the two read different texts.
    rows = slice(0, min(compared + 1, tokens))
    spread = theirs.logits[rows].max() - theirs.logits[rows].min()
    difference = ((theirs.logits[rows] - ours.logits[rows]).abs().max() / spread).item()
    close = difference <= MAX_LOGITS_DIFFERENCE
    print(
        columns(
            [
                ("", "prompt", "a token", "tokens as bytes"),
                *(
                    (
                        name,
                        f"{result.prompt_seconds * 1e3:.1f} ms",
                        f"{result.token_seconds * 1e3:.2f} ms",
                        repr(bytes(result.tokens[:12])) + ("..." if len(result.tokens) > 12 else ""),
                    )
                    for name, result in results.items()
                ),
                (
                    "ratio",
                    f"{theirs.prompt_seconds / ours.prompt_seconds:.1f}x",
                    f"{theirs.token_seconds / ours.token_seconds:.1f}x",
                    f"{compared} of {tokens} the same",
                ),
            ],
            indent=3,
        )
    )
    print(
        f"   Largest difference of the logits: {difference:.1e} of their range "
        f"({'within' if close else 'ABOVE'} {MAX_LOGITS_DIFFERENCE:.0e})"
    )
    _print_kernels(model, dict.fromkeys(GENERATION_OPS, (prompt.shape[1], 1)), ran)
    return close


def common_prefix(left: list[int], right: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(left, right, strict=True)) if x != y), len(left))


def decide(
    op: str, model: Qwen3NextForCausalLM, device: torch.device, tokens: int, precision: Precision = "auto"
) -> registry.Decision:
    """The registry's decision on an op in the model's linear layers on a device."""
    config = model.config
    return registry.decide(
        op,
        arch=_devices.arch(device),
        sms=sms(device),
        dtype="float32",
        tokens=tokens,
        h=config.linear_num_key_heads,
        hv=config.linear_num_value_heads,
        k=config.linear_key_head_dim,
        v=config.linear_value_head_dim,
        precision=precision,
    )


def _print_kernels(model: Qwen3NextForCausalLM, windows: dict[str, tuple[int, ...]], ran: dict[str, int]) -> None:
    """Which kernel the registry picks for each op at these numbers of tokens, why, and how often it ran."""
    rows = {}
    for op, lengths in windows.items():
        for tokens in lengths:
            decision = decide(op, model, model.device, tokens)
            settings = "".join(f", {name} {value}" for name, value in decision.config.items())
            launches = str(ran.get(decision.kernel, "none"))
            rows.setdefault((op, decision.kernel), (op, decision.kernel, launches, decision.reason + settings))
    print("   Kernels (ops of a kind share one):")
    print(columns([("op", "kernel", "launches", "why"), *rows.values()], indent=3))


# A draft verified, half of it rolled back


class LayerLog(NamedTuple):
    """What rolling a linear layer forward over accepted tokens takes."""

    qkv: Tensor  # [1, T, C], the convolution's input
    k: Tensor  # [1, T, H, K]
    d: Tensor  # [1, T, HV, V]
    g: Tensor  # [1, T, HV]


def _verify_linear(layer: nn.Module, rows: list[Tensor], cached) -> tuple[list[Tensor], LayerLog]:
    """A gated DeltaNet layer over drafted rows [1, 1, hidden]: one call an op for all, the projections a row each."""
    projected = [integration.project(layer, row) for row in rows]
    qkv = torch.cat([p.qkv for p in projected], 1)
    y = ops.causal_conv1d_verify(
        qkv, layer.conv1d.weight.squeeze(1), layer.conv1d.bias, cached.conv_states[0], activation=layer.activation
    )
    g, beta = ops.gdn_gates(
        torch.cat([p.a for p in projected], 1), torch.cat([p.b for p in projected], 1), layer.A_log, layer.dt_bias
    )
    o, *log = ops.gated_delta_rule_verify(
        *integration.heads(layer, y), g, beta, cached.recurrent_states[0], qk_l2norm=True
    )
    outputs = [integration.output(layer, o[:, t : t + 1], p.z) for t, p in enumerate(projected)]
    return outputs, LayerLog(qkv, *log)


def _verify(model: Qwen3NextForCausalLM, cache: DynamicCache, draft: list[int]) -> tuple[Tensor, list[LayerLog]]:
    """Logits [T, vocabulary] of the drafted tokens and the linear layers' logs. The linear layers' cache is only read.

    Projections, attention and experts run a row at a time: torch's matrix products change bits with the number of
    rows, the ops of this package do not.
    """
    device, seen = model.device, cache.get_seq_length()
    rows = [model.model.embed_tokens(torch.tensor([[token]], device=device)) for token in draft]
    positions = [model.model.rotary_emb(row, torch.tensor([[seen + t]], device=device)) for t, row in enumerate(rows)]
    logs = []
    for layer, cached in zip(model.model.layers, cache.layers, strict=True):
        normed = [layer.input_layernorm(row) for row in rows]
        if layer.block_type == "linear_attention":
            mixed, log = _verify_linear(layer.linear_attn, normed, cached)
            logs.append(log)
        else:
            mixed = [
                layer.self_attn(row, position, attention_mask=None, past_key_values=cache)[0]
                for row, position in zip(normed, positions, strict=True)
            ]
        rows = [row + m for row, m in zip(rows, mixed, strict=True)]
        rows = [row + layer.mlp(layer.post_attention_layernorm(row)) for row in rows]
    return torch.cat([model.lm_head(model.model.norm(row))[:, -1] for row in rows]), logs


def _linear(cache: DynamicCache) -> list:
    return [layer for layer in cache.layers if hasattr(layer, "recurrent_states")]


def _keep(cache: DynamicCache, logs: list[LayerLog], accepted: int, drafted: int) -> None:
    """Brings a cache that has verified `drafted` tokens to where it would be after the first `accepted` of them."""
    linear = _linear(cache)
    count = torch.tensor([accepted], device=logs[0].qkv.device)
    ops.gated_delta_rule_commit_layers_(
        [layer.recurrent_states[0] for layer in linear],
        [log.k for log in logs],
        [log.d for log in logs],
        [log.g for log in logs],
        count,
    )
    ops.causal_conv1d_commit_layers_([layer.conv_states[0] for layer in linear], [log.qkv for log in logs], count)
    for layer in cache.layers:
        if layer not in linear:
            layer.crop(accepted - drafted)


def _step(model: Qwen3NextForCausalLM, cache: DynamicCache, token: int) -> Tensor:
    """Logits [vocabulary] after one more token."""
    return model(torch.tensor([[token]], device=model.device), past_key_values=cache).logits[0, -1]


def _continue(model: Qwen3NextForCausalLM, cache: DynamicCache, logits: Tensor, tokens: int) -> Tensor:
    """Greedy from `logits`, one token after another: all logits met, [tokens + 1, vocabulary]."""
    met = [logits]
    for _ in range(tokens):
        met.append(_step(model, cache, int(met[-1].argmax())))
    return torch.stack(met)


def _cached_tensors(cache: DynamicCache) -> list[Tensor]:
    linear = _linear(cache)
    return [
        tensor
        for layer in cache.layers
        for tensor in (
            (layer.recurrent_states[0], layer.conv_states[0]) if layer in linear else (layer.keys, layer.values)
        )
    ]


def _roll_back_a_draft(model: Qwen3NextForCausalLM, prompt: Tensor) -> bool:
    print(f"\n2. {DRAFTED} drafted tokens verified, {DRAFTED - ACCEPTED} rejected and rolled back (precision exact)")
    undrafted = DynamicCache(config=model.config)
    after_prompt = model(prompt, past_key_values=undrafted, logits_to_keep=1).logits[0, -1]
    drafted = copy.deepcopy(undrafted)

    truth = _continue(model, undrafted, after_prompt, ACCEPTED)
    expected_cache = copy.deepcopy(undrafted)
    expected = _continue(model, undrafted, truth[-1], CONTINUED)

    right = truth.argmax(-1).tolist()  # the tokens that greedy generation takes, one more than the draft gets right
    wrong = [(right[ACCEPTED] + 1 + i) % model.config.vocab_size for i in range(DRAFTED - ACCEPTED)]
    draft = right[:ACCEPTED] + wrong
    with launches() as ran:
        logits, logs = _verify(model, drafted, draft)
        # Row t says what follows draft[t]; the prompt's last row says what comes first.
        choices = [right[0], *logits.argmax(-1).tolist()]
        accepted = common_prefix(draft, choices[:DRAFTED])
        _keep(drafted, logs, accepted, DRAFTED)
    print(f"   Draft {draft}, the model's own choices {choices[:DRAFTED]}: {accepted} accepted")
    if accepted != ACCEPTED:
        print(f"   WRONG: the first {ACCEPTED} are the model's own, {ACCEPTED} should be accepted")
        return False

    checks = {
        "logits of the accepted tokens": torch.equal(logits[:ACCEPTED], truth[1:]),
        "states, windows, keys and values after the roll-back": all(
            torch.equal(got, want)
            for got, want in zip(_cached_tensors(drafted), _cached_tensors(expected_cache), strict=True)
        ),
        f"logits of the next {CONTINUED} tokens": torch.equal(
            _continue(model, drafted, logits[accepted - 1], CONTINUED), expected
        ),
    }
    for what, equal in checks.items():
        print(f"   {'bit for bit as undrafted' if equal else 'DIFFERENT from undrafted':25} {what}")
    _print_kernels(model, dict.fromkeys(DRAFT_OPS, (DRAFTED,)), ran)
    return all(checks.values())


# The GPU's bits and the CPU's


def _compare_with_the_cpu(model: Qwen3NextForCausalLM, prompt: Tensor, tokens: int) -> bool:
    print(
        "\n3. Every call of an op made on the CPU too, with the same inputs; the model goes on with the CPU's results\n"
        "   (precision exact; matrix products, attention and experts stay on one device: other devices have other bits)"
    )
    own = generate(model, prompt, tokens, "the ops on their device")
    cache = DynamicCache(config=model.config)
    with BesideTheCpu() as beside:
        on_cpu = generate(model, prompt, tokens, "the ops on the CPU too")
        model(prompt, past_key_values=cache, logits_to_keep=1)
        _, logs = _verify(model, cache, own.tokens[:1] * DRAFTED)
        _keep(cache, logs, ACCEPTED, DRAFTED)
    print(
        columns(
            [
                ("op", "calls", "results, states"),
                *((op, str(n), _verdict(beside, op)) for op, n in beside.calls.items()),
            ],
            indent=3,
        )
    )
    for failure in beside.failures[:SHOWN_FAILURES]:
        print(f"   {failure}")
    same = common_prefix(own.tokens, on_cpu.tokens)
    print(f"   Tokens with the ops on either: {same} of {tokens} the same")
    return not beside.failures and same == tokens


def _verdict(beside: BesideTheCpu, op: str) -> str:
    different = sum(failure.startswith(f"{op},") for failure in beside.failures)
    return f"DIFFERENT from the CPU's: {different}" if different else "bit for bit the CPU's"
