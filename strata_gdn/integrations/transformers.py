"""Transformers' Qwen3-Next on the strata_gdn ops: prompt, decode, convolution, gates and norm, its source untouched.

    from strata_gdn.integrations import transformers as strata_transformers

    strata_transformers.enable()          # every Qwen3-Next model of this process, existing or to come
    ...
    strata_transformers.disable()

    with strata_transformers.enable():    # or for a scope
        model.generate(...)

docs/transformers.md says what is replaced, what differs in the last bits and what is refused.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, get_args

import torch
from torch import Tensor, nn

from .. import ops
from ..ops import Precision

try:
    import transformers
    from transformers.cache_utils import Cache, LinearAttentionLayer
    from transformers.integrations.accelerate import force_accelerate_hooks
except ImportError as error:
    raise ImportError(
        "strata_gdn.integrations.transformers needs Transformers 5.17: `pip install .[transformers]` in the repository"
    ) from error

__all__ = ["Projections", "disable", "enable", "enabled", "heads", "output", "project"]

TESTED_VERSION = "5.17"


@dataclass(frozen=True)
class Projections:
    """A layer's input projections: qkv [B, T, C] (q | k | v), z [B * T, H, HV / H, V] (a view), a and b [B, T, HV]."""

    qkv: Tensor
    z: Tensor
    a: Tensor
    b: Tensor


def project(layer: nn.Module, hidden_states: Tensor) -> Projections:
    """The projections of hidden_states [B, T, hidden] by a Qwen3NextGatedDeltaNet, in the order the ops take.

    The checkpoint interleaves q, k, v and z a key head; the convolution wants all q, then all k, then all v, which
    costs the one copy made here.
    """
    H, K = layer.num_k_heads, layer.head_k_dim
    group = layer.num_v_heads // H
    group_value_dim = group * layer.head_v_dim
    interleaved = layer.in_proj_qkvz(hidden_states).unflatten(-1, (H, -1))
    *qkv_parts, z = interleaved.split([K, K, group_value_dim, group_value_dim], -1)
    qkv, channel = hidden_states.new_empty((*hidden_states.shape[:2], layer.conv_dim), dtype=z.dtype), 0
    for part in qkv_parts:
        channels = H * part.shape[-1]
        qkv.narrow(-1, channel, channels).unflatten(-1, (H, -1)).copy_(part)
        channel += channels
    b, a = layer.in_proj_ba(hidden_states).unflatten(-1, (H, -1)).split([group, group], -1)
    return Projections(qkv, z.flatten(0, 1).unflatten(-1, (group, layer.head_v_dim)), a.flatten(2), b.flatten(2))


