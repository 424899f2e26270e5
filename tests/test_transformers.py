"""Transformers' Qwen3-Next on the ops: the same within rounding, its cache honoured, the unserved refused."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs the optional transformers package")

from transformers import DynamicCache, Qwen3NextConfig, Qwen3NextForCausalLM  # noqa: E402
from transformers.models.qwen3_next import modeling_qwen3_next as modeling  # noqa: E402

from strata_gdn import registry  # noqa: E402
from strata_gdn.integrations import transformers as integration  # noqa: E402

MODEL_TYPE = "qwen3_next"
VOCABULARY = 97


def _config(**changes) -> Qwen3NextConfig:
    return Qwen3NextConfig(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
            "initializer_range": 0.1,
            **changes,
        }
    )


def _model(dtype: torch.dtype = torch.float32, **changes) -> Qwen3NextForCausalLM:
    torch.manual_seed(0)
    return Qwen3NextForCausalLM(_config(**changes)).to(dtype).eval()


def _tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(length))


def _relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference over the expected values' range."""
    spread = expected.max() - expected.min()
    return ((got - expected).abs().max() / spread).item()


@pytest.fixture(autouse=True)
def _as_found():
    yield
    integration.disable()


@pytest.fixture(autouse=True)
def _one_thread(threads):
    """The matrices are so small that threads would only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def model() -> Qwen3NextForCausalLM:
    return _model()


def _run(model, pieces: list[torch.Tensor], mask: torch.Tensor | None = None) -> tuple[torch.Tensor, DynamicCache]:
    """Logits of the pieces one after another, and the cache after them."""
    cache, seen, logits = DynamicCache(config=model.config), 0, []
    for piece in pieces:
        seen += piece.shape[1]
        part = None if mask is None else mask[:, :seen]
        logits.append(model(piece, attention_mask=part, past_key_values=cache).logits)
    return torch.cat(logits, 1), cache


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("lengths", [[1], [2, 1, 1], [70, 1, 1, 1], [9, 67, 1, 3]])
def test_logits_and_cache_are_the_fallbacks_within_rounding(model, batch, lengths):
    pieces = list(_tokens(batch, sum(lengths)).split(lengths, 1))
    expected, expected_cache = _run(model, pieces)
    with integration.enable():
        got, cache = _run(model, pieces)
    assert _relative(got, expected) < 1e-4
    for layer, expected_layer in zip(cache.layers, expected_cache.layers, strict=True):
        if hasattr(layer, "recurrent_states"):
            assert _relative(layer.conv_states[0], expected_layer.conv_states[0]) < 1e-4
            assert _relative(layer.recurrent_states[0], expected_layer.recurrent_states[0]) < 1e-4


def test_without_a_cache(model):
    tokens = _tokens(2, 33)
    expected = model(tokens, use_cache=False).logits
    with integration.enable():
        assert _relative(model(tokens, use_cache=False).logits, expected) < 1e-4


def test_the_ops_serve_every_linear_layer(model):
    before = registry.served()
    with integration.enable():
        _run(model, [_tokens(1, 5), _tokens(1, 1)])
    ran = {kernel: count - before.get(kernel, 0) for kernel, count in registry.served().items()}
    linear_layers, forwards = 3, 2
    for op in ("gated_delta_rule", "causal_conv1d", "gdn_gates", "gated_rms_norm"):
        kernels = {row.kernel for row in registry.kernels() if row.op == op}
        assert sum(ran.get(kernel, 0) for kernel in kernels) >= linear_layers * forwards, op


@pytest.mark.parametrize("beams", [1, 2])
def test_generates_the_fallbacks_tokens(model, beams):
    tokens = _tokens(2, 11)
    options = {"max_new_tokens": 12, "do_sample": False, "num_beams": beams, "pad_token_id": 0}
    expected = model.generate(tokens, **options)
    with integration.enable():
        assert model.generate(tokens, **options).tolist() == expected.tolist()


def test_left_padding_changes_no_row(model):
    tokens, padded = _tokens(1, 21), 6
    mask = torch.ones(2, tokens.shape[1] + 2, dtype=torch.long)
    mask[1, :padded] = 0
    batch = torch.randint(VOCABULARY, mask.shape, generator=torch.Generator().manual_seed(1))
    batch[1, padded:] = tokens[0, padded - 2 :]
    pieces = [batch[:, :-2], batch[:, -2:-1], batch[:, -1:]]
    with integration.enable():
        together, _ = _run(model, pieces, mask)
        alone, _ = _run(model, [batch[1:, padded:-2], batch[1:, -2:-1], batch[1:, -1:]])
        unmasked, _ = _run(model, pieces)
    assert _relative(together[1:, padded:], alone) < 1e-4
    assert _relative(unmasked[1:, padded:], alone) > 1e-2


def test_packed_sequences_do_not_meet(model):
    layer = model.model.layers[0].linear_attn
    hidden = torch.randn(1, 40, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    bounds = [0, 7, 31, 40]
    with integration.enable():
        packed = layer(hidden, cu_seq_lens_q=torch.tensor(bounds, dtype=torch.int32))
        alone = torch.cat([layer(hidden[:, a:b]) for a, b in itertools.pairwise(bounds)], 1)
        assert _relative(packed, alone) < 1e-5
        assert _relative(layer(hidden), alone) > 1e-2


def test_packed_sequences_are_refused_where_they_would_be_mixed(model):
    layer = model.model.layers[0].linear_attn
    hidden = torch.zeros(1, 4, model.config.hidden_size)
    with integration.enable():
        with pytest.raises(ValueError, match=r"packed sequences .* have no place in a cache"):
            layer(hidden, DynamicCache(config=model.config), cu_seq_lens_q=torch.tensor([0, 2, 4]))
        with pytest.raises(ValueError, match="seq_idx separates packed sequences in the convolution only"):
            layer(hidden, seq_idx=torch.zeros(1, 4, dtype=torch.int32))


def test_recorded_past_can_be_cropped(model):
    """Assisted generation records the convolution's past and crops it; the recurrent state stays."""

    def conv_states(cropped: int) -> list[torch.Tensor]:
        cache = DynamicCache(config=model.config)
        model(_tokens(1, 9), past_key_values=cache)
        cache.activate_past_recording()
        model(_tokens(1, 5), past_key_values=cache)
        cache.crop(-cropped)
        return [layer.conv_states[0] for layer in cache.layers if hasattr(layer, "conv_states")]

    expected = {cropped: conv_states(cropped) for cropped in (0, 2)}
    with integration.enable():
        for cropped, states in expected.items():
            for got, state in zip(conv_states(cropped), states, strict=True):
                assert got.shape == state.shape
                assert _relative(got, state) < 1e-4


