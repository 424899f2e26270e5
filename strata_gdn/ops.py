"""The ops of `torch.ops.strata_gdn` as typed Python functions.

Symbols: B batch, N sequences, T tokens, H key heads, HV value heads (a multiple of H), K key dimension, V value
dimension, S slots of a state pool, C convolution channels, W convolution width. The formulas are those of
docs/math.md, the section named in each docstring; layouts, dtypes and the exactness promises are in docs/contract.md.

What all of them share:

- q, k, v: float32, bfloat16 or float16, one dtype for the three. g (the log decay, <= 0) is float32, beta any of the
  three, a recurrent state float32, a convolution state x's dtype or float32, index tensors int32 or int64. Weights,
  a, b and z: any of the three each. The last dimension is contiguous (g, beta, a and b: any strides), every other
  stride is free.
- `state_indices` [N]: the slot of each sequence; -1 skips the sequence (its state is untouched, its output rows are
  zero). None: slot n for sequence n.
- `scale`: the factor on the output, 1 / sqrt(K) unless given.
- `qk_l2norm`: normalise q and k over K first, with `l2_eps` added to the sum of squares.
- `head_map`: value head h reads key head h // (HV / H) ("grouped") or h % H ("tiled").
- `state_layout`: states are [.., HV, K, V] ("kv") or [.., HV, V, K] ("vk").
- `precision`: "exact", "fp32", "fast", or "auto" = the registry's choice (docs/registry.md).
- Errors are raised before anything is allocated or changed. ValueError: a wrong shape, dtype, device, stride or option.
  RuntimeError: not built or not supported for the tensors' device, or grad mode is on and an input requires grad.
- In-place functions bump the version counters of the tensors they write; the raw ops do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _fakes

HeadMap = Literal["grouped", "tiled"]
StateLayout = Literal["kv", "vk"]
Precision = Literal["auto", "exact", "fp32", "fast"]
Result = TypeVar("Result")

__all__ = [
    "causal_conv1d",
    "causal_conv1d_",
    "causal_conv1d_commit_",
    "causal_conv1d_commit_layers_",
    "causal_conv1d_verify",
    "gated_delta_rule",
    "gated_delta_rule_",
    "gated_delta_rule_commit_",
    "gated_delta_rule_commit_layers_",
    "gated_delta_rule_commit_verify_",
    "gated_delta_rule_verify",
    "gated_rms_norm",
    "gdn_decode_layer_",
    "gdn_gates",
    "gdn_verify_layer",
    "qk_l2norm",
]

_fakes.register()

# The overloads, looked up once: a lookup by name would cost the decode path about a microsecond a call.
_ops = torch.ops.strata_gdn
_gated_delta_rule = _ops.gated_delta_rule.default
_gated_delta_rule_ = _ops.gated_delta_rule_.default
_gated_delta_rule_verify = _ops.gated_delta_rule_verify.default
_gated_delta_rule_commit_ = _ops.gated_delta_rule_commit_.default
_gated_delta_rule_commit_layers_ = _ops.gated_delta_rule_commit_layers_.default
_gated_delta_rule_commit_verify_ = _ops.gated_delta_rule_commit_verify_.default
_causal_conv1d = _ops.causal_conv1d.default
_causal_conv1d_ = _ops.causal_conv1d_.default
_causal_conv1d_verify = _ops.causal_conv1d_verify.default
_causal_conv1d_commit_ = _ops.causal_conv1d_commit_.default
_causal_conv1d_commit_layers_ = _ops.causal_conv1d_commit_layers_.default
_qk_l2norm = _ops.qk_l2norm.default
_gdn_gates = _ops.gdn_gates.default
_gated_rms_norm = _ops.gated_rms_norm.default
_gdn_decode_layer_ = _ops.gdn_decode_layer_.default
_gdn_verify_layer = _ops.gdn_verify_layer.default


def _ordered(op: Callable[..., Result], *arguments: Tensor | None, **options: Any) -> Result:
    """A call with precision="fp32", whose work buffer nothing can stand in for.

    Raises:
        torch.OutOfMemoryError: torch's allocator refused it. (The op itself raises RuntimeError: the stable interface
            between an extension and torch knows no other.)
    """
    try:
        return op(*arguments, **options)
    except RuntimeError as error:
        if "no memory for a tensor" in str(error):
            raise torch.OutOfMemoryError(str(error)) from error
        raise


def _forward_only(op: str, *inputs: Tensor | None) -> None:
    """Refuses inputs that autograd would expect a gradient for: the ops have none, and a silent zero would be wrong."""
    if forward_ad._current_level >= 0:
        for tensor in inputs:
            if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
                raise RuntimeError(f"{op}: no forward-mode derivative: an input has a tangent")
    if torch.is_grad_enabled():
        for tensor in inputs:
            if tensor is not None and tensor.requires_grad:
                raise RuntimeError(
                    f"{op}: no backward yet: an input requires grad and grad mode is on; call it under torch.no_grad() "
                    "or torch.inference_mode(), or detach the input"
                )


def _written(*tensors: Tensor) -> None:
    """Tells autograd that these were changed in place. A compiler knows it from the schema and cannot trace this."""
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(tensors)


def _options(
    scale: float | None,
    qk_l2norm: bool,
    l2_eps: float,
    head_map: str,
    state_layout: str,
    precision: str = "auto",
) -> dict[str, Any]:
    """The options that are not the schema's defaults: each one passed costs the dispatcher half a microsecond."""
    options: dict[str, Any] = {}
    if scale is not None:
        options["scale"] = scale
    if qk_l2norm is not False:
        options["qk_l2norm"] = qk_l2norm
    if l2_eps != 1e-6:
        options["l2_eps"] = l2_eps
    if head_map != "grouped":
        options["head_map"] = head_map
    if state_layout != "kv":
        options["state_layout"] = state_layout
    if precision != "auto":
        options["precision"] = precision
    return options


