// SiLU and sigmoid where the result is stored in 16 bits: most of exact_math.h's bits are rounded away, so a quick
// approximation decides nearly always, and where it cannot the exact function is evaluated. The stored bits are those
// of the exact function always; only the time depends on the processor's exp2 and reciprocal.
//
// Let y be the exact float32 result and y~ the quick one, within kQuickUlps units in the last place of it. If the
// 16-bit roundings of y~ - kQuickUlps and y~ + kQuickUlps agree, then, rounding being monotone, y rounds to the same.
//
// Error of y~ = p x / (1 + 2^(-x log2 e)) for x >= kQuickLowest, relative, against the exact chain's own rounding:
//   argument  2^-21 (half an ulp below 16) + 8 * 1.9e-8 (log2 e), times ln 2    4.4e-7
//   exp2      2^-22 (PTX ISA, ex2.approx; RDNA's v_exp_f32 has 1 ulp, 2^-23)    2.4e-7
//   1 + e, reciprocal (1 ulp), times x, times p                                 3.0e-7
//   the exact chain: exp 0.94 ulp, 1 + e, division, times p                     3.0e-7
// together below 1.29e-6, 21.6 units of 2^-24; the arithmetic is monotone in what it adds, so subnormal results, whose
// absolute errors are at most as many units, are covered too. Above -kQuickLowest e is below 2^-11 and its error with
// it.
#pragma once

#include "core/exact_math.h"
#include "core/half.h"

namespace gdn::quick {

constexpr uint32_t kQuickUlps = 24;
constexpr float kQuickLowest = -8.0f;

// 1 / (1 + e^-x); exp2 and reciprocal are the processor's.
template <class Approximate>
static GDN_HD float sigmoid(float x, Approximate approximate) {
  constexpr float minus_log2_e = -0x1.715476p0f;
  return approximate.reciprocal(1.0f + approximate.exp2(x * minus_log2_e));
}

// Whether the error bound holds; false for a NaN.
static GDN_HD bool in_range(float x) { return x >= kQuickLowest; }

// A gate that is multiplied further must not be subnormal: its own rounding would be relative no longer.
static GDN_HD bool keeps_precision(float gate) {
  constexpr float smallest = 0x1p-100f;
  return __builtin_fabsf(gate) >= smallest;
}

// Two quick results rounded to 16 bits; `decided` is false where their roundings are open.
struct Rounded {
  uint32_t word;
  bool decided;
};
template <class Element>
static GDN_HD Rounded round_both(float first, float second) {
  const uint32_t below = pack2<Element>(float_of(bits_of(first) - kQuickUlps), float_of(bits_of(second) - kQuickUlps));
  const uint32_t above = pack2<Element>(float_of(bits_of(first) + kQuickUlps), float_of(bits_of(second) + kQuickUlps));
  return {below, below == above};
}

}  // namespace gdn::quick