def heads(layer: nn.Module, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k [B, T, H, K] and v [B, T, HV, V] as views of the convolution's output [B, T, C]."""
    q, k, v = qkv.split([layer.key_dim, layer.key_dim, layer.value_dim], -1)
    return (
        q.unflatten(-1, (layer.num_k_heads, layer.head_k_dim)),
        k.unflatten(-1, (layer.num_k_heads, layer.head_k_dim)),
        v.unflatten(-1, (layer.num_v_heads, layer.head_v_dim)),
    )


def output(layer: nn.Module, o: Tensor, z: Tensor) -> Tensor:
    """The gated norm and the output projection of the recurrence's o [B, T, HV, V]: [B, T, hidden]."""
    return layer.out_proj(layer.norm(o.view(z.shape), z).view(*o.shape[:2], -1))


def _refuse_unserved(layer: nn.Module, qkv: Tensor, precision: Precision) -> None:
    """Raises the recurrence's own error for a head dimension or dtype it does not serve, before any state changes."""
    q, k, v = heads(layer, qkv[:1, :0])
    gate = qkv.new_empty(v.shape[:3], dtype=torch.float32)
    ops.gated_delta_rule(q, k, v, gate, gate, qk_l2norm=True, precision=precision)


def _convolve_cached(layer: nn.Module, qkv: Tensor, cached: LinearAttentionLayer, weight: Tensor) -> Tensor:
    """The convolution after the cached window, which it slides."""
    W = weight.shape[1]
    if not cached.is_conv_states_initialized[0]:
        cached.lazy_initialization(conv_states=qkv.mT, conv_kernel_size=W)
    window, bias = cached.conv_states[0], layer.conv1d.bias
    if not cached.record_past:
        y = ops.causal_conv1d_(qkv, weight, bias, window, activation=layer.activation)
        cached.has_previous_state[0] = True
        return y
    # The cache keeps every column until its next crop, so that it can take some back.
    y, _ = ops.causal_conv1d(qkv, weight, bias, window, activation=layer.activation)
    cached.update_conv_state(qkv.mT, conv_kernel_size=W)
    return y


def _recurrent_state(layer: nn.Module, batch: int, cached: LinearAttentionLayer, device: torch.device) -> Tensor:
    """The cached state [B, HV, K, V], float32 whatever the model's dtype: its sums run over the whole text."""
    if not cached.is_recurrent_states_initialized[0]:
        shape = (batch, layer.num_v_heads, layer.head_k_dim, layer.head_v_dim)
        cached.lazy_initialization(recurrent_states=torch.zeros(shape, dtype=torch.float32, device=device))
    elif cached.recurrent_states[0].dtype != torch.float32:
        cached.recurrent_states[0] = cached.recurrent_states[0].float()
    return cached.recurrent_states[0]


def _layer_forward(modeling: ModuleType, precision: Precision) -> Callable[..., Tensor]:
    """Qwen3NextGatedDeltaNet.forward on the ops."""

    @force_accelerate_hooks("conv1d")
    def forward(
        self: nn.Module,
        hidden_states: Tensor,
        cache_params: Cache | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        cu_seqlens = kwargs.get("cu_seq_lens_q")
        if cu_seqlens is not None and cache_params is not None:
            raise ValueError(
                "Qwen3NextGatedDeltaNet on strata_gdn: packed sequences (cu_seq_lens_q) have no place in a cache that "
                "holds one state a batch row; pass use_cache=False"
            )
        if cu_seqlens is None and kwargs.get("seq_idx") is not None:
            raise ValueError(
                "Qwen3NextGatedDeltaNet on strata_gdn: seq_idx separates packed sequences in the convolution only; "
                "pass cu_seq_lens_q, which separates them in the recurrence too"
            )
        hidden_states = modeling.apply_mask_to_padding_states(hidden_states, attention_mask)
        projected = project(self, hidden_states)
        qkv, weight = projected.qkv, self.conv1d.weight.squeeze(1)
        continues = cache_params is not None and cache_params.has_previous_state(self.layer_idx)
        if cache_params is not None and not continues and not torch.compiler.is_compiling():
            _refuse_unserved(self, qkv, precision)
        g, beta = ops.gdn_gates(projected.a, projected.b, self.A_log, self.dt_bias)
        if cache_params is None:
            qkv, _ = ops.causal_conv1d(qkv, weight, self.conv1d.bias, cu_seqlens=cu_seqlens, activation=self.activation)
            o, _ = ops.gated_delta_rule(
                *heads(self, qkv), g, beta, cu_seqlens=cu_seqlens, qk_l2norm=True, precision=precision
            )
        else:
            cached = cache_params.layers[self.layer_idx]
            state = _recurrent_state(self, qkv.shape[0], cached, qkv.device)
            qkv = _convolve_cached(self, qkv, cached, weight)
            o = ops.gated_delta_rule_(*heads(self, qkv), g, beta, state, qk_l2norm=True, precision=precision)
        return output(self, o, projected.z)

    return forward


def _norm_forward(self: nn.Module, hidden_states: Tensor, gate: Tensor) -> Tensor:
    """Qwen3NextRMSNormGated.forward on the op: one rounding, where Transformers also rounds before the weight."""
    return ops.gated_rms_norm(hidden_states, gate, self.weight, eps=self.variance_epsilon, activation=self.activation)


@dataclass(frozen=True)
class _Patch:
    """One method to replace, and what its class must look like for the replacement to be right."""

    class_name: str
    parameters: tuple[str, ...]  # of forward
    attributes: tuple[str, ...]  # set by __init__, used by the replacement
    forward: Callable[[ModuleType, Precision], Callable[..., Tensor]]


_PATCHES: dict[str, tuple[_Patch, ...]] = {
    "qwen3_next": (
        _Patch(
            "Qwen3NextGatedDeltaNet",
            ("self", "hidden_states", "cache_params", "attention_mask", "kwargs"),
            (
                *("in_proj_qkvz", "in_proj_ba", "conv1d", "A_log", "dt_bias", "norm", "out_proj"),
                *("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "key_dim", "value_dim", "conv_dim"),
                *("layer_idx", "activation"),
            ),
            _layer_forward,
        ),
        _Patch(
            "Qwen3NextRMSNormGated",
            ("self", "hidden_states", "gate"),
            ("weight", "variance_epsilon", "activation"),
            lambda modeling, precision: _norm_forward,
        ),
    ),
}

# The cache's methods that the replacements call, with the parameters they pass.
_CACHE_METHODS = {
    "lazy_initialization": {"conv_states", "recurrent_states", "conv_kernel_size"},
    "update_conv_state": {"conv_states", "conv_kernel_size"},
}
_CACHE_ATTRIBUTES = {
    *("conv_states", "recurrent_states", "is_conv_states_initialized", "is_recurrent_states_initialized"),
    *("has_previous_state", "record_past"),
}

_active: dict[str, Precision] = {}
_originals: dict[tuple[str, str], Callable[..., Tensor]] = {}


def _parameters(function: Callable) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _attributes_set(cls: type) -> set[str]:
    """Names that `cls.__init__` and its bases' refer to."""
    return {name for base in cls.__mro__ if "__init__" in vars(base) for name in _code_names(base.__init__)}


def _code_names(function: Callable) -> Iterable[str]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code.co_names if code is not None else ()


def _differences(modeling: ModuleType, model_type: str) -> list[str]:
    """What of Transformers is not as the replacements assume."""
    found = []
    for patch in _PATCHES[model_type]:
        cls = getattr(modeling, patch.class_name, None)
        if cls is None:
            found.append(f"{patch.class_name} is not there")
            continue
        if _parameters(cls.forward) != patch.parameters:
            found.append(
                f"{patch.class_name}.forward takes ({', '.join(_parameters(cls.forward))}), "
                f"expected ({', '.join(patch.parameters)})"
            )
        missing = set(patch.attributes) - _attributes_set(cls)
        if missing:
            found.append(f"{patch.class_name} has no {', '.join(sorted(missing))}")
    if not hasattr(modeling, "apply_mask_to_padding_states"):
        found.append("apply_mask_to_padding_states is not there")
    for method, parameters in _CACHE_METHODS.items():
        missing = parameters - set(_parameters(getattr(LinearAttentionLayer, method, lambda: None)))
        if missing:
            found.append(f"LinearAttentionLayer.{method} takes no {', '.join(sorted(missing))}")
    missing = _CACHE_ATTRIBUTES - _attributes_set(LinearAttentionLayer)
    if missing:
        found.append(f"LinearAttentionLayer has no {', '.join(sorted(missing))}")
    return found


def _modeling(model_type: str) -> ModuleType:
    return importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")


def _set(model_type: str, precision: Precision | None) -> None:
    """Makes the classes of a model type run on the ops with this precision, or (None) as Transformers wrote them."""
    modeling = _modeling(model_type)
    for patch in _PATCHES[model_type]:
        key, cls = (model_type, patch.class_name), getattr(modeling, patch.class_name)
        if precision is None:
            cls.forward = _originals.pop(key)
        else:
            _originals.setdefault(key, cls.forward)
            cls.forward = patch.forward(modeling, precision)
    if precision is None:
        del _active[model_type]
    else:
        _active[model_type] = precision


def _known(model_types: tuple[str, ...]) -> tuple[str, ...]:
    for model_type in model_types:
        if model_type not in _PATCHES:
            raise ValueError(f"model_types must be of {', '.join(_PATCHES)}; got {model_type}")
    return model_types or tuple(_PATCHES)


class _Enabled:
    """What `enable` returns: leaving it as a context puts back what was before."""

    def __init__(self, before: dict[str, Precision | None]) -> None:
        self._before = before

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        for model_type, precision in self._before.items():
            if precision is not None or model_type in _active:
                _set(model_type, precision)


def enable(*model_types: str, precision: Precision = "auto") -> _Enabled:
    """Makes Transformers' models of these types use the ops, in this process, existing models included.

    Enabling twice is enabling once (the last precision holds). As a context manager it puts back what was before.

    Args:
        model_types: config.model_type of the models; none given: all that are known ("qwen3_next").
        precision: of the recurrence (docs/contract.md); "exact" gives the same bits in every batching and on every
            device.

    Raises:
        ValueError: an unknown model type or precision.
        RuntimeError: this Transformers differs from what the replacements were written for.
    """
    if precision not in get_args(Precision):
        raise ValueError(f"precision must be one of {', '.join(get_args(Precision))}; got {precision}")
    model_types = _known(model_types)
    for model_type in model_types:
        if model_type not in _active and (differences := _differences(_modeling(model_type), model_type)):
            raise RuntimeError(
                f"strata_gdn knows {model_type} as in Transformers {TESTED_VERSION}; in {transformers.__version__} "
                + "; ".join(differences)
            )
    before = {model_type: _active.get(model_type) for model_type in model_types}
    for model_type in model_types:
        _set(model_type, precision)
    return _Enabled(before)


def disable(*model_types: str) -> None:
    """Puts Transformers' own methods back; none given: all. Disabling what is not enabled does nothing."""
    for model_type in _known(model_types):
        if model_type in _active:
            _set(model_type, None)


def enabled(model_type: str) -> bool:
    """Whether models of this type run on the ops now."""
    return _known((model_type,))[0] in _active
