"""How far chunk_fp32 can be from float64: a bound of each element of a prompt's output and final state.

The notation, the model of independent roundings and λ are those of bound.py: one value head and value column, first
order in u = 2^-24, Euclidean norms, b = β‖k‖² < 2, numbers in parentheses are equations of docs/math.md. Here S_0, R,
D, A, M = (I + A)^-1, P_ti = E_ti q_t·k_i (the scale is in q) and E are those of a chunk of 32 tokens in float64; s_0,
R and D are the column's, and γ the sums of g behind E or from the chunk's start.

1. (I + A) D = R is the recurrence itself: an error ξ_t on the right of row t is the same as k_t ξ_t added to the state
   after token t, and an error π_t of D_t alone, which no other row reads, reaches outputs and state in the same place.
   A token's map has norm at most its decay, so that either reaches token j at most E_jt ‖k_t‖ large, whatever M is.
2. Roundings of row t, each as the square of its size over u:
     (9)  S_0ᵀk: eight chains of K/8 and three additions, m = K/8 + 3,
          of partial sums of at most ‖s_0‖‖k‖                                 ξ²  m β² e^2γ ‖s_0‖² ‖k‖²
          the fma with v                                                      ξ²  R²
     (8)  k·k as above, and two products                                      ξ²  Σ_i (m β² E² ‖k_t‖²‖k_i‖² + 2 A²) D_i²
          M by forward substitution: four chains of 8 and two levels of
          additions. What is computed satisfies (I + A) M = I + F with
          F_tj² ≤ 10 (|A||M|)_tj², so that M F R is its part of D             ξ²  Σ_j 10 (|A||M|)_tj² R_j²
     (9)  M β: a product; its sum with R/β: eight chains of 4, three
          additions and the fma of the diagonal                               π²  Σ_{i<t} M² R_i² + 7 (Σ_{i<t} |M R_i|)²
                                                                                  + D²
     (17) with qk_l2norm, as in bound.py, n² = (K/32 + 6)/4 + 3; M_t bounds ‖s_t‖ from the chunk's own
          ‖s_0‖ on: the square of its size in the state                       n² (b α M_{t−1} + ‖k‖|D|)²
   W_t² = ‖k_t‖² (ξ_t² + π_t²) + the last line.
3. Decays (7): exp is within 2u, and a sum of g has at most 14 additions (three in a quad, seven quads, four tokens) of
   partial sums of at most |γ|: e^γ is off by η = 2 + √14 |γ| of its u. Pairs of tokens share these roundings, so that
   they add up without squares inside a chunk:
     ζ_t = β e^γ η |S_0ᵀk| + Σ_i |A_ti| η_ti |D_i| on the right of row t, Z_t = Σ_{i≤t} E_ti ‖k_i‖ ζ_i in the state.
4. With R_0 of the chunk's first state, the state that token t's output sees is off by the root of
   R_t² = e^2γ R_0² + Σ_{i≤t} E_ti² W_i², and Z_t.
5. The output's own roundings (10): the (normalised) query times the scale, the two products' sums (that with S_0 as
   above; q·k likewise, times the decay; eight chains of 4 and three additions over D), the decay, the last addition:
     ‖q‖² (n² + 2) M_t² + m e^2γ ‖q‖²‖s_0‖² + (e^γ S_0ᵀq)² + Σ_i (m E² ‖q‖²‖k_i‖² + P²) D_i² + 7 (Σ_i |P D_i|)² + o²
   and, without squares, ω_t = e^γ η |S_0ᵀq| + Σ_i |P_ti| η_ti |D_i|:
   o is off by λ u √(‖q‖² R_t² + these + (‖q‖ Z_t + ω_t)²), and by the rounding to its dtype.
6. The new state (11), c the chunk's last token: D times its decay, two chains of 16 and an addition, and the fma:
     R_0² of the next chunk = R_c² + 17 (Σ_t E_ct ‖k_t‖|D_t|)² + Σ_t (E_ct ‖k_t‖ D_t)² + ‖s_c‖²
                              + (Z_c + e^γ η ‖s_0‖ + Σ_t E_ct η_ct ‖k_t‖|D_t|)².

What is loose: norms stand for columns and the lengths of partial sums, so that a prompt uses a few hundredths of its
bound. What is assumed: roundings are independent. Where many numbers are the same (equal keys, one decay for all
tokens) they repeat; 3. allows for that, 2. leaves it to λ and to the norms.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..reference import _kv, _num_sequences, _sequences, _tokens
from .bound import FLOAT32_ROUNDOFF, LAMBDA, require_contraction, rounded

TOKENS = 32  # of a chunk
SUM_OF_TOKENS = 4 + 3  # roundings of a sum over a chunk's tokens, in eight chains
SUBSTITUTION = 8 + 2
UPDATE = 16 + 1
DECAY_SUM = 3 + 7 + 4


def prompt(arguments: dict[str, Any], o: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of the difference from float64, on the arguments' device.

    Args:
        arguments: those of `reference.gated_delta_rule`, g finite.
        o: the output in float64, [B, T, HV, V].

    Returns:
        of o, [B, T, HV, V] (zero in rows of no sequence), and of final_state, broadcastable to it.

    Raises:
        ValueError: β‖k‖² reaches 2.
    """
    batch, tokens, _, K = arguments["q"].shape
    HV, V = arguments["v"].shape[-2:]
    normalised, cu_seqlens = arguments.get("qk_l2norm", False), arguments.get("cu_seqlens")
    layout, state = arguments.get("state_layout", "kv"), arguments.get("initial_state")
    names = ("q", "k", "v", "g", "beta")
    q, *rest = _tokens(*(arguments[n] for n in names), normalised, arguments.get("l2_eps", 1e-6),
                       arguments.get("head_map", "grouped"))  # fmt: skip
    scale = arguments.get("scale")
    inputs = [q * (K**-0.5 if scale is None else scale), *rest]
    sequences = _num_sequences(batch, cu_seqlens)
    final = torch.zeros(sequences, HV, V, dtype=torch.float64, device=q.device)
    output = torch.zeros_like(o)
    for n, (row, span) in enumerate(_sequences(batch, tokens, cu_seqlens)):
        S = q.new_zeros(HV, K, V) if state is None else _kv(state[n], layout).double()
        R2 = torch.zeros_like(final[n])
        for begin in range(span.start, span.stop, TOKENS):
            rows = slice(begin, min(begin + TOKENS, span.stop))
            of_chunk, S, R2 = _chunk(*(x[row, rows].transpose(0, 1) for x in inputs), S, R2, normalised)
            output[row, rows] = rounded(of_chunk.transpose(0, 1), o[row, rows], arguments["v"].dtype)
        final[n] = LAMBDA * FLOAT32_ROUNDOFF * R2.sqrt()
    return output, final[..., None] if layout == "vk" else final[..., None, :]


