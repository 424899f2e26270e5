// Vector instructions on floating-point numbers, conversions, and the parts of a division.
#include <cmath>

#include "float_functions.h"
#include "lanes.h"
#include "tables.h"

namespace rdna {
namespace {

using u16 = uint16_t;
using u32 = uint32_t;
using i32 = int32_t;

// operand 0 = f(operand 1), a result of hardware that is right to a unit in the last place
template <float f(float)>
void approximate(Wave& w, const Instruction& in) {
  const Lanes<float> x = read<float>(w, in, 1, true);
  Lanes<float> result;
  for (int l = 0; l < kLanes; ++l) result.at[l] = moved(f(x.at[l]), w.launch->options.ulp);
  write(w, in, 0, result);
}

// Only divisions of integers use it, and LLVM's count on the unit that the manual promises.
void reciprocal_of_integer(Wave& w, const Instruction& in) {
  const Lanes<float> x = read<float>(w, in, 1, true);
  Lanes<float> result;
  for (int l = 0; l < kLanes; ++l) result.at[l] = reciprocal_beside(x.at[l], w.launch->options.ulp);
  write(w, in, 0, result);
}

// v, mask = value, denominator, numerator
void div_scale(Wave& w, const Instruction& in) {
  const Lanes<float> value = read<float>(w, in, 2), denominator = read<float>(w, in, 3),
                     numerator = read<float>(w, in, 4);
  Lanes<float> result;
  uint32_t mask = 0;
  for (int l = 0; l < kLanes; ++l) {
    const DivScale s = divide_scale(value.at[l], denominator.at[l], numerator.at[l]);
    result.at[l] = s.value;
    mask |= static_cast<uint32_t>(s.rescale) << l;
  }
  write(w, in, 0, result);
  write_mask(w, in.op[1], mask & w.exec());
}

void div_fmas(Wave& w, const Instruction& in) {
  const Lanes<float> a = read<float>(w, in, 1), b = read<float>(w, in, 2), c = read<float>(w, in, 3);
  Lanes<float> result;
  for (int l = 0; l < kLanes; ++l) result.at[l] = divide_fmas(a.at[l], b.at[l], c.at[l], w.s[kVcc] >> l & 1);
  write(w, in, 0, result);
}

template <class T>
constexpr T fused(T a, T b, T c) {
  if constexpr (sizeof(T) == 2) {
    return static_cast<T>(std::fma(static_cast<double>(a), static_cast<double>(b), static_cast<double>(c)));
  } else {
    return std::fma(a, b, c);
  }
}

u32 packed(Half low, Half high) { return bits_as<u16>(low) | static_cast<u32>(bits_as<u16>(high)) << 16; }

constexpr Entry kEntries[] = {
    {"v_add_f32", lanewise<[](float a, float b) { return a + b; }>},
    {"v_sub_f32", lanewise<[](float a, float b) { return a - b; }>},
    {"v_subrev_f32", lanewise<[](float a, float b) { return b - a; }>},
    {"v_mul_f32", lanewise<[](float a, float b) { return a * b; }>},
    {"v_fma_f32", lanewise<[](float a, float b, float c) { return fused(a, b, c); }>},
    {"v_fmaak_f32", lanewise<[](float a, float b, float c) { return fused(a, b, c); }>},
    {"v_fmamk_f32", lanewise<[](float a, float b, float c) { return fused(a, b, c); }>},
    {"v_fmac_f32", accumulate<[](float a, float b, float c) { return fused(a, b, c); }>},
    {"v_max_num_f32", lanewise<[](float a, float b) { return larger(a, b); }>},
    {"v_min_num_f32", lanewise<[](float a, float b) { return smaller(a, b); }>},
    {"v_ldexp_f32", lanewise<[](float a, i32 b) { return std::ldexp(a, b); }>},
    {"v_trunc_f32", lanewise<[](float a) { return std::trunc(a); }>},
    {"v_rndne_f32", lanewise<[](float a) { return std::nearbyint(a); }>},
    {"v_floor_f32", lanewise<[](float a) { return std::floor(a); }>},
    {"v_ceil_f32", lanewise<[](float a) { return std::ceil(a); }>},
    {"v_fract_f32", lanewise<[](float a) { return a - std::floor(a); }>},
    {"v_frexp_mant_f32", lanewise<[](float a) { return mantissa(a); }>},
    {"v_frexp_exp_i32_f32", lanewise<[](float a) { return exponent(a); }>},
    {"v_rcp_f32", approximate<reciprocal>},
    {"v_rcp_iflag_f32", reciprocal_of_integer},
    {"v_rsq_f32", approximate<reciprocal_root>},
    {"v_sqrt_f32", approximate<root>},
    {"v_exp_f32", approximate<power_of_two>},
    {"v_log_f32", approximate<binary_logarithm>},
    {"v_div_scale_f32", div_scale},
    {"v_div_fmas_f32", div_fmas},
    {"v_div_fixup_f32", lanewise<[](float a, float b, float c) { return divide_fixup(a, b, c); }>},
    {"v_cvt_f32_u32", lanewise<[](u32 a) { return static_cast<float>(a); }>},
    {"v_cvt_f32_i32", lanewise<[](i32 a) { return static_cast<float>(a); }>},
    {"v_cvt_u32_f32", lanewise<[](float a) { return to_u32(a); }>},
    {"v_cvt_i32_f32", lanewise<[](float a) { return to_i32(a); }>},
    {"v_cvt_f32_f16", lanewise<[](Half a) { return static_cast<float>(a); }>},
    {"v_cvt_f16_f32", lanewise<[](float a) { return static_cast<Half>(a); }>},
    {"v_cvt_pk_rtz_f16_f32", lanewise<[](float a, float b) { return packed(toward_zero(a), toward_zero(b)); }>},
    {"v_pack_b32_f16", lanewise<[](Half a, Half b) { return packed(a, b); }>},
    {"v_add_f16", lanewise<[](Half a, Half b) { return static_cast<Half>(a + b); }>},
    {"v_sub_f16", lanewise<[](Half a, Half b) { return static_cast<Half>(a - b); }>},
    {"v_mul_f16", lanewise<[](Half a, Half b) { return static_cast<Half>(a * b); }>},
    {"v_fma_f16", lanewise<[](Half a, Half b, Half c) { return fused(a, b, c); }>},
    {"v_fmac_f16", accumulate<[](Half a, Half b, Half c) { return fused(a, b, c); }>},
    {"v_add_f64", lanewise<[](double a, double b) { return a + b; }>},
    {"v_mul_f64", lanewise<[](double a, double b) { return a * b; }>},
    {"v_fma_f64", lanewise<[](double a, double b, double c) { return fused(a, b, c); }>},
    {"v_cvt_f64_f32", lanewise<[](float a) { return static_cast<double>(a); }>},
    {"v_cvt_f32_f64", lanewise<[](double a) { return static_cast<float>(a); }>},
};

}  // namespace

std::span<const Entry> vector_float_entries() { return kEntries; }

}  // namespace rdna