def _layer_options(
    scale: float | None,
    l2_eps: float,
    norm_eps: float,
    allow_neg_eigval: bool,
    head_map: str,
    state_layout: str,
    norm_activation: str,
) -> dict[str, Any]:
    """`_options` of the fused layer ops, which normalise q and k always."""
    options = _options(scale, False, l2_eps, head_map, state_layout)
    if norm_eps != 1e-6:
        options["norm_eps"] = norm_eps
    if allow_neg_eigval is not False:
        options["allow_neg_eigval"] = allow_neg_eigval
    if norm_activation != "silu":
        options["norm_activation"] = norm_activation
    return options


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    scale: float | None = None,
    qk_l2norm: bool = False,
    l2_eps: float = 1e-6,
    head_map: HeadMap = "grouped",
    state_layout: StateLayout = "kv",
    precision: Precision = "auto",
) -> tuple[Tensor, Tensor]:
    """The gated delta rule over a prompt, out of place (docs/math.md, "The recurrence").

    Args:
        q, k: [B, T, H, K].
        v: [B, T, HV, V], q's dtype.
        g: [B, T, HV] float32, the natural logarithm of the decay, <= 0.
        beta: [B, T, HV], the step size of the correction.
        initial_state: [N, HV, K, V] float32 (or [N, HV, V, K], see `state_layout`); None: zeros.
        cu_seqlens: [N + 1]; with B = 1, sequence n is rows cu_seqlens[n] .. cu_seqlens[n + 1] of T. None: N = B.

    Returns:
        o [B, T, HV, V] in q's dtype, and final_state, float32, in initial_state's shape.
    """
    _forward_only("gated_delta_rule", q, k, v, g, beta, initial_state)
    arguments = q, k, v, g, beta, initial_state, cu_seqlens
    options = _options(scale, qk_l2norm, l2_eps, head_map, state_layout, precision)
    if precision == "fp32":
        return _ordered(_gated_delta_rule, *arguments, **options)
    return _gated_delta_rule(*arguments, **options)