def _chunk(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor, R2: Tensor, normalised: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """One chunk, heads first, q scaled: q, k [HV, C, K], v [HV, C, V], g, beta [HV, C], S [HV, K, V], R2 [HV, V].

    Returns:
        the bound of o before it is rounded [HV, C, V], and S and R2 for the next chunk.
    """
    K, C = k.shape[-1], k.shape[-2]
    m = K / 8 + 3
    n2 = (K / 32 + 6) / 4 + 3 if normalised else 0.0
    k_length, q_length = k.norm(dim=-1, keepdim=True), q.norm(dim=-1, keepdim=True)  # [HV, C, 1], like beta and gamma
    gamma, beta = g.cumsum(-1)[..., None], beta[..., None]
    b = beta * k_length.square()
    require_contraction(b)
    since = g[:, :, None].expand(-1, -1, C).tril(-1).cumsum(1)
    E, eta, eta_gamma = since.exp().tril(), _decay_error(since), _decay_error(gamma)
    e = gamma.exp()

    A = (beta * E * (k @ k.mT)).tril(-1)
    M = torch.linalg.solve_triangular(A, torch.eye(C).to(A).expand_as(A), upper=False, unitriangular=True)
    P = E * (q @ k.mT)
    u, decayed_o = k @ S, e * (q @ S)
    R = beta * (v - e * u)
    D = M @ R
    o = decayed_o + P @ D
    to_end, eta_end = E[:, -1, :, None], eta[:, -1, :, None]
    s2 = S.square().sum(-2, keepdim=True)  # [HV, 1, V]
    S = e[:, -1:] * S + (to_end * k).mT @ D

    # 2.
    before = M.tril(-1)
    own = m * (beta * e * k_length).square() * s2 + R.square()
    own += (m * (beta * E * k_length * k_length.mT).tril(-1).square() + 2 * A.square()) @ D.square()
    own += SUBSTITUTION * (A.abs() @ M.abs()).square() @ R.square()
    own += before.square() @ R.square() + SUM_OF_TOKENS * (before.abs() @ R.abs()).square() + D.square()
    growth = beta * v.square() / (2 - b)
    M2 = e.square() * s2 + E.square() @ growth
    update = k_length * D.abs()
    W2 = k_length.square() * own + n2 * (b * (M2 - growth).clamp(min=0).sqrt() + update).square()
    # 3. and 4.
    zeta = beta * e * eta_gamma * u.abs() + (A.abs() * eta) @ D.abs()
    Z = E @ (k_length * zeta)
    R2 = e.square() * R2[:, None] + E.square() @ W2
    # 5.
    q2 = q_length.square()
    of_output = q2 * ((n2 + 2) * M2 + m * e.square() * s2) + decayed_o.square() + o.square()
    of_output += (m * (E * q_length * k_length.mT).square() + P.square()) @ D.square()
    of_output += SUM_OF_TOKENS * (P.abs() @ D.abs()).square()
    omega = eta_gamma * decayed_o.abs() + (P.abs() * eta) @ D.abs()
    output = LAMBDA * FLOAT32_ROUNDOFF * (q2 * R2 + of_output + (q_length * Z + omega).square()).sqrt()
    # 6.
    decayed = to_end * update
    last = UPDATE * decayed.sum(1).square() + decayed.square().sum(1) + S.square().sum(-2)
    coherent = Z[:, -1] + (e * eta_gamma)[:, -1] * s2[:, 0].sqrt() + (eta_end * decayed).sum(1)
    return output, S, R2[:, -1] + last + coherent.square()


def _decay_error(gamma: Tensor) -> Tensor:
    return 2 + DECAY_SUM**0.5 * gamma.abs()
