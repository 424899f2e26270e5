#include "float_functions.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lanes.h"

namespace rdna {
namespace {

constexpr uint32_t kSign = 0x80000000u, kQuiet = 0x00400000u;
constexpr uint32_t kInvalidNan = 0xffc00000u;  // of 0 / 0
constexpr int kScale = 64;                     // what a division's operands are scaled by, as a power of two

uint32_t bits(float x) { return bits_as<uint32_t>(x); }
int biased_exponent(float x) { return static_cast<int>(bits(x) >> 23 & 0xff); }
bool is_denormal(float x) { return std::fpclassify(x) == FP_SUBNORMAL; }
bool is_denormal_as_float(double x) {
  return x != 0.0 && std::fabs(x) < static_cast<double>(std::numeric_limits<float>::min());
}
float quieted(float x) { return bits_as<float>(bits(x) | kQuiet); }

// "Either" takes the direction from the bits: it differs from value to value and is the same in every run.
bool goes_up(float x, Ulp ulp) {
  constexpr uint32_t hash_factor = 0x9e3779b1u;
  return ulp == Ulp::up || (ulp == Ulp::either && (bits(x) * hash_factor) >> 31 != 0);
}

// a * b + c, exact up to a rounding to odd: any later rounding to a float's precision or below is the only one.
double fused_to_odd(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = static_cast<double>(c), sum = product + addend;
  if (!std::isfinite(sum)) return sum;
  const double part = sum - product;
  const double error = (product - (sum - part)) + (addend - part);
  if (error == 0.0 || (bits_as<uint64_t>(sum) & 1) != 0) return sum;
  const bool grows = (error > 0.0) == (sum > 0.0);
  return bits_as<double>(bits_as<uint64_t>(sum) + (grows ? 1 : uint64_t(-1)));
}

}  // namespace

float reciprocal(float x) { return 1.0f / x; }
float reciprocal_root(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
float root(float x) { return std::sqrt(x); }
float power_of_two(float x) { return std::exp2(x); }
float binary_logarithm(float x) { return std::log2(x); }

float moved(float x, Ulp ulp) {
  if (ulp == Ulp::exact || x == 0.0f || !std::isfinite(x)) return x;
  const bool up = goes_up(x, ulp);
  const float y = bits_as<float>(bits(x) + (up ? 1u : ~0u));
  return std::isfinite(y) ? y : x;
}

float reciprocal_beside(float x, Ulp ulp) {
  const float nearest = reciprocal(x);
  const double size = std::fabs(static_cast<double>(nearest)), exact = std::fabs(1.0 / static_cast<double>(x));
  if (ulp == Ulp::exact || size == exact || (size > exact) == goes_up(nearest, ulp)) return nearest;
  return moved(nearest, ulp);
}

float larger(float a, float b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  return a == b ? bits_as<float>(bits(a) & bits(b)) : a > b ? a : b;
}
float smaller(float a, float b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  return a == b ? bits_as<float>(bits(a) | bits(b)) : a < b ? a : b;
}

float mantissa(float x) {
  int unused = 0;
  return std::isfinite(x) ? std::frexp(x, &unused) : x;
}
int32_t exponent(float x) {
  int e = 0;
  if (std::isfinite(x)) std::frexp(x, &e);
  return e;
}

uint32_t to_u32(float x) {
  if (!(x > 0.0f)) return 0;
  return x >= 0x1p32f ? ~0u : static_cast<uint32_t>(x);
}
int32_t to_i32(float x) {
  if (std::isnan(x)) return 0;
  if (x >= 0x1p31f) return std::numeric_limits<int32_t>::max();
  return x <= -0x1p31f ? std::numeric_limits<int32_t>::min() : static_cast<int32_t>(x);
}

_Float16 toward_zero(float x) {
  const auto nearest = static_cast<_Float16>(x);
  if (std::isnan(x) || std::fabs(static_cast<float>(nearest)) <= std::fabs(x)) return nearest;
  return bits_as<_Float16>(static_cast<uint16_t>(bits_as<uint16_t>(nearest) - 1));
}

// The conditions of the instruction set's manual, in its order. Where both the reciprocal of the denominator and the
// quotient are denormal the manual prints a scaling by 2^64, which would make the denominator infinite and the quotient
// a NaN: it is 2^-64.
DivScale divide_scale(float value, float denominator, float numerator) {
  constexpr int far = 96;   // difference of exponents
  constexpr int tiny = 23;  // exponent
  const float up = std::ldexp(value, kScale), down = std::ldexp(value, -kScale);
  const bool is_denominator = bits(value) == bits(denominator), is_numerator = bits(value) == bits(numerator);
  if (denominator == 0.0f || numerator == 0.0f) return {std::numeric_limits<float>::quiet_NaN(), false};
  if (biased_exponent(numerator) - biased_exponent(denominator) >= far) return {is_denominator ? up : value, true};
  if (is_denormal(denominator)) return {up, false};
  const bool small_reciprocal = is_denormal_as_float(1.0 / static_cast<double>(denominator));
  const bool small_quotient = is_denormal_as_float(static_cast<double>(numerator) / static_cast<double>(denominator));
  if (small_reciprocal && small_quotient) return {is_denominator ? down : value, true};
  if (small_reciprocal) return {down, false};
  if (small_quotient) return {is_numerator ? up : value, true};
  if (biased_exponent(numerator) <= tiny) return {up, false};
  return {value, false};
}

float divide_fmas(float a, float b, float c, bool rescale) {
  if (!rescale) return std::fma(a, b, c);
  constexpr int bias = 127;
  return static_cast<float>(std::ldexp(fused_to_odd(a, b, c), biased_exponent(c) > bias ? kScale : -kScale));
}

float divide_fixup(float quotient, float denominator, float numerator) {
  constexpr int underflow = -150;  // of exponents
  const uint32_t sign = (bits(denominator) ^ bits(numerator)) & kSign;
  const auto signed_as = [&](float x) { return bits_as<float>((bits(x) & ~kSign) | sign); };
  if (std::isnan(numerator)) return quieted(numerator);
  if (std::isnan(denominator)) return quieted(denominator);
  const bool zero_by_zero = denominator == 0.0f && numerator == 0.0f;
  if (zero_by_zero || (std::isinf(denominator) && std::isinf(numerator))) return bits_as<float>(kInvalidNan);
  if (denominator == 0.0f || std::isinf(numerator)) return signed_as(std::numeric_limits<float>::infinity());
  if (std::isinf(denominator) || numerator == 0.0f) return signed_as(0.0f);
  if (biased_exponent(numerator) - biased_exponent(denominator) < underflow) return signed_as(0.0f);
  return signed_as(std::isnan(quotient) ? std::numeric_limits<float>::infinity() : quotient);  // it overflowed
}

bool is_of_class(float x, uint32_t mask) {
  const bool negative = bits(x) >> 31 != 0;
  int number = 0;
  switch (std::fpclassify(x)) {
    case FP_NAN: number = bits(x) & kQuiet ? 1 : 0; break;
    case FP_INFINITE: number = negative ? 2 : 9; break;
    case FP_NORMAL: number = negative ? 3 : 8; break;
    case FP_SUBNORMAL: number = negative ? 4 : 7; break;
    default: number = negative ? 5 : 6; break;
  }
  return mask >> number & 1;
}

}  // namespace rdna