def gated_delta_rule_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    state_indices: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    *,
    scale: float | None = None,
    qk_l2norm: bool = False,
    l2_eps: float = 1e-6,
    head_map: HeadMap = "grouped",
    state_layout: StateLayout = "kv",
    precision: Precision = "auto",
) -> Tensor:
    """Prompt pieces and decode steps (T = 1 included) on a pool of states in place (docs/math.md, "The recurrence").

    Args:
        q, k: [B, T, H, K].
        v: [B, T, HV, V], q's dtype.
        g: [B, T, HV] float32, the natural logarithm of the decay, <= 0.
        beta: [B, T, HV], the step size of the correction.
        state: [S, HV, K, V] float32 (or [S, HV, V, K], see `state_layout`), read and written.
        state_indices: [N], each sequence's slot, -1 = skip; None: slot n.
        cu_seqlens: [N + 1]; with B = 1, sequence n is rows cu_seqlens[n] .. cu_seqlens[n + 1] of T. None: N = B.
        has_initial_state: [N] bool; False starts that sequence from zeros, whatever its slot holds. None: all True.

    Returns:
        o [B, T, HV, V] in q's dtype.
    """
    _forward_only("gated_delta_rule_", q, k, v, g, beta, state)
    arguments = q, k, v, g, beta, state, state_indices, cu_seqlens, has_initial_state
    options = _options(scale, qk_l2norm, l2_eps, head_map, state_layout, precision)
    if precision == "fp32":
        o = _ordered(_gated_delta_rule_, *arguments, **options)
    else:
        o = _gated_delta_rule_(*arguments, **options)
    _written(state)
    return o


