"""`python -m strata_gdn bench --device cpu`: each op beside Transformers' torch fallback, on the same inputs.

The two take turns, so that whatever else the machine does meets both; the medians are compared. A prompt's turn is one
call, a step's is twenty, so that each finds its own state in the caches and not the other's temporaries. Both do the
same work: the fallback's recurrence includes repeating the key heads and copying the new state into the cache, as in
Transformers' layer, because the op does without. Every case checks that the two computed the same, and asks the
registry which kernel really ran.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _devices, ops
from .._launches import launches
from .._table import columns
from .common import MissingExtra, select
from .record import write

try:
    from tqdm import tqdm
    from transformers.models.qwen3_next import modeling_qwen3_next as modeling
except ImportError as error:
    raise MissingExtra(
        "the benchmark's peer is Transformers' fallback; install it with `pip install .[transformers]`"
    ) from error

KEY_HEADS, VALUE_HEADS, HEAD_DIM, CONV_WIDTH = 16, 32, 128, 4
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * HEAD_DIM
SHAPE = {"B": 1, "H": KEY_HEADS, "HV": VALUE_HEADS, "K": HEAD_DIM, "V": HEAD_DIM, "C": CHANNELS, "W": CONV_WIDTH}
EPS = 1e-6

PROMPT_TOKENS, STEP_TOKENS = 2048, 1
PROMPT_SAMPLES = 7
STEP_TURN_CALLS = 20
PROGRESS_AFTER_SECONDS = 2.0

# The largest difference over the range that rounding explains; bfloat16 results are rounded at 2^-9.
MAX_DIFFERENCE = {torch.float32: 1e-4, torch.bfloat16: 1e-2}


@dataclass(frozen=True)
class Case:
    """One line of the table: two functions of no arguments that compute the same."""

    name: str
    op: str
    tokens: int
    dtype: torch.dtype
    ours: Callable[[], Tensor]
    theirs: Callable[[], Tensor]


@dataclass(frozen=True)
class Result:
    name: str
    op: str
    dtype: str
    tokens: int
    kernel: str
    difference: float  # the largest, over the fallback's range
    difference_allowed: float
    ours_seconds: list[float]
    theirs_seconds: list[float]

    @property
    def ratio(self) -> float:
        return median(self.theirs_seconds) / median(self.ours_seconds)


def run(args: argparse.Namespace) -> int:
    """Times the cases, prints the table and writes the JSON; 1 where a result differs from the fallback's."""
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device("cpu")
    environment = _devices.describe(device)
    with torch.inference_mode():
        cases = select(list(_cases(device, args.tokens or PROMPT_TOKENS)), args.case)
        progress = tqdm(cases, unit="case", delay=PROGRESS_AFTER_SECONDS, leave=False)
        results = [_measure(case, args.samples or PROMPT_SAMPLES) for case in progress]
    print(_table(results, environment))
    if args.json:
        write(_record(results, environment, args.json), args.json)
    wrong = [result for result in results if not result.difference <= result.difference_allowed]
    for result in wrong:
        print(
            f"strata_gdn: {result.name} {result.dtype} differs from the fallback by {result.difference:.1e} of its "
            f"range, above {result.difference_allowed:.0e}",
            file=sys.stderr,
        )
    return 1 if wrong else 0


# Timing


def _wall_clock(call: Callable[[], Tensor]) -> float:
    """Seconds of one call that returns when it is done, as all on the CPU do."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _measure(case: Case, samples: int) -> Result:
    turn_calls = STEP_TURN_CALLS if case.tokens == STEP_TOKENS else 1
    ours, theirs = [], []
    with launches() as served:
        difference = _difference(case.ours(), case.theirs())
        for _ in range(samples):
            theirs += [_wall_clock(case.theirs) for _ in range(turn_calls)]
            ours += [_wall_clock(case.ours) for _ in range(turn_calls)]
    return Result(
        name=case.name,
        op=case.op,
        dtype=str(case.dtype).removeprefix("torch."),
        tokens=case.tokens,
        kernel=_kernel_that_ran(case, served, calls=len(ours) + 1),
        difference=difference,
        difference_allowed=MAX_DIFFERENCE[case.dtype],
        ours_seconds=ours,
        theirs_seconds=theirs,
    )


def _difference(ours: Tensor, theirs: Tensor) -> float:
    ours, theirs = ours.float(), theirs.float()
    return ((ours - theirs).abs().max() / (theirs.max() - theirs.min())).item()


def _kernel_that_ran(case: Case, served: dict[str, int], calls: int) -> str:
    """The one kernel that was launched, once a call; anything else would be a time of something else."""
    if len(served) != 1 or set(served.values()) != {calls}:
        expected = f"expected one kernel to serve {calls} calls of {case.op}"
        raise RuntimeError(f"bench: {case.name}: {expected}; served: {served}")
    return next(iter(served))


# The cases


def _cases(device: torch.device, prompt_tokens: int) -> Iterator[Case]:
    """Two lengths and two dtypes of each op, with the inputs that a layer gives it, states in place."""
    for dtype in MAX_DIFFERENCE:
        for kind, tokens in (("prompt", prompt_tokens), ("step", STEP_TOKENS)):
            for make in (_recurrence, _convolution, _gates, _norm):
                torch.manual_seed(0)
                op, ours, theirs = make(device, dtype, tokens)
                yield Case(f"{kind}, {op.rstrip('_')}", op, tokens, dtype, ours, theirs)


def _fallback(function: Callable) -> Callable:
    """Transformers' torch code itself: the decorated function may hand over to a package that is installed."""
    return inspect.unwrap(function)


