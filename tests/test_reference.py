"""strata_gdn.reference: the recurrence against hand-written loops and known cases, the chunked form against it."""

from __future__ import annotations

import math
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from strata_gdn import reference

# Both sides are float64; 257 tokens of 1e-16 each leave this much room.
ROUNDING = 1e-12


def inputs(
    tokens: int, *, batch: int = 1, heads: int = 1, value_heads: int = 2, key: int = 8, value: int = 6, seed: int = 0
):
    """q, k, v, g, beta and a state, float64; k has length 1, as the delta rule needs it."""
    make = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=make)

    q, k = reference.qk_l2norm(normal(batch, tokens, heads, key), normal(batch, tokens, heads, key))
    v = normal(batch, tokens, value_heads, value)
    g = -torch.nn.functional.softplus(normal(batch, tokens, value_heads))
    beta = normal(batch, tokens, value_heads).sigmoid()
    return q, k, v, g, beta, normal(batch, value_heads, key, value)


def close(actual: Tensor, expected: Tensor, bound: float = ROUNDING) -> None:
    assert actual.shape == expected.shape
    assert actual.dtype == torch.float64
    difference = (actual - expected).abs().max().item() if actual.numel() else 0.0
    largest = max(expected.abs().max().item(), 1.0) if actual.numel() else 1.0
    assert difference <= bound * largest, f"largest difference {difference:.3e}"


def by_hand(q, k, v, g, beta, state, scale, head_map):
    """Scalar Python on nested lists, one index at a time."""
    batch, tokens, heads, key = q.shape
    value_heads, value = v.shape[2:]
    o = torch.zeros(v.shape, dtype=torch.float64)
    S = state.tolist()
    q, k, v, g, beta = (x.tolist() for x in (q, k, v, g, beta))
    for b, h in product(range(batch), range(value_heads)):
        kh = h // (value_heads // heads) if head_map == "grouped" else h % heads
        s = S[b][h]
        for t in range(tokens):
            alpha = math.exp(g[b][t][h])
            for c in range(value):
                u = sum(s[i][c] * k[b][t][kh][i] for i in range(key))
                delta = beta[b][t][h] * (v[b][t][h][c] - alpha * u)
                for i in range(key):
                    s[i][c] = alpha * s[i][c] + k[b][t][kh][i] * delta
                o[b, t, h, c] = scale * sum(s[i][c] * q[b][t][kh][i] for i in range(key))
    return o, torch.tensor(S, dtype=torch.float64)


@pytest.mark.parametrize("head_map", ["grouped", "tiled"])
@pytest.mark.parametrize(("heads", "value_heads"), [(1, 1), (2, 2), (2, 4), (2, 6), (1, 4)])
def test_recurrence_by_hand(heads: int, value_heads: int, head_map: str) -> None:
    q, k, v, g, beta, state = inputs(5, batch=2, heads=heads, value_heads=value_heads)
    o, final = reference.gated_delta_rule(q, k, v, g, beta, state, scale=0.3, head_map=head_map)
    hand_o, hand_final = by_hand(q, k, v, g, beta, state, 0.3, head_map)
    close(o, hand_o)
    close(final, hand_final)


def test_head_maps_differ() -> None:
    q, k, v, g, beta, state = inputs(3, heads=2, value_heads=4)
    grouped, _ = reference.gated_delta_rule(q, k, v, g, beta, state, head_map="grouped")
    tiled, _ = reference.gated_delta_rule(q, k, v, g, beta, state, head_map="tiled")
    assert not torch.allclose(grouped, tiled)


def test_stored_value_is_read_back() -> None:
    """β = 1, no decay, keys of length 1: S^T k_t = v_t after token t, the delta rule's purpose."""
    _, k, v, _, _, state = inputs(4)
    zero, one = torch.zeros(1, 4, 2, dtype=torch.float64), torch.ones(1, 4, 2, dtype=torch.float64)
    o, _ = reference.gated_delta_rule(k, k, v, zero, one, state, scale=1.0)
    close(o, v, bound=1e-5)  # the keys' length is 1 up to l2_eps