def gated_delta_rule_verify(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    state_indices: Tensor | None = None,
    parents: Tensor | None = None,
    *,
    scale: float | None = None,
    qk_l2norm: bool = False,
    l2_eps: float = 1e-6,
    head_map: HeadMap = "grouped",
    state_layout: StateLayout = "kv",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The outputs of T <= 128 drafted tokens, the state only read (docs/math.md, "Verification").

    The output bits are those of T single steps; `gated_delta_rule_commit_` later brings the state to any accepted
    prefix.

    Args:
        q, k: [N, T, H, K].
        v: [N, T, HV, V], q's dtype.
        g: [N, T, HV] float32, the natural logarithm of the decay, <= 0.
        beta: [N, T, HV], the step size of the correction.
        state: [S, HV, K, V] float32 (or [S, HV, V, K], see `state_layout`).
        state_indices: [N], each sequence's slot, -1 = skip; None: slot n. One slot may serve several sequences.
        parents: [N, T]; token t follows token parents[n, t] < t, or the state where that is -1. None: a chain.

    Returns:
        o [N, T, HV, V] in q's dtype, and the logs of a replay, float32: k_log [N, T, H, K] (the keys, normalised if
        asked), d_log [N, T, HV, V] (the corrections), g_log [N, T, HV] (the log decays).
    """
    _forward_only("gated_delta_rule_verify", q, k, v, g, beta, state)
    return _gated_delta_rule_verify(
        q,
        k,
        v,
        g,
        beta,
        state,
        state_indices,
        parents,
        **_options(scale, qk_l2norm, l2_eps, head_map, state_layout),
    )


def gated_delta_rule_commit_(
    state: Tensor,
    k_log: Tensor,
    d_log: Tensor,
    g_log: Tensor,
    accepted: Tensor,
    state_indices: Tensor | None = None,
    path: Tensor | None = None,
    *,
    head_map: HeadMap = "grouped",
    state_layout: StateLayout = "kv",
) -> None:
    """Advances states over the accepted tokens of a verification (docs/math.md, "Verification").

    The state bits are those after as many single steps; accepted = 0 changes nothing.

    Args:
        state: [S, HV, K, V] float32 (or [S, HV, V, K], see `state_layout`), read and written.
        k_log: [N, T, H, K] float32, from the verification, as are the next two.
        d_log: [N, T, HV, V] float32.
        g_log: [N, T, HV] float32.
        accepted: [N], how many tokens of each window to keep, on the state's device.
        state_indices: [N], each sequence's slot, -1 = skip; None: slot n.
        path: [N, T], the rows of the accepted tokens of a tree, in order; None: rows 0, 1, 2, ...
    """
    _forward_only("gated_delta_rule_commit_", state, k_log, d_log, g_log)
    _gated_delta_rule_commit_(
        state, k_log, d_log, g_log, accepted, state_indices, path, head_map=head_map, state_layout=state_layout
    )
    _written(state)


def gated_delta_rule_commit_layers_(
    states: Sequence[Tensor],
    k_logs: Sequence[Tensor],
    d_logs: Sequence[Tensor],
    g_logs: Sequence[Tensor],
    accepted: Tensor,
    state_indices: Tensor | None = None,
    path: Tensor | None = None,
    *,
    head_map: HeadMap = "grouped",
    state_layout: StateLayout = "kv",
) -> None:
    """`gated_delta_rule_commit_` for all layers of a model at once; the layers share accepted, slots and path.

    Args:
        states: one [S, HV, K, V] float32 (or [S, HV, V, K], see `state_layout`) a layer, read and written.
        k_logs: one [N, T, H, K] float32 a layer, from the verification, as are the next two.
        d_logs: one [N, T, HV, V] float32 a layer.
        g_logs: one [N, T, HV] float32 a layer.
        accepted: [N], how many tokens of each window to keep, on the states' device.
        state_indices: [N], each sequence's slot, -1 = skip; None: slot n.
        path: [N, T], the rows of the accepted tokens of a tree, in order; None: rows 0, 1, 2, ...
    """
    _forward_only("gated_delta_rule_commit_layers_", *states, *k_logs, *d_logs, *g_logs)
    _gated_delta_rule_commit_layers_(
        states, k_logs, d_logs, g_logs, accepted, state_indices, path, head_map=head_map, state_layout=state_layout
    )
    _written(*states)


def gated_delta_rule_commit_verify_(
    state: Tensor,
    k_log: Tensor,
    d_log: Tensor,
    g_log: Tensor,
    accepted: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state_indices: Tensor | None = None,
    path: Tensor | None = None,
    parents: Tensor | None = None,
    *,
    scale: float | None = None,
    qk_l2norm: bool = False,
    l2_eps: float = 1e-6,
    head_map: HeadMap = "grouped",
    state_layout: StateLayout = "kv",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A speculative round in one pass over the state: the last round committed, this round's drafts verified.

    Bit for bit `gated_delta_rule_commit_` followed by `gated_delta_rule_verify` (docs/math.md, "Verification").

    Args:
        state: [S, HV, K, V] float32 (or [S, HV, V, K], see `state_layout`), read and written (committed).
        k_log: [N, T', H, K] float32, from the last verification, as are the next two.
        d_log: [N, T', HV, V] float32.
        g_log: [N, T', HV] float32.
        accepted: [N], how many tokens of each last window to keep, on the state's device.
        q, k: [N, T, H, K], the new drafts, T <= 128.
        v: [N, T, HV, V], q's dtype.
        g: [N, T, HV] float32, the natural logarithm of the decay, <= 0.
        beta: [N, T, HV], the step size of the correction.
        state_indices: [N], each sequence's slot, -1 = skip; None: slot n.
        path: [N, T'], the rows of the accepted tokens of the last window's tree, in order; None: rows 0, 1, 2, ...
        parents: [N, T], the tree of the new drafts; None: a chain.

    Returns:
        o [N, T, HV, V] in q's dtype, and the new logs, float32: k_log [N, T, H, K], d_log [N, T, HV, V],
        g_log [N, T, HV].
    """
    _forward_only("gated_delta_rule_commit_verify_", state, k_log, d_log, g_log, q, k, v, g, beta)
    result = _gated_delta_rule_commit_verify_(
        state,
        k_log,
        d_log,
        g_log,
        accepted,
        q,
        k,
        v,
        g,
        beta,
        state_indices,
        path,
        parents,
        **_options(scale, qk_l2norm, l2_eps, head_map, state_layout),
    )
    _written(state)
    return result


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    activation: Literal["silu", "none"] = "silu",
) -> tuple[Tensor, Tensor]:
    """The causal depthwise convolution over a prompt, out of place (docs/math.md, "The convolution").

    Args:
        x: [B, T, C].
        weight: [C, W], the newest tap last.
        bias: [C] or None.
        initial_state: [N, C, L], L >= W - 1: the last L columns before the prompt, the newest last; None: zeros.
        cu_seqlens: [N + 1]; with B = 1, sequence n is rows cu_seqlens[n] .. cu_seqlens[n + 1] of T. None: N = B.
        activation: on the result, "silu" or "none".

    Returns:
        y [B, T, C] in x's dtype, and final_state [N, C, L] in initial_state's dtype (L = W - 1 and x's dtype without
        one).
    """
    _forward_only("causal_conv1d", x, weight, bias, initial_state)
    return _causal_conv1d(x, weight, bias, initial_state, cu_seqlens, activation=activation)


