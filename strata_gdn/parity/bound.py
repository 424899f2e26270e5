"""How far the exact lane can be from float64: a bound of each element of a prompt's output and final state.

One value head and value column. s is the column of the state (K elements), e the computed one less the true one,
u = 2^-24 float32's unit roundoff, b = β‖k‖² < 2. Euclidean norms; first order in u; numbers in parentheses are
equations of docs/math.md.

1. A token maps s to α (I − β k kᵀ) s + β v k. The matrix in parentheses has norm at most 1 (b ≤ 2), so that an error
   made at token t reaches the end multiplied by at most the decays after t.
2. Along k the column becomes (1 − b) αx + b v/‖k‖, and at worst, over x, its square grows by β v² / (2 − b):
   M_t² = α² M_{t−1}² + β v² / (2 − b), M_0 = ‖s_0‖, bounds ‖s_t‖².
   The update's length ‖k‖|δ| is at most D_t = √(bβ) |v| + bα M_{t−1}.
3. What a token's own roundings do to s, each as the square of its size over u:
     (2)  m = K/8 + 3 roundings in a chain and the three additions, of partial sums of at most ‖s‖‖k‖,
          that reach s times αβ‖k‖                                             m b² α² M_{t−1}²
     (1)  exp within 2u                                                        4 α² M_{t−1}²
     (3)  the fma and the product with β                                       2 D_t²
     (4)  the product k δ and the fma                                          D_t² + M_t²
     (17) with qk_l2norm: the key is off by the roundings of K/32 fmas, five additions and the eps (halved by the root),
          root, division and product: n² = (K/32 + 6)/4 + 3                    n² (bα M_{t−1} + D_t)²
   W_t² is their sum.
4. The roundings are taken as independent and of mean zero (Higham, Mary: A New Approach to Probabilistic Rounding Error
   Analysis), so that squares add up: R_t² = α² R_{t−1}² + W_t², R_0 = 0, and by Azuma's inequality an element of s is
   further off than λ u R_t with a probability of at most 2 exp(−λ²/2): 3e-8 at λ = 6. Added without that they would
   give a factor of about √(T (K/8 + 10)) more, thousands for long prompts.
5. o = scale sᵀq: the same sum of products over s and the (normalised) q, the rounding of scale and the product with
   it: λ u scale ‖q‖ √(R_t² + (m + n² + 2) M_t²), and then the rounding to the output dtype.

For a state that does not decay R grows like √(T (K/8 + 30)) M. A column's norm stands for its elements and M for its
norm, so that a prompt uses a few hundredths of its bound; arithmetic with fewer bits (TF32 has 11 of the 24) does not
fit it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

FLOAT32_ROUNDOFF = 2.0**-24
LAMBDA = 6.0  # an element is outside with a probability of at most 2 exp(-LAMBDA² / 2)
# Unit roundoff of an output, and the largest error where it is subnormal (of float32 and bfloat16: below any bound).
OUTPUT_ROUNDOFF = {torch.float32: (0.0, 0.0), torch.bfloat16: (2.0**-8, 0.0), torch.float16: (2.0**-11, 2.0**-25)}


def _longest(x: Tensor, normalised: bool) -> Tensor:
    """The square of the largest norm of a token's heads, [B, T, 1], of x [B, T, H, K]."""
    return torch.ones(*x.shape[:2], 1) if normalised else x.double().square().sum(-1).amax(-1, keepdim=True)


def require_contraction(b: Tensor) -> None:
    """Raises ValueError where a β‖k‖² reaches 2: from there on a token may enlarge the state, and every error in it."""
    if b.numel() and not b.max() < 2.0:
        raise ValueError(f"the bound holds for β‖k‖² below 2; got {b.max():.3f}")


def rounded(size: Tensor, o: Tensor, dtype: torch.dtype) -> Tensor:
    """The bound of an output that is `size` away from `o` before it is rounded to its dtype."""
    relative, absolute = OUTPUT_ROUNDOFF[dtype]
    return size + relative * (o.abs() + size) + absolute


def prompt(arguments: dict[str, Any], o: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of the difference from float64.

    Args:
        arguments: those of `gated_delta_rule`, with an initial state, without cu_seqlens, with the default scale.
        o: the output in float64, [B, T, HV, V].

    Returns:
        of o, [B, T, HV, V], and of final_state, broadcastable to it.

    Raises:
        ValueError: β‖k‖² reaches 2.
    """
    q, k, v, g, beta, state = (arguments[n] for n in ("q", "k", "v", "g", "beta", "initial_state"))
    normalised = arguments.get("qk_l2norm", False)
    value_major = arguments.get("state_layout", "kv") == "vk"
    K = q.shape[-1]
    m = K / 8 + 3
    n2 = (K / 32 + 6) / 4 + 3 if normalised else 0.0
    beta = beta.double()
    b = beta * _longest(k, normalised)
    require_contraction(b)
    alpha = g.double().exp()
    b, beta, alpha = (x[..., None] for x in (b, beta, alpha))  # [B, T, HV, 1], like v
    sizes = v.double().abs()
    growth, own_update = beta * sizes.square() / (2 - b), (b * beta).sqrt() * sizes
    M = state.double().norm(dim=-1 if value_major else -2)  # [B, HV, V]
    R2 = torch.zeros_like(M)
    output = torch.empty_like(sizes)
    for t in range(v.shape[1]):
        decayed = alpha[:, t] * M
        kept = b[:, t] * decayed
        update = own_update[:, t] + kept
        M = (decayed.square() + growth[:, t]).sqrt()
        W2 = m * kept.square() + 4 * decayed.square() + 3 * update.square() + M.square()
        W2 += n2 * (kept + update).square()
        R2 = alpha[:, t].square() * R2 + W2
        output[:, t] = (R2 + (m + n2 + 2) * M.square()).sqrt()
    output *= LAMBDA * FLOAT32_ROUNDOFF / math.sqrt(K) * _longest(q, normalised).sqrt()[..., None]
    final = LAMBDA * FLOAT32_ROUNDOFF * R2.sqrt()
    return rounded(output, o, v.dtype), final[..., None] if value_major else final[..., None, :]
