"""Every op bit for bit against the scalar loops of the exact order."""

from __future__ import annotations

from typing import Any

import cases
import oracle
import pytest
import torch
from cases import BF16, CALLS, DTYPES, F16, F32, ODD_TOKENS, Call, Heads, cu_seqlens, index
from compare import assert_same_bits
from torch import Tensor


def check(op: str, **arguments: Any) -> tuple[Tensor, ...]:
    """The op's results, after a comparison with the oracle's: results, states, and all memory around them."""
    call = Call(op, arguments)
    expected = call.copy()
    actual_results, expected_results = call.run(), expected.run(oracle)
    assert len(actual_results) == len(expected_results)
    for i, (actual, result) in enumerate(zip(actual_results, expected_results, strict=True)):
        assert_same_bits(actual, result, f"{op}: result {i}")
    for (name, actual), (_, result) in zip(call.buffers(), expected.buffers(), strict=True):
        assert_same_bits(actual, result, f"{op}: memory of {name} afterwards")
    return actual_results


@pytest.mark.parametrize("name", CALLS)
def test_every_call(name: str) -> None:
    check(name.split()[0], **CALLS[name]())


# The recurrence

# Every length, and in turn each K, V, HV / H, dtype, layout, head map and kind of gate.
PROMPTS = [
    (T, Heads(H, H * ratio, K, V), DTYPES[i % 3], ("kv", "vk")[i % 2], ("grouped", "tiled")[i // 2 % 2])
    for i, (T, (H, ratio, K, V)) in enumerate(
        zip(
            ODD_TOKENS,
            [
                (1, 1, 64, 64), (2, 2, 128, 128), (1, 3, 256, 64), (2, 4, 64, 256), (3, 1, 128, 64), (2, 3, 64, 128),
                (1, 4, 256, 256), (2, 2, 256, 128), (2, 1, 128, 256), (1, 2, 64, 64), (2, 3, 128, 128),
                (2, 2, 64, 64), (1, 2, 128, 64), (2, 2, 64, 128), (1, 3, 128, 128), (1, 1, 256, 64), (1, 2, 64, 64),
                (2, 2, 64, 64), (1, 2, 128, 64), (1, 2, 64, 64),
            ],
            strict=True,
        )
    )
]  # fmt: skip


@pytest.mark.parametrize(("tokens", "heads", "dtype", "layout", "head_map"), PROMPTS)
def test_prompt(tokens: int, heads: Heads, dtype: torch.dtype, layout: str, head_map: str) -> None:
    check(
        "gated_delta_rule",
        **cases.recurrence(heads, 1, tokens, dtype, gates=("slow", "model")[tokens % 2]),
        initial_state=cases.state_pool(heads, 1, layout),
        state_layout=layout,
        head_map=head_map,
        qk_l2norm=tokens % 3 == 0,
    )


def test_long_prompt() -> None:
    heads = Heads(1, 1, 64, 64)
    inputs = cases.recurrence(heads, 1, 4099, BF16, gates="slow")
    check("gated_delta_rule", **inputs, initial_state=cases.state_pool(heads, 1), qk_l2norm=True)


@pytest.mark.parametrize(
    ("lengths", "dtype", "layout"),
    [
        ([1], F32, "kv"), ([0], BF16, "vk"), ([0, 0, 7, 0], F32, "vk"), ([5, 0, 0, 64, 1, 33], BF16, "kv"),
        ([17, 3, 0], F16, "vk"), ([], F32, "kv"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("initial", [True, False])
def test_packed_sequences(lengths: list[int], dtype: torch.dtype, layout: str, initial: bool) -> None:
    heads = Heads(2, 4, 64, 128)
    check(
        "gated_delta_rule",
        **cases.recurrence(heads, 1, sum(lengths), dtype),
        initial_state=cases.state_pool(heads, len(lengths), layout) if initial else None,
        cu_seqlens=cu_seqlens(*lengths),
        state_layout=layout,
    )


@pytest.mark.parametrize("beta_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_scale_and_eps(dtype: torch.dtype, beta_dtype: torch.dtype) -> None:
    heads = Heads(1, 2, 64, 64)
    inputs = cases.recurrence(heads, 2, 9, dtype, beta_dtype=beta_dtype)
    check("gated_delta_rule", **inputs, scale=0.3, qk_l2norm=True, l2_eps=0.01)


@pytest.mark.parametrize(
    ("batch", "tokens", "dtype", "layout", "head_map"),
    [
        (1, 1, F32, "kv", "tiled"), (4, 1, BF16, "vk", "grouped"), (3, 2, F16, "kv", "grouped"),
        (2, 33, BF16, "vk", "tiled"), (0, 4, F32, "kv", "grouped"), (2, 0, F32, "vk", "grouped"),
    ],
)  # fmt: skip
def test_pool_in_place(batch: int, tokens: int, dtype: torch.dtype, layout: str, head_map: str) -> None:
    heads, slots = Heads(2, 6, 128, 64), batch + 3
    slot_of = torch.randperm(slots)[:batch]
    slot_of[1:2] = -1
    check(
        "gated_delta_rule_",
        **cases.recurrence(heads, batch, tokens, dtype),
        state=cases.state_pool(heads, slots, layout),
        state_indices=index(*slot_of.tolist()),
        has_initial_state=torch.arange(batch) % 2 == 0,
        state_layout=layout,
        head_map=head_map,
    )


def test_pool_with_packed_sequences() -> None:
    heads, lengths = Heads(1, 2, 64, 64), [3, 0, 1, 0, 8]
    check(
        "gated_delta_rule_",
        **cases.recurrence(heads, 1, sum(lengths), BF16),
        state=cases.state_pool(heads, 7),
        state_indices=index(6, 0, -1, 2, 3),
        cu_seqlens=cu_seqlens(*lengths),
        has_initial_state=torch.tensor([True, False, True, True, False]),
    )


def test_slot_n_is_sequence_n_s_without_indices() -> None:
    heads = Heads(1, 2, 64, 64)
    check("gated_delta_rule_", **cases.recurrence(heads, 2, 3), state=cases.state_pool(heads, 4))


# Verify and commit

WINDOWS = [
    (1, Heads(1, 1, 64, 64), F32, "kv", "grouped"),
    (2, Heads(2, 4, 128, 128), BF16, "vk", "tiled"),
    (5, Heads(1, 3, 256, 64), F16, "kv", "tiled"),
    (8, Heads(2, 8, 64, 256), BF16, "vk", "grouped"),
    (17, Heads(2, 2, 128, 64), F32, "kv", "grouped"),
    (64, Heads(1, 2, 64, 64), BF16, "kv", "tiled"),
    (128, Heads(1, 1, 64, 64), F16, "vk", "grouped"),
]


@pytest.mark.parametrize("branches", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize(("tokens", "heads", "dtype", "layout", "head_map"), WINDOWS)
def test_verify_commit_and_both_in_one(
    tokens: int, heads: Heads, dtype: torch.dtype, layout: str, head_map: str, branches: bool
) -> None:
    batch = 2
    options = {"state_layout": layout, "head_map": head_map}
    slots = {"state_indices": index(2, 0)}
    state = cases.state_pool(heads, 3, layout)
    parents = cases.tree(batch, tokens) if branches else None
    window = {**cases.recurrence(heads, batch, tokens, dtype), **slots, "parents": parents}
    _, *logs = check("gated_delta_rule_verify", **window, state=state, qk_l2norm=True, **options)
    log = dict(zip(("k_log", "d_log", "g_log"), logs, strict=True))
    choice = cases.window_choice(batch, tokens, False)
    if branches:
        leaves = torch.randint(tokens, (batch,)).tolist()
        paths = [cases.path_to(parents[n], leaf) for n, leaf in enumerate(leaves)]
        choice = {
            "accepted": index(*map(len, paths)),
            "path": index(*(cases.padded_path(p, tokens) for p in paths)),
        }
    check("gated_delta_rule_commit_", state=state.clone(), **log, **choice, **slots, **options)
    check("gated_delta_rule_commit_verify_", state=state, **log, **choice, **window, **options)


def test_commit_layers_with_skipped_slots() -> None:
    heads, layers, batch, tokens = Heads(2, 4, 64, 128), 5, 3, 6
    each = [cases.logs(heads, batch, tokens) for _ in range(layers)]
    check(
        "gated_delta_rule_commit_layers_",
        states=[cases.state_pool(heads, 4) for _ in range(layers)],
        **{name + "s": [log[name] for log in each] for name in each[0]},
        accepted=index(6, 3, 0),
        state_indices=index(3, -1, 0),
    )


# The convolution


@pytest.mark.parametrize(
    ("tokens", "channels", "width", "window", "dtype", "state_dtype"),
    [
        (1, 64, 1, 0, F32, F32), (5, 65, 1, 3, BF16, BF16), (2, 130, 2, 1, F16, F16), (3, 1, 2, 5, BF16, F32),
        (1, 100, 4, 3, BF16, BF16), (31, 64, 4, 3, F32, F32), (33, 70, 4, 7, F16, F32), (64, 256, 4, 3, BF16, F32),
        (65, 63, 3, 2, F32, F32), (257, 17, 4, 9, BF16, BF16), (4099, 3, 4, 3, F32, F32), (0, 66, 4, 4, F32, F32),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("bias", "activation"), [(True, "silu"), (False, "silu"), (True, "none")])
def test_convolution(
    tokens: int, channels: int, width: int, window: int, dtype: torch.dtype, state_dtype: torch.dtype, bias: bool,
    activation: str,
) -> None:  # fmt: skip
    def inputs(lengths: int, rows: int) -> dict[str, Any]:
        made = cases.convolution(channels, width, lengths, rows, dtype, bias=bias, weight_dtype=state_dtype)
        return {**made, "activation": activation}

    def windows(slots: int) -> Tensor:
        return cases.window_pool(channels, slots, window, state_dtype)

    check("causal_conv1d", **inputs(2, tokens))
    check("causal_conv1d", **inputs(2, tokens), initial_state=windows(2))
    check("causal_conv1d_", **inputs(2, tokens), state=windows(3), state_indices=index(2, -1))
    check(
        "causal_conv1d_",
        **inputs(1, tokens + 3),
        state=windows(5),
        state_indices=index(4, 0, 2, 1),
        cu_seqlens=cu_seqlens(2, 0, tokens, 1),
        has_initial_state=torch.tensor([True, False, False, True]),
    )


@pytest.mark.parametrize("branches", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize(
    ("tokens", "channels", "width", "window", "dtype", "state_dtype"),
    [
        (1, 64, 4, 3, BF16, BF16), (6, 70, 4, 3, F32, F32), (8, 130, 2, 6, BF16, F32), (33, 64, 3, 2, F16, F16),
        (128, 5, 4, 3, F16, F32), (7, 9, 1, 0, F32, F32), (7, 9, 1, 2, BF16, BF16),
    ],
)  # fmt: skip
def test_convolution_verify_and_commit(
    tokens: int, channels: int, width: int, window: int, dtype: torch.dtype, state_dtype: torch.dtype, branches: bool
) -> None:
    batch = 3
    inputs = cases.convolution(channels, width, batch, tokens, dtype)
    state = cases.window_pool(channels, 4, window, state_dtype)
    slots = {"state_indices": index(3, -1, 0)}
    check(
        "causal_conv1d_verify", **inputs, state=state, **slots, parents=cases.tree(batch, tokens) if branches else None
    )
    for _ in range(3):
        choice = cases.window_choice(batch, tokens, branches)
        check("causal_conv1d_commit_", state=state.clone(), x=inputs["x"], **slots, **choice)


# Pointwise ops


@pytest.mark.parametrize("K", [64, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_qk_l2norm(K: int, dtype: torch.dtype) -> None:
    mixed = cases.packed(Heads(3, 3, K, 64), 2, 5, dtype)
    heads = cases.split(mixed, Heads(3, 3, K, 64))
    check("qk_l2norm", q=heads["q"], k=heads["k"])
    check("qk_l2norm", q=heads["q"][0, 0, 0] * 1e4, k=heads["k"][1] * 0, eps=1e-3)


SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e-38, 19.999, 20.0, 20.000002, 21.0, 88.7, 89.0, 104.0, -17.0, -87.4, -89.0,
    -104.0, -110.0, 3e38, -3e38, torch.inf, -torch.inf, torch.nan,
]  # fmt: skip


@pytest.mark.parametrize("allow_neg_eigval", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gates_at_special_values(dtype: torch.dtype, allow_neg_eigval: bool) -> None:
    """Each special value of a with each of A_log and of dt_bias, and of b."""
    special = torch.tensor(SPECIAL).to(dtype)
    count = len(special)
    for dt_bias in (torch.zeros(count), special.float(), special.roll(5).float()):
        check(
            "gdn_gates",
            a=special[:, None].expand(count, count),
            b=special[None].expand(count, count),
            A_log=special.float(),
            dt_bias=dt_bias,
            allow_neg_eigval=allow_neg_eigval,
        )


@pytest.mark.parametrize(("dtype", "weights", "HV"), [(F32, F32, 1), (BF16, F32, 48), (F16, BF16, 200), (F32, F16, 64)])
def test_gates(dtype: torch.dtype, weights: torch.dtype, HV: int) -> None:
    a, b = torch.randn(2, HV, 2, 9).to(dtype), torch.randn(2, 9, 3 * HV).to(dtype)
    A_log, dt_bias = torch.randn(HV).to(weights), (3 * torch.randn(HV)).to(weights)
    check("gdn_gates", a=a[:, :, 0].mT, b=b[..., ::3], A_log=A_log, dt_bias=dt_bias)
    check("gdn_gates", a=a[0, :, 0, 0], b=b[0, 0, ::3], A_log=A_log, dt_bias=dt_bias)


@pytest.mark.parametrize("V", [64, 128, 256])
@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
@pytest.mark.parametrize(
    ("o", "z", "weight", "dtype"),
    [
        (F32, F32, F32, None), (BF16, BF16, F32, None), (F16, BF16, F16, F32), (F32, F16, BF16, BF16),
        (BF16, F32, F32, F16),
    ],
)  # fmt: skip
def test_norm(
    o: torch.dtype, z: torch.dtype, weight: torch.dtype, dtype: torch.dtype | None, V: int, activation: str
) -> None:
    check(
        "gated_rms_norm",
        o=(4 * torch.randn(2, 3, 5, V + 1)).to(o)[..., 1:],
        z=(4 * torch.randn(2, 3, 5, V)).to(z),
        weight=torch.randn(V).to(weight),
        activation=activation,
        dtype=dtype,
        eps=1e-5,
    )


# The layers: the oracle composes the single ops


@pytest.mark.parametrize(
    ("tokens", "heads", "dtype", "layout", "head_map", "window", "state_dtype"),
    [
        (1, Heads(1, 1, 64, 64), F32, "kv", "grouped", 3, F32),
        (1, Heads(2, 6, 128, 128), BF16, "vk", "grouped", 3, BF16),
        (4, Heads(2, 4, 64, 128), BF16, "kv", "tiled", 4, F32),
        (8, Heads(1, 3, 128, 64), F16, "vk", "tiled", 5, F16),
    ],
)
def test_layers(
    tokens: int, heads: Heads, dtype: torch.dtype, layout: str, head_map: str, window: int, state_dtype: torch.dtype
) -> None:
    batch = 3
    arguments = {
        **cases.layer(
            heads, batch, tokens, dtype, slots=4, layout=layout, window=window, state_dtype=state_dtype,
            bias=tokens != 4,
        ),
        "state_indices": index(3, 0, -1),
        "state_layout": layout,
        "head_map": head_map,
        "norm_activation": ("silu", "sigmoid")[tokens % 2],
        "allow_neg_eigval": tokens == 8,
        "norm_eps": 1e-5,
        "l2_eps": 1e-5,
        "scale": 0.2,
    }  # fmt: skip
    check("gdn_verify_layer", **arguments)
    check("gdn_verify_layer", **arguments, parents=cases.tree(batch, tokens))
    check("gdn_decode_layer_", **arguments)