def causal_conv1d_(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    state_indices: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    *,
    activation: Literal["silu", "none"] = "silu",
) -> Tensor:
    """The causal depthwise convolution on a pool of windows in place, T = 1 included (docs/math.md, "The convolution").

    Args:
        x: [B, T, C].
        weight: [C, W], the newest tap last.
        bias: [C] or None.
        state: [S, C, L], L >= W - 1, x's dtype or float32: sliding windows, the newest column last, read and written.
        state_indices: [N], each sequence's slot, -1 = skip; None: slot n.
        cu_seqlens: [N + 1]; with B = 1, sequence n is rows cu_seqlens[n] .. cu_seqlens[n + 1] of T. None: N = B.
        has_initial_state: [N] bool; False starts that sequence from zeros, whatever its slot holds. None: all True.
        activation: on the result, "silu" or "none".

    Returns:
        y [B, T, C] in x's dtype.
    """
    _forward_only("causal_conv1d_", x, weight, bias, state)
    y = _causal_conv1d_(x, weight, bias, state, state_indices, cu_seqlens, has_initial_state, activation=activation)
    _written(state)
    return y


def causal_conv1d_verify(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    state_indices: Tensor | None = None,
    parents: Tensor | None = None,
    *,
    activation: Literal["silu", "none"] = "silu",
) -> Tensor:
    """The convolution of drafted tokens, the windows only read (docs/math.md, "Verification"). x is its own log.

    Args:
        x: [N, T, C].
        weight: [C, W], the newest tap last.
        bias: [C] or None.
        state: [S, C, L], L >= W - 1, x's dtype or float32.
        state_indices: [N], each sequence's slot, -1 = skip; None: slot n.
        parents: [N, T]; token t follows token parents[n, t] < t, or the window where that is -1. None: a chain.
        activation: on the result, "silu" or "none".

    Returns:
        y [N, T, C] in x's dtype.
    """
    _forward_only("causal_conv1d_verify", x, weight, bias, state)
    return _causal_conv1d_verify(x, weight, bias, state, state_indices, parents, activation=activation)


def causal_conv1d_commit_(
    state: Tensor,
    x: Tensor,
    accepted: Tensor,
    state_indices: Tensor | None = None,
    path: Tensor | None = None,
) -> None:
    """Slides windows over the accepted rows of a verification's x (docs/math.md, "Verification").

    Args:
        state: [S, C, L], x's dtype or float32, read and written.
        x: [N, T, C], what `causal_conv1d_verify` was given.
        accepted: [N], how many tokens of each window to keep (it may exceed L), on the state's device.
        state_indices: [N], each sequence's slot, -1 = skip; None: slot n.
        path: [N, T], the rows of the accepted tokens of a tree, in order; None: rows 0, 1, 2, ...
    """
    _forward_only("causal_conv1d_commit_", state, x)
    _causal_conv1d_commit_(state, x, accepted, state_indices, path)
    _written(state)