def test_decode_is_in_place(model):
    with integration.enable():
        _, cache = _run(model, [_tokens(1, 6)])
        state, window = cache.layers[0].recurrent_states[0], cache.layers[0].conv_states[0]
        before = state.clone(), window.clone()
        model(_tokens(1, 1), past_key_values=cache)
    assert cache.layers[0].recurrent_states[0] is state
    assert cache.layers[0].conv_states[0] is window
    assert not torch.equal(state, before[0])
    assert torch.equal(window[..., :-1], before[1][..., 1:])


def test_16_bit_models_keep_a_float32_state():
    """Against the float32 model of the same weights, ours is no further off than Transformers' own.

    No experts: their router turns a last-bit difference into another expert.
    """
    model = _model(torch.bfloat16, num_experts=0)
    pieces = [_tokens(1, 40), _tokens(1, 1)]
    fallback, _ = _run(model, pieces)
    with integration.enable():
        got, cache = _run(model, pieces)
    assert cache.layers[0].recurrent_states[0].dtype == torch.float32
    assert cache.layers[0].conv_states[0].dtype == torch.bfloat16
    exact, _ = _run(copy.deepcopy(model).float(), pieces)
    assert _relative(got.float(), exact) < 1.25 * _relative(fallback.float(), exact)


def test_a_cache_started_by_the_fallback_is_continued(model):
    pieces = [_tokens(1, 20), _tokens(1, 1)]
    expected, _ = _run(model, pieces)
    cache = DynamicCache(config=model.config)
    model(pieces[0], past_key_values=cache)
    cache.layers[0].recurrent_states[0] = cache.layers[0].recurrent_states[0].double()
    with integration.enable():
        got = model(pieces[1], past_key_values=cache).logits
    assert cache.layers[0].recurrent_states[0].dtype == torch.float32
    assert _relative(got, expected[:, -1:]) < 1e-4


def test_a_reset_cache_starts_from_nothing(model):
    with integration.enable():
        _, cache = _run(model, [_tokens(1, 8)])
        linear = [layer for layer in cache.layers if hasattr(layer, "recurrent_states")]
        for layer in linear:
            layer.reset()
        model.model.layers[0].linear_attn(torch.zeros(1, 1, model.config.hidden_size), cache)
        assert not linear[0].recurrent_states[0].any()