def test_defaults() -> None:
    """No state is a state of zeros, no scale is 1 / sqrt(K), qk_l2norm is the op of that name."""
    q, k, v, g, beta, state = inputs(7, batch=2, heads=2, value_heads=2)
    o, final = reference.gated_delta_rule(3 * q, 3 * k, v, g, beta, qk_l2norm=True, l2_eps=1e-3)
    normal_q, normal_k = reference.qk_l2norm(3 * q, 3 * k, 1e-3)
    o_2, final_2 = reference.gated_delta_rule(normal_q, normal_k, v, g, beta, torch.zeros_like(state), scale=8**-0.5)
    close(o, o_2)
    close(final, final_2)


def test_state_layouts() -> None:
    q, k, v, g, beta, state = inputs(5, batch=2)
    o, final = reference.gated_delta_rule(q, k, v, g, beta, state)
    o_vk, final_vk = reference.gated_delta_rule(q, k, v, g, beta, state.mT, state_layout="vk")
    close(o_vk, o)
    close(final_vk, final.mT)


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_packed_sequences(chunk_size: int | None) -> None:
    """cu_seqlens against one call a sequence; an empty one keeps its state, rows of no sequence are zero."""
    q, k, v, g, beta, _ = inputs(17)
    state = inputs(1, batch=4)[-1]
    bounds = [0, 5, 5, 6, 15]
    o, final = reference.gated_delta_rule(q, k, v, g, beta, state, torch.tensor(bounds), chunk_size=chunk_size)
    for n, (begin, end) in enumerate(pairwise(bounds)):
        alone = [x[:, begin:end] for x in (q, k, v, g, beta)]
        o_n, final_n = reference.gated_delta_rule(*alone, state[n : n + 1])
        close(o[:, begin:end], o_n)
        close(final[n : n + 1], final_n)
    close(final[1], state[1], bound=0.0)
    assert not o[:, 15:].any()


@pytest.mark.parametrize(("batch", "tokens"), [(0, 3), (2, 0)])
@pytest.mark.parametrize("chunk_size", [None, 64])
def test_empty(batch: int, tokens: int, chunk_size: int | None) -> None:
    q, k, v, g, beta, state = inputs(tokens, batch=batch)
    o, final = reference.gated_delta_rule(q, k, v, g, beta, state, chunk_size=chunk_size)
    assert o.shape == v.shape
    close(final, state, bound=0.0)


DECAYS = {"random": None, "none": 0.0, "strong": -316.0}


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 257])
@pytest.mark.parametrize("chunk_size", [16, 64])
def test_chunked_form(tokens: int, chunk_size: int, decay: str) -> None:
    """-316 a token: γ reaches -20000 inside a chunk, so that a factor e^(-γ) would be infinite."""
    q, k, v, g, beta, state = inputs(tokens, batch=2, heads=2, value_heads=4)
    if DECAYS[decay] is not None:
        g = torch.full_like(g, DECAYS[decay])
    o, final = reference.gated_delta_rule(q, k, v, g, beta, state)
    o_chunked, final_chunked = reference.gated_delta_rule(q, k, v, g, beta, state, chunk_size=chunk_size)
    close(o_chunked, o)
    close(final_chunked, final)


def test_chunked_form_equal_keys() -> None:
    """β = 1 and one key throughout: A is all ones below the diagonal, whose powers grow largest."""
    q, k, v, g, beta, state = inputs(64)
    k = k[:, :1].expand_as(k)
    g, beta = torch.zeros_like(g), torch.ones_like(beta)
    o, final = reference.gated_delta_rule(q, k, v, g, beta, state)
    o_chunked, final_chunked = reference.gated_delta_rule(q, k, v, g, beta, state, chunk_size=64)
    close(o_chunked, o)
    close(final_chunked, final)


def test_cut() -> None:
    """A prompt in two pieces, the state carried over, is one pass."""
    q, k, v, g, beta, state = inputs(9)
    o, final = reference.gated_delta_rule(q, k, v, g, beta, state)
    first, middle = reference.gated_delta_rule(*(x[:, :4] for x in (q, k, v, g, beta)), state)
    second, last = reference.gated_delta_rule(*(x[:, 4:] for x in (q, k, v, g, beta)), middle)
    close(torch.cat([first, second], 1), o, bound=0.0)
    close(last, final, bound=0.0)