def causal_conv1d_commit_layers_(
    states: Sequence[Tensor],
    xs: Sequence[Tensor],
    accepted: Tensor,
    state_indices: Tensor | None = None,
    path: Tensor | None = None,
) -> None:
    """`causal_conv1d_commit_` for all layers of a model at once; the layers share accepted, slots and path.

    Args:
        states: one [S, C, L] a layer, read and written.
        xs: one [N, T, C] a layer, what `causal_conv1d_verify` was given.
        accepted: [N], how many tokens of each window to keep, on the states' device.
        state_indices: [N], each sequence's slot, -1 = skip; None: slot n.
        path: [N, T], the rows of the accepted tokens of a tree, in order; None: rows 0, 1, 2, ...
    """
    _forward_only("causal_conv1d_commit_layers_", *states, *xs)
    _causal_conv1d_commit_layers_(states, xs, accepted, state_indices, path)
    _written(*states)


def qk_l2norm(q: Tensor, k: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """q and k divided by their lengths over the last dimension (docs/math.md, "Norms").

    Args:
        q, k: [.., H, K], rank 1 to 4.
        eps: added to the sum of squares.

    Returns:
        The normalised q and k in their own dtypes. (Inside the recurrence, `qk_l2norm=True` keeps them in float32.)
    """
    _forward_only("qk_l2norm", q, k)
    return _qk_l2norm(q, k, eps)


def gdn_gates(
    a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor, *, allow_neg_eigval: bool = False
) -> tuple[Tensor, Tensor]:
    """The log decay and the step size from a layer's projections (docs/math.md, "Gates").

    Args:
        a, b: [.., HV], rank 1 to 4, any strides.
        A_log: [HV], the logarithm of the decay rate.
        dt_bias: [HV].
        allow_neg_eigval: doubles beta, so that 1 - beta may be negative.

    Returns:
        g = -exp(A_log) softplus(a + dt_bias) and beta = sigmoid(b), float32, in a's shape.
    """
    _forward_only("gdn_gates", a, b, A_log, dt_bias)
    return _gdn_gates(a, b, A_log, dt_bias, allow_neg_eigval=allow_neg_eigval)


def gated_rms_norm(
    o: Tensor,
    z: Tensor,
    weight: Tensor,
    *,
    eps: float = 1e-6,
    activation: Literal["silu", "sigmoid"] = "silu",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """RMS norm over the last dimension times the gate's activation, one pass, one rounding (docs/math.md, "Norms").

    Args:
        o: [.., HV, V], rank 1 to 4.
        z: the gate, o's shape.
        weight: [V].
        eps: added to the mean of squares.
        activation: on z, "silu" or "sigmoid".
        dtype: the result's; None: o's.

    Returns:
        o / sqrt(mean(o^2) + eps) * weight * activation(z), o's shape.
    """
    _forward_only("gated_rms_norm", o, z, weight)
    return _gated_rms_norm(o, z, weight, eps=eps, activation=activation, dtype=dtype)


def gdn_decode_layer_(
    qkv: Tensor,
    z: Tensor,
    a: Tensor,
    b: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    conv_state: Tensor,
    state: Tensor,
    state_indices: Tensor | None = None,
    *,
    num_key_heads: int,
    scale: float | None = None,
    l2_eps: float = 1e-6,
    norm_eps: float = 1e-6,
    allow_neg_eigval: bool = False,
    head_map: HeadMap = "grouped",
    state_layout: StateLayout = "kv",
    norm_activation: Literal["silu", "sigmoid"] = "silu",
) -> Tensor:
    """A layer between its projections, T = 1..8 tokens a sequence, both states in place (docs/math.md, "The layer").

    Bit for bit `causal_conv1d_` (SiLU), `gdn_gates`, `gated_delta_rule_` with qk_l2norm=True and `gated_rms_norm`.

    Args:
        qkv: [N, T, C] before the convolution, C = 2 H K + HV V: q | k | v.
        z: [N, T, HV, V], the norm's gate.
        a, b: [N, T, HV], any strides.
        conv_weight: [C, W], the newest tap last.
        conv_bias: [C] or None.
        A_log, dt_bias: [HV].
        norm_weight: [V].
        conv_state: [S, C, L], L >= W - 1, qkv's dtype or float32, read and written.
        state: [S, HV, K, V] float32 (or [S, HV, V, K], see `state_layout`), read and written.
        state_indices: [N], each sequence's slot in both pools, -1 = skip; None: slot n.
        num_key_heads: H.
        norm_eps, norm_activation: `eps` and `activation` of `gated_rms_norm`.
        allow_neg_eigval: as in `gdn_gates`.

    Returns:
        y [N, T, HV, V] in qkv's dtype, the output projection's input.
    """
    _forward_only(
        "gdn_decode_layer_", qkv, z, a, b, conv_weight, conv_bias, A_log, dt_bias, norm_weight, conv_state, state
    )
    y = _gdn_decode_layer_(
        qkv,
        z,
        a,
        b,
        conv_weight,
        conv_bias,
        A_log,
        dt_bias,
        norm_weight,
        conv_state,
        state,
        state_indices,
        num_key_heads=num_key_heads,
        **_layer_options(scale, l2_eps, norm_eps, allow_neg_eigval, head_map, state_layout, norm_activation),
    )
    _written(conv_state, state)
    return y


def gdn_verify_layer(
    qkv: Tensor,
    z: Tensor,
    a: Tensor,
    b: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    conv_state: Tensor,
    state: Tensor,
    state_indices: Tensor | None = None,
    parents: Tensor | None = None,
    *,
    num_key_heads: int,
    scale: float | None = None,
    l2_eps: float = 1e-6,
    norm_eps: float = 1e-6,
    allow_neg_eigval: bool = False,
    head_map: HeadMap = "grouped",
    state_layout: StateLayout = "kv",
    norm_activation: Literal["silu", "sigmoid"] = "silu",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A layer between its projections for drafted tokens, both states only read (docs/math.md, "Verification").

    Bit for bit `causal_conv1d_verify` (SiLU), `gdn_gates`, `gated_delta_rule_verify` with qk_l2norm=True and
    `gated_rms_norm`. Commit with `gated_delta_rule_commit_` and, qkv being the convolution's log,
    `causal_conv1d_commit_`.

    Args:
        qkv: [N, T, C] before the convolution, C = 2 H K + HV V: q | k | v.
        z: [N, T, HV, V], the norm's gate.
        a, b: [N, T, HV], any strides.
        conv_weight: [C, W], the newest tap last.
        conv_bias: [C] or None.
        A_log, dt_bias: [HV].
        norm_weight: [V].
        conv_state: [S, C, L], L >= W - 1, qkv's dtype or float32.
        state: [S, HV, K, V] float32 (or [S, HV, V, K], see `state_layout`).
        state_indices: [N], each sequence's slot in both pools, -1 = skip; None: slot n.
        parents: [N, T]; token t follows token parents[n, t] < t, or the states where that is -1. None: a chain.
        num_key_heads: H.
        norm_eps, norm_activation: `eps` and `activation` of `gated_rms_norm`.
        allow_neg_eigval: as in `gdn_gates`.

    Returns:
        y [N, T, HV, V] in qkv's dtype, and the logs of a replay, float32: k_log [N, T, H, K], d_log [N, T, HV, V],
        g_log [N, T, HV].
    """
    _forward_only(
        "gdn_verify_layer", qkv, z, a, b, conv_weight, conv_bias, A_log, dt_bias, norm_weight, conv_state, state
    )
    return _gdn_verify_layer(
        qkv,
        z,
        a,
        b,
        conv_weight,
        conv_bias,
        A_log,
        dt_bias,
        norm_weight,
        conv_state,
        state,
        state_indices,
        parents,
        num_key_heads=num_key_heads,
        **_layer_options(scale, l2_eps, norm_eps, allow_neg_eigval, head_map, state_layout, norm_activation),
    )