def test_views_not_copies(model):
    layer = model.model.layers[0].linear_attn
    hidden = torch.randn(2, 5, model.config.hidden_size)
    projected = integration.project(layer, hidden)
    q, k, v, z, b, a = layer.fix_query_key_value_ordering(layer.in_proj_qkvz(hidden), layer.in_proj_ba(hidden))
    assert torch.equal(projected.qkv, torch.cat([q.flatten(2), k.flatten(2), v.flatten(2)], -1))
    assert torch.equal(projected.z.reshape(z.shape), z)
    assert torch.equal(projected.a, a)
    assert torch.equal(projected.b, b)
    assert projected.z._is_view()
    assert not projected.z.is_contiguous()
    for view in integration.heads(layer, projected.qkv):
        assert view.untyped_storage().data_ptr() == projected.qkv.untyped_storage().data_ptr()


def test_layer_compiles_whole(model):
    torch.compiler.reset()
    layer = model.model.layers[0].linear_attn
    with integration.enable():
        _, cache = _run(model, [_tokens(1, 6)])
        compiled_cache = copy.deepcopy(cache)
        hidden = torch.randn(1, 1, model.config.hidden_size)
        expected = layer(hidden, cache)
        got = torch.compile(layer, fullgraph=True, backend="aot_eager")(hidden, compiled_cache)
    assert torch.equal(got, expected)
    for name in ("recurrent_states", "conv_states"):
        assert torch.equal(getattr(compiled_cache.layers[0], name)[0], getattr(cache.layers[0], name)[0])


def _methods() -> tuple:
    return modeling.Qwen3NextGatedDeltaNet.forward, modeling.Qwen3NextRMSNormGated.forward


def test_enable_and_disable():
    own = _methods()
    integration.disable()
    assert _methods() == own
    integration.enable()
    integration.enable(MODEL_TYPE)
    assert integration.enabled(MODEL_TYPE)
    assert all(replaced is not original for replaced, original in zip(_methods(), own, strict=True))
    integration.disable()
    integration.disable(MODEL_TYPE)
    assert not integration.enabled(MODEL_TYPE)
    assert _methods() == own


def test_a_scope_puts_back_what_was_before(model):
    own = _methods()
    with integration.enable():
        assert integration.enabled(MODEL_TYPE)
        with integration.enable(precision="exact"):
            _run(model, [_tokens(1, 3)])
        assert integration.enabled(MODEL_TYPE)
    assert _methods() == own
    with pytest.raises(KeyError, match="of the body"), integration.enable():
        raise KeyError("of the body")
    assert _methods() == own
    with integration.enable():
        integration.disable()
    assert _methods() == own


def test_wrong_arguments():
    with pytest.raises(ValueError, match="model_types must be of qwen3_next; got llama"):
        integration.enable("llama")
    with pytest.raises(ValueError, match="precision must be one of auto, exact, fp32, fast; got half"):
        integration.enable(precision="half")


def test_another_transformers_is_refused(monkeypatch):
    own = _methods()
    monkeypatch.setattr(modeling.Qwen3NextRMSNormGated, "forward", lambda self, x: x)
    monkeypatch.setattr(modeling.Qwen3NextGatedDeltaNet, "__init__", lambda self: None)
    with pytest.raises(RuntimeError) as raised:
        integration.enable()
    assert str(raised.value) == (
        f"strata_gdn knows qwen3_next as in Transformers 5.17; in {transformers.__version__} "
        "Qwen3NextGatedDeltaNet has no A_log, activation, conv1d, conv_dim, dt_bias, head_k_dim, head_v_dim, "
        "in_proj_ba, in_proj_qkvz, key_dim, layer_idx, norm, num_k_heads, num_v_heads, out_proj, value_dim; "
        "Qwen3NextRMSNormGated.forward takes (self, x), expected (self, hidden_states, gate)"
    )
    assert _methods()[0] is own[0]


def test_training_is_refused(model):
    with integration.enable(), torch.enable_grad(), pytest.raises(RuntimeError, match="no backward yet"):
        model(_tokens(1, 4))


def test_unserved_head_dimension_is_refused_before_the_cache_changes():
    model = _model(linear_key_head_dim=32)
    cache = DynamicCache(config=model.config)
    with integration.enable(), pytest.raises(ValueError, match=r"gated_delta_rule: .*64.*128.*256"):
        model(_tokens(1, 4), past_key_values=cache)
    assert not cache.layers[0].is_conv_states_initialized[0]
    assert not cache.has_previous_state(0)