# A tree of 6 tokens: 0 and 3 follow the state, 1 and 2 follow 0, 4 follows 1, 5 follows 3. 7 and -5 count as -1.
PARENTS = torch.tensor([[-1, 0, 0, 7, 1, 3], [-5, 0, 1, 2, 3, 4]])
BRANCHES = {0: [[0], [0, 1], [0, 2], [3], [0, 1, 4], [3, 5]], 1: [list(range(t + 1)) for t in range(6)]}


@pytest.mark.parametrize("state_layout", ["kv", "vk"])
def test_verify_and_commit_along_every_branch(state_layout: str) -> None:
    q, k, v, g, beta, state = inputs(6, batch=2, heads=2, value_heads=4)
    given = state if state_layout == "kv" else state.mT
    options = {"state_layout": state_layout, "head_map": "tiled"}
    o, *logs = reference.gated_delta_rule_verify(q, k, v, g, beta, given, PARENTS, qk_l2norm=True, **options)
    for n, branches in BRANCHES.items():
        for t, rows in enumerate(branches):
            branch = [x[n : n + 1, rows] for x in (q, k, v, g, beta)]
            plain_o, plain = reference.gated_delta_rule(*branch, given[n : n + 1], qk_l2norm=True, **options)
            close(o[n, t], plain_o[0, -1], bound=0.0)
            path = torch.tensor([rows + [-1] * (6 - len(rows))])
            log = [x[n : n + 1] for x in logs]
            committed = reference.gated_delta_rule_commit(
                given[n : n + 1], *log, torch.tensor([len(rows)]), path, **options
            )
            close(committed, plain, bound=0.0)


def test_verify_chain_and_commit_counts() -> None:
    q, k, v, g, beta, state = inputs(4)
    o, *logs = reference.gated_delta_rule_verify(q, k, v, g, beta, state)
    close(o, reference.gated_delta_rule(q, k, v, g, beta, state)[0], bound=0.0)
    for accepted, used in [(-1, 0), (0, 0), (2, 2), (4, 4), (9, 4)]:  # clamped to [0, T]
        _, plain = reference.gated_delta_rule(*(x[:, :used] for x in (q, k, v, g, beta)), state)
        close(reference.gated_delta_rule_commit(state, *logs, torch.tensor([accepted])), plain, bound=0.0)
    ended = reference.gated_delta_rule_commit(state, *logs, torch.tensor([3]), torch.tensor([[0, 4, 1, 2]]))
    _, one = reference.gated_delta_rule(*(x[:, :1] for x in (q, k, v, g, beta)), state)
    close(ended, one, bound=0.0)  # 4 is outside [0, T): the path ends before it


def conv_inputs(tokens: int, *, batch: int = 2, channels: int = 5, width: int = 4, window: int = 3, seed: int = 1):
    make = torch.Generator().manual_seed(seed)
    shapes = [(batch, tokens, channels), (channels, width), (channels,), (batch, channels, window)]
    return [torch.randn(*shape, dtype=torch.float64, generator=make) for shape in shapes]


@pytest.mark.parametrize("activation", ["silu", "none"])
@pytest.mark.parametrize(("tokens", "width", "window"), [(6, 4, 3), (2, 4, 3), (6, 4, 7), (3, 1, 0), (5, 2, 1)])
def test_convolution_against_torch(tokens: int, width: int, window: int, activation: str) -> None:
    x, weight, bias, state = conv_inputs(tokens, width=width, window=window)
    y, final = reference.causal_conv1d(x, weight, bias, state, activation=activation)
    history = torch.cat([state, x.mT], dim=2)
    expected = torch.nn.functional.conv1d(history, weight[:, None], bias, groups=len(weight))[:, :, -tokens:].mT
    close(y, torch.nn.functional.silu(expected) if activation == "silu" else expected)
    close(final, history[:, :, tokens:], bound=0.0)