Calls = tuple[str, Callable[[], Tensor], Callable[[], Tensor]]


def _recurrence(device: torch.device, dtype: torch.dtype, tokens: int) -> Calls:
    qkv = torch.randn(1, tokens, CHANNELS, dtype=dtype, device=device)
    q, k, v = (
        x.unflatten(-1, (-1, HEAD_DIM))
        for x in qkv.split([KEY_HEADS * HEAD_DIM, KEY_HEADS * HEAD_DIM, VALUE_HEADS * HEAD_DIM], -1)
    )
    g = F.logsigmoid(torch.randn(1, tokens, VALUE_HEADS, device=device)) / 16
    beta = torch.rand(1, tokens, VALUE_HEADS, device=device).to(dtype)
    state = 0.1 * torch.randn(1, VALUE_HEADS, HEAD_DIM, HEAD_DIM, device=device)
    fallback = _fallback(
        modeling.torch_recurrent_gated_delta_rule if tokens == STEP_TOKENS else modeling.torch_chunk_gated_delta_rule
    )
    their_state = state.clone()

    def theirs() -> Tensor:
        o, new_state = fallback(
            *(x.repeat_interleave(VALUE_HEADS // KEY_HEADS, 2) for x in (q, k)),
            v,
            g=g,
            beta=beta,
            initial_state=their_state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        their_state.copy_(new_state)
        return o

    return "gated_delta_rule_", lambda: ops.gated_delta_rule_(q, k, v, g, beta, state, qk_l2norm=True), theirs


def _convolution(device: torch.device, dtype: torch.dtype, tokens: int) -> Calls:
    x = torch.randn(1, tokens, CHANNELS, dtype=dtype, device=device)
    weight = torch.randn(CHANNELS, CONV_WIDTH, dtype=dtype, device=device)
    state = torch.randn(1, CHANNELS, CONV_WIDTH, dtype=dtype, device=device)
    their_state = state.clone()
    prompt, step = _fallback(modeling.causal_conv1d_fn), _fallback(modeling.causal_conv1d_update)
    if tokens == STEP_TOKENS:
        return (
            "causal_conv1d_",
            lambda: ops.causal_conv1d_(x, weight, None, state),
            lambda: step(x.mT, their_state, weight, None, "silu").mT,
        )
    return (
        "causal_conv1d",
        lambda: ops.causal_conv1d(x, weight)[0],
        lambda: prompt(x.mT, weight, None, activation="silu").mT,
    )


def _gates(device: torch.device, dtype: torch.dtype, tokens: int) -> Calls:
    a, b = torch.randn(2, 1, tokens, VALUE_HEADS, dtype=dtype, device=device)
    A_log, dt_bias = torch.randn(VALUE_HEADS, device=device), torch.ones(VALUE_HEADS, device=device)

    def theirs() -> Tensor:
        beta = b.sigmoid()  # part of what is timed; the decay is what is compared
        g = -A_log.float().exp() * F.softplus(a.float() + dt_bias)
        return (g, beta)[0]

    return "gdn_gates", lambda: ops.gdn_gates(a, b, A_log, dt_bias)[0], theirs


def _norm(device: torch.device, dtype: torch.dtype, tokens: int) -> Calls:
    o, z = torch.randn(2, 1, tokens, VALUE_HEADS, HEAD_DIM, dtype=dtype, device=device)
    norm = modeling.Qwen3NextRMSNormGated(HEAD_DIM, eps=EPS).to(device=device, dtype=dtype)
    fallback = _fallback(modeling.Qwen3NextRMSNormGated.forward)
    return "gated_rms_norm", lambda: ops.gated_rms_norm(o, z, norm.weight, eps=EPS), lambda: fallback(norm, o, z)


# What is reported


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def _table(results: list[Result], environment: dict[str, str | int]) -> str:
    rows = [("case", "dtype", "tokens", "strata_gdn", "fallback", "ratio", "difference", "kernel")]
    rows += [
        (
            result.name,
            result.dtype,
            str(result.tokens),
            _time(median(result.ours_seconds)),
            _time(median(result.theirs_seconds)),
            f"{result.ratio:.1f}x",
            f"{result.difference:.0e}",
            result.kernel,
        )
        for result in results
    ]
    heading = (
        f"{environment['device']} ({environment['arch']}), {environment['threads']} threads, "
        f"torch {environment['torch']}, Transformers {environment['transformers']}\n"
        f"{' '.join(f'{symbol}={size}' for symbol, size in SHAPE.items())}; medians; the fallback is "
        "Transformers' torch code for Qwen3-Next\n"
    )
    return heading + columns(rows)


def _record(results: list[Result], environment: dict[str, str | int], output: Path) -> dict:
    return {
        "command": _devices.command(output),
        "environment": environment,
        "shape": SHAPE,
        "results": [
            {
                **asdict(result),
                "ours_median_seconds": median(result.ours_seconds),
                "theirs_median_seconds": median(result.theirs_seconds),
                "ratio": result.ratio,
            }
            for result in results
        ],
    }
