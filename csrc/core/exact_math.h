// exp, log1p and what the activations need, with the same bits on every device: only fma, add, mul, integer operations
// and selects, and in sigmoid and silu the correctly rounded division. docs/exact_math.md derives the error bounds.
//
// Every function is branchless and without tables, so that a plain loop over it is vectorised. Everything here is
// `static inline`: each CPU instruction set includes this header in its own translation unit.
// Compile with contraction off (-ffp-contract=off, nvcc -fmad=false), no fast-math, denormals on.
//
// GDN_SOFT_FMA, defined before inclusion, replaces the hardware fma by soft_fma (a processor without FMA).
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace gdn {

static GDN_HD uint32_t bits_of(float x) {
  uint32_t b;
  __builtin_memcpy(&b, &x, sizeof b);
  return b;
}

static GDN_HD float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

static GDN_HD uint64_t bits_of(double x) {
  uint64_t b;
  __builtin_memcpy(&b, &x, sizeof b);
  return b;
}

static GDN_HD double double_of(uint64_t bits) {
  double x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// a * b + c rounded once, in double arithmetic. The product of two floats is exact in double. The sum is rounded to odd
// (if inexact, to the neighbour whose last bit is 1): 53 bits are more than 24 + 2, so that the second rounding, to
// float, is the rounding of the exact value, subnormal results included. An infinite or NaN operand gives a NaN error
// term: the comparison with it is false and the sum is taken as it stands.
static GDN_HD float soft_fma(float a, float b, float c) {
  const double p = static_cast<double>(a) * static_cast<double>(b);
  const double d = static_cast<double>(c);
  const double sum = p + d;
  const double d_part = sum - p;
  const double error = (p - (sum - d_part)) + (d - d_part);  // p + d = sum + error exactly (TwoSum)
  const uint64_t bits = bits_of(sum);
  const uint64_t even = ~bits & 1u;
  const uint64_t toward_zero = (bits ^ bits_of(error)) >> 63;
  const double odd = double_of(bits + even - ((even & toward_zero) << 1));  // the neighbour on the error's side
  const double size = error < 0.0 ? -error : error;
  return static_cast<float>(size > 0.0 ? odd : sum);
}

static GDN_HD float fma_f32(float a, float b, float c) {
#if defined(GDN_SOFT_FMA)
  return soft_fma(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

namespace exact {

constexpr float exp_underflow = -104.0f;  // e^-104 is less than half the smallest subnormal
constexpr float exp_overflow = 89.0f;     // e^89 is above the largest float

// e^x = e 2^n.
//   n = x / ln 2 to the nearest integer, r = x - n ln 2 in about [-0.347, 0.347]
//   e = e^r = 1 + r + r^2 q(r), 1 + r added without error
struct Scaled {
  float e;
  uint32_t n_field;  // n in a float's exponent field, two's complement; a NaN leaves arbitrary bits in it
};
static GDN_HD Scaled exp_scaled(float x) {
  constexpr float log2_e = 0x1.715476p0f;
  constexpr float ln2_hi = 0x1.62e430p-1f;    // ln 2 rounded to float; under fma the reduction's first step is exact
  constexpr float ln2_lo = -0x1.05c610p-29f;  // the rest
  constexpr float round_magic = 0x1.8p23f;    // adding it leaves n in the low bits, and zeros in the nine lowest others
  const float shifted = fma_f32(x, log2_e, round_magic);
  const float n = shifted - round_magic;
  const float r = fma_f32(n, -ln2_lo, fma_f32(n, -ln2_hi, x));
  float q = 0x1.6a2318p-10f;
  q = fma_f32(q, r, 0x1.123a8ep-7f);
  q = fma_f32(q, r, 0x1.5558f6p-5f);
  q = fma_f32(q, r, 0x1.555490p-3f);
  q = fma_f32(q, r, 0x1.fffffcp-2f);
  const float sum = 1.0f + r;
  const float rest = r - (sum - 1.0f);  // exact: |r| < 1
  return {sum + fma_f32(r * r, q, rest), bits_of(shifted) << 23};
}

// 2^(n + shift), n + shift in [-126, 127].
static GDN_HD float power_of_two(uint32_t n_field, int32_t shift) {
  constexpr int32_t bias = 127;
  return float_of(n_field + (static_cast<uint32_t>(bias + shift) << 23));
}

// e^x for x in [-104, 20], or a NaN: n is in [-150, 29]. The first product is exact, the second rounds once, and only
// where the result is subnormal.
static GDN_HD float exp_up_to_20(float x) {
  const Scaled y = exp_scaled(x);
  return y.e * power_of_two(y.n_field, 64) * 0x1p-64f;
}

// e^x: at most 1 ulp from the true value, monotone, gradual underflow. n is in [-150, 128]: below 0 as above, else 2^n
// is 2^(n - 1) times 2.
static GDN_HD float exp(float x) {
  float c = x < exp_underflow ? 0.0f : x;  // 0 at the end; a NaN passes all selects
  c = c > exp_overflow ? exp_overflow : c;
  const Scaled y = exp_scaled(c);
  const bool small = c < 0.0f;
  const float result = y.e * power_of_two(y.n_field, small ? 64 : -1) * (small ? 0x1p-64f : 2.0f);
  return x < exp_underflow ? 0.0f : result;  // a processor may be slow on products that underflow: here none is formed
}

// fl(1 + exp(x)), without the parts of exp that the addition rounds away.
static GDN_HD float one_plus_exp(float x) {
  constexpr float negligible = -80.0f;  // here and below the sum is 1
  float c = x < negligible ? negligible : x;
  c = c > exp_overflow ? exp_overflow : c;
  const Scaled y = exp_scaled(c);
  return fma_f32(y.e * power_of_two(y.n_field, -1), 2.0f, 1.0f);  // the product is exact: one rounding
}

// x > -1 as (1 + m) 2^k - 1.
//   k with (1 + x) 2^-k in [0.75, 1.5), m = (1 + x) 2^-k - 1, which is exact in float (docs/exact_math.md)
struct Reduced {
  float m, k;
};
static GDN_HD Reduced log1p_reduced(float x) {
  constexpr uint32_t one_bits = 0x3f800000u;
  constexpr uint32_t lower_bits = 0x3f400000u;  // 0.75
  constexpr uint32_t exponent_mask = 0xff800000u;
  const uint32_t k_bits = (bits_of(1.0f + x) - lower_bits) & exponent_mask;  // k << 23, two's complement
  const float inverse = float_of(one_bits - k_bits);                         // 2^-k
  return {fma_f32(x, inverse, inverse - 1.0f), static_cast<float>(static_cast<int32_t>(k_bits)) * 0x1p-23f};
}

// k ln 2 + ln(1 + m): ln(1 + m) = m + m^2 q(m), k ln 2 and m added without error.
static GDN_HD float log1p_from(Reduced x) {
  constexpr float ln2_hi = 0x1.62e4p-1f;  // 15 bits: times k it is exact
  constexpr float ln2_lo = 0x1.7f7d1cp-20f;
  const float m = x.m;
  float q = 0x1.34aaf4p-5f;
  q = fma_f32(q, m, -0x1.7574a8p-4f);
  q = fma_f32(q, m, 0x1.df4bbcp-4f);
  q = fma_f32(q, m, -0x1.04aad0p-3f);
  q = fma_f32(q, m, 0x1.24603cp-3f);
  q = fma_f32(q, m, -0x1.5519a2p-3f);
  q = fma_f32(q, m, 0x1.999788p-3f);
  q = fma_f32(q, m, -0x1.000070p-2f);
  q = fma_f32(q, m, 0x1.55555ap-2f);
  q = fma_f32(q, m, -0.5f);
  const float large = x.k * ln2_hi;
  const float sum = large + m;
  const float rest = m - (sum - large);  // exact: |large| > |m|, or large = 0
  return sum + fma_f32(m * m, q, fma_f32(x.k, ln2_lo, rest));
}

// ln(1 + x): at most 1 ulp from the true value, monotone; log1p(-1) = -inf, NaN below.
static GDN_HD float log1p(float x) {
  constexpr float far = 0x1p90f;  // beyond it 2^-k would leave the normal range: take 2^64 out first
  constexpr float far_scale = 0x1p-64f;
  constexpr float far_exponent = 64.0f;
  Reduced reduced = log1p_reduced(x > far ? x * far_scale : x);
  reduced.k += x > far ? far_exponent : 0.0f;
  float y = log1p_from(reduced);
  y = x == 0.0f ? x : y;  // keeps the sign of zero
  y = x > 0x1.fffffep127f ? x : y;
  y = x == -1.0f ? -float_of(0x7f800000u) : y;
  return x < -1.0f ? float_of(0x7fc00000u) : y;
}

// 1 / (1 + exp(-x))
static GDN_HD float sigmoid(float x) { return 1.0f / one_plus_exp(-x); }

// x / (1 + exp(-x))
static GDN_HD float silu(float x) { return x / one_plus_exp(-x); }

// log1p(exp(x)), and x above 20, where e^-x is less than half an ulp of x. 0 only where e^x underflows to 0. Below 20
// neither function leaves its middle range; what they make of an x above it is not used.
static GDN_HD float softplus(float x) {
  constexpr float linear_above = 20.0f;
  const float e = exp_up_to_20(x < exp_underflow ? 0.0f : x);
  const float y = log1p_from(log1p_reduced(x < exp_underflow ? 0.0f : e));
  return x > linear_above ? x : y;
}

}  // namespace exact
}  // namespace gdn