def test_convolution_defaults_and_packing() -> None:
    x, weight, bias, state = conv_inputs(9, batch=1)
    y, final = reference.causal_conv1d(x, weight)
    y_0, final_0 = reference.causal_conv1d(x, weight, 0 * bias, torch.zeros_like(state))
    close(y, y_0, bound=0.0)
    close(final, final_0, bound=0.0)
    states = conv_inputs(1, batch=3)[-1]
    bounds = [0, 4, 4, 8]
    y, final = reference.causal_conv1d(x, weight, bias, states, torch.tensor(bounds))
    for n, (begin, end) in enumerate(pairwise(bounds)):
        y_n, final_n = reference.causal_conv1d(x[:, begin:end], weight, bias, states[n : n + 1])
        close(y[:, begin:end], y_n, bound=0.0)
        close(final[n : n + 1], final_n, bound=0.0)
    assert not y[:, 8:].any()


def test_convolution_verify_and_commit_along_every_branch() -> None:
    x, weight, bias, state = conv_inputs(6, window=5)
    y = reference.causal_conv1d_verify(x, weight, bias, state, PARENTS)
    for n, branches in BRANCHES.items():
        for t, rows in enumerate(branches):
            plain_y, plain = reference.causal_conv1d(x[n : n + 1, rows], weight, bias, state[n : n + 1])
            close(y[n, t], plain_y[0, -1], bound=0.0)
            path = torch.tensor([rows + [-1] * (6 - len(rows))])
            moved = reference.causal_conv1d_commit(state[n : n + 1], x[n : n + 1], torch.tensor([len(rows)]), path)
            close(moved, plain, bound=0.0)
    close(reference.causal_conv1d_verify(x, weight, bias, state), reference.causal_conv1d(x, weight, bias, state)[0])


def test_gates() -> None:
    a = torch.tensor([-2000.0, -3.0, 0.5, 30.0], dtype=torch.float64)
    b = torch.tensor([-1.0, 0.0, 2.0, 800.0], dtype=torch.float64)
    A_log = torch.tensor([math.inf, 0.3, -0.2, 0.1], dtype=torch.float64)
    dt_bias = torch.tensor([0.0, 1.0, 0.25, 2.0], dtype=torch.float64)
    g, beta = reference.gdn_gates(a, b, A_log, dt_bias)
    steps = [math.log1p(math.exp(x)) for x in (-2.0, 0.75, 32.0)]
    expected = [0.0] + [-math.exp(A) * step for A, step in zip((0.3, -0.2, 0.1), steps, strict=True)]
    close(g, torch.tensor(expected, dtype=torch.float64))  # softplus 0 wins over an infinite e^A_log
    close(beta, torch.tensor([1 / (1 + math.exp(-x)) for x in (-1.0, 0.0, 2.0, 700.0)], dtype=torch.float64))
    close(reference.gdn_gates(a, b, A_log, dt_bias, allow_neg_eigval=True)[1], 2 * beta)


def test_norms() -> None:
    o, z, weight = (conv_inputs(4, channels=16, seed=s)[0] for s in (2, 3, 4))
    weight = weight[0, 0]
    normal = torch.nn.functional.rms_norm(o, (16,), weight, eps=1e-2)
    close(reference.gated_rms_norm(o, z, weight, eps=1e-2), normal * torch.nn.functional.silu(z))
    close(reference.gated_rms_norm(o, z, weight, eps=1e-2, activation="sigmoid"), normal * z.sigmoid())
    q, k = reference.qk_l2norm(o, z, 0.5)
    close(q, o / (o.norm(dim=-1, keepdim=True).square() + 0.5).sqrt())
    close(k, z / (z.norm(dim=-1, keepdim=True).square() + 0.5).sqrt())


def test_nothing_given_is_changed() -> None:
    arguments = inputs(5, batch=2)
    copies = [x.clone() for x in arguments]
    _, *logs = reference.gated_delta_rule_verify(*arguments)
    reference.gated_delta_rule(*arguments, chunk_size=4)
    reference.gated_delta_rule_commit(arguments[-1], *logs, torch.tensor([2, 3]))
    for given, copy in zip(arguments, copies, strict=True):
        assert torch.equal(given, copy)
