// Scalar instructions.
#include <bit>
#include <cmath>

#include "float_functions.h"
#include "lanes.h"
#include "tables.h"

namespace rdna {
namespace {

using u32 = uint32_t;
using i32 = int32_t;
using u64 = uint64_t;
using i64 = int64_t;

template <class T>
void write_scalar(Wave& w, const Operand& to, T value) {
  if constexpr (sizeof(T) == 8) {
    w.set_pair(to.reg, bits_as<u64>(value));
  } else {
    w.set_scalar(to.reg, bits_as<u32>(value));
  }
}

// operand 0 = f(operand 1, ...)
template <auto f>
void scalar(Wave& w, const Instruction& in) {
  const auto run = [&]<class... A>(Types<A...>) {
    int i = 0;
    const std::tuple<A...> sources{scalar_value<A>(w, in.op[++i])...};
    write_scalar(w, in.op[0], std::apply(f, sources));
  };
  run(typename Signature<decltype(f)>::template Arguments<Types>{});
}

// The same; scc says whether the result is not zero.
template <auto f>
void scalar_nonzero(Wave& w, const Instruction& in) {
  const auto run = [&]<class... A>(Types<A...>) {
    int i = 0;
    const std::tuple<A...> sources{scalar_value<A>(w, in.op[++i])...};
    const auto result = std::apply(f, sources);
    write_scalar(w, in.op[0], result);
    w.s[kScc] = result != 0;
  };
  run(typename Signature<decltype(f)>::template Arguments<Types>{});
}

// operand 0 = f(operand 1, operand 2, scc), where f changes scc.
template <auto f>
void scalar_carry(Wave& w, const Instruction& in) {
  using T = typename Signature<decltype(f)>::Result;
  bool scc = w.s[kScc] != 0;
  const T result = f(scalar_value<T>(w, in.op[1]), scalar_value<T>(w, in.op[2]), scc);
  write_scalar(w, in.op[0], result);
  w.s[kScc] = scc;
}

// scc = f(operand 0, operand 1)
template <auto f>
void scalar_compare(Wave& w, const Instruction& in) {
  const auto run = [&]<class A, class B>(Types<A, B>) {
    w.s[kScc] = f(scalar_value<A>(w, in.op[0]), scalar_value<B>(w, in.op[1]));
  };
  run(typename Signature<decltype(f)>::template Arguments<Types>{});
}

// operand 0 = scc ? operand 1 : operand 2
template <class T>
void scalar_select(Wave& w, const Instruction& in) {
  write_scalar(w, in.op[0], scalar_value<T>(w, in.op[w.s[kScc] != 0 ? 1 : 2]));
}

template <class T>
void conditional_move(Wave& w, const Instruction& in) {
  if (w.s[kScc] != 0) write_scalar(w, in.op[0], scalar_value<T>(w, in.op[1]));
}

// operand 0 = exec; exec = f(operand 1, exec)
template <auto f>
void save_exec(Wave& w, const Instruction& in) {
  const u32 mask = scalar_value<u32>(w, in.op[1]), old = w.exec();
  w.s[kExec] = f(mask, old);
  w.set_scalar(in.op[0].reg, old);
  w.s[kScc] = w.exec() != 0;
}

// operand 0 = f(operand 0, 16-bit constant)
template <auto f>
void with_constant(Wave& w, const Instruction& in) {
  bool scc = w.s[kScc] != 0;
  const auto constant = static_cast<i32>(static_cast<int16_t>(in.op[1].integer));
  w.set_scalar(in.op[0].reg, static_cast<u32>(f(static_cast<i32>(w.s[in.op[0].reg]), constant, scc)));
  w.s[kScc] = scc;
}

template <auto f>
void fused_into_destination(Wave& w, const Instruction& in) {
  write_scalar(w, in.op[0],
               f(scalar_value<float>(w, in.op[1]), scalar_value<float>(w, in.op[2]), scalar_value<float>(w, in.op[0])));
}

template <float f(float)>
void approximate(Wave& w, const Instruction& in) {
  write_scalar(w, in.op[0], moved(f(scalar_value<float>(w, in.op[1])), w.launch->options.ulp));
}

// operand 0 = the address of the next instruction
void program_counter(Wave& w, const Instruction& in) {
  w.set_pair(in.op[0].reg, w.launch->program->base + in.next_address);
}

// A field's offset is in bits 0 to 5 of the description, its width from bit 16 on.
template <class T>
T bit_field(T value, u32 description) {
  constexpr u32 size = 8 * sizeof(T);
  const u32 offset = description & (size - 1), width = description >> 16 & 127;
  if (width == 0) return 0;
  const auto above = static_cast<Bits<T>>(value) >> offset;
  const u32 unused = width >= size ? 0 : size - width;
  return static_cast<T>(static_cast<T>(above << unused) >> unused);
}

u32 shifted_sum(u32 a, u32 b, int shift, bool& scc) {
  const u64 sum = (static_cast<u64>(a) << shift) + b;
  scc = sum >> 32 != 0;
  return static_cast<u32>(sum);
}

constexpr Entry kEntries[] = {
    {"s_mov_b32", scalar<[](u32 a) { return a; }>},
    {"s_mov_b64", scalar<[](u64 a) { return a; }>},
    {"s_getpc_b64", program_counter},
    {"s_movk_i32", with_constant<[](i32, i32 k, bool&) { return k; }>},
    {"s_cmov_b32", conditional_move<u32>},
    {"s_cmov_b64", conditional_move<u64>},
    {"s_cselect_b32", scalar_select<u32>},
    {"s_cselect_b64", scalar_select<u64>},
    {"s_add_co_u32", scalar_carry<[](u32 a, u32 b, bool& scc) -> u32 {
       scc = __builtin_add_overflow(a, b, &a);
       return a;
     }>},
    {"s_add_co_ci_u32", scalar_carry<[](u32 a, u32 b, bool& scc) -> u32 {
       const u64 sum = u64{a} + b + scc;
       scc = sum >> 32 != 0;
       return static_cast<u32>(sum);
     }>},
    {"s_sub_co_u32", scalar_carry<[](u32 a, u32 b, bool& scc) -> u32 {
       scc = __builtin_sub_overflow(a, b, &a);
       return a;
     }>},
    {"s_sub_co_ci_u32", scalar_carry<[](u32 a, u32 b, bool& scc) -> u32 {
       const u64 difference = u64{a} - b - scc;
       scc = difference >> 63 != 0;
       return static_cast<u32>(difference);
     }>},
    {"s_add_co_i32", scalar_carry<[](i32 a, i32 b, bool& scc) -> i32 {
       scc = __builtin_add_overflow(a, b, &a);
       return a;
     }>},
    {"s_sub_co_i32", scalar_carry<[](i32 a, i32 b, bool& scc) -> i32 {
       scc = __builtin_sub_overflow(a, b, &a);
       return a;
     }>},
    {"s_addk_co_i32", with_constant<[](i32 a, i32 k, bool& scc) {
       scc = __builtin_add_overflow(a, k, &a);
       return a;
     }>},
    {"s_mulk_i32", with_constant<[](i32 a, i32 k, bool&) { return static_cast<i32>(static_cast<u32>(a) * k); }>},
    {"s_add_nc_u64", scalar<[](u64 a, u64 b) { return a + b; }>},
    {"s_sub_nc_u64", scalar<[](u64 a, u64 b) { return a - b; }>},
    {"s_mul_i32", scalar<[](u32 a, u32 b) { return a * b; }>},
    {"s_mul_u64", scalar<[](u64 a, u64 b) { return a * b; }>},
    {"s_mul_hi_u32", scalar<[](u32 a, u32 b) { return static_cast<u32>(u64{a} * b >> 32); }>},
    {"s_mul_hi_i32", scalar<[](i32 a, i32 b) { return static_cast<u32>(static_cast<u64>(i64{a} * b) >> 32); }>},
    {"s_lshl1_add_u32", scalar_carry<[](u32 a, u32 b, bool& scc) { return shifted_sum(a, b, 1, scc); }>},
    {"s_lshl2_add_u32", scalar_carry<[](u32 a, u32 b, bool& scc) { return shifted_sum(a, b, 2, scc); }>},
    {"s_lshl3_add_u32", scalar_carry<[](u32 a, u32 b, bool& scc) { return shifted_sum(a, b, 3, scc); }>},
    {"s_lshl4_add_u32", scalar_carry<[](u32 a, u32 b, bool& scc) { return shifted_sum(a, b, 4, scc); }>},
    {"s_and_b32", scalar_nonzero<[](u32 a, u32 b) { return a & b; }>},
    {"s_or_b32", scalar_nonzero<[](u32 a, u32 b) { return a | b; }>},
    {"s_xor_b32", scalar_nonzero<[](u32 a, u32 b) { return a ^ b; }>},
    {"s_and_not1_b32", scalar_nonzero<[](u32 a, u32 b) { return a & ~b; }>},
    {"s_or_not1_b32", scalar_nonzero<[](u32 a, u32 b) { return a | ~b; }>},
    {"s_nand_b32", scalar_nonzero<[](u32 a, u32 b) { return ~(a & b); }>},
    {"s_nor_b32", scalar_nonzero<[](u32 a, u32 b) { return ~(a | b); }>},
    {"s_xnor_b32", scalar_nonzero<[](u32 a, u32 b) { return ~(a ^ b); }>},
    {"s_not_b32", scalar_nonzero<[](u32 a) { return ~a; }>},
    {"s_and_b64", scalar_nonzero<[](u64 a, u64 b) { return a & b; }>},
    {"s_or_b64", scalar_nonzero<[](u64 a, u64 b) { return a | b; }>},
    {"s_xor_b64", scalar_nonzero<[](u64 a, u64 b) { return a ^ b; }>},
    {"s_and_not1_b64", scalar_nonzero<[](u64 a, u64 b) { return a & ~b; }>},
    {"s_or_not1_b64", scalar_nonzero<[](u64 a, u64 b) { return a | ~b; }>},
    {"s_not_b64", scalar_nonzero<[](u64 a) { return ~a; }>},
    {"s_lshl_b32", scalar_nonzero<[](u32 a, u32 b) { return a << (b & 31); }>},
    {"s_lshr_b32", scalar_nonzero<[](u32 a, u32 b) { return a >> (b & 31); }>},
    {"s_ashr_i32", scalar_nonzero<[](i32 a, u32 b) { return a >> (b & 31); }>},
    {"s_lshl_b64", scalar_nonzero<[](u64 a, u32 b) { return a << (b & 63); }>},
    {"s_lshr_b64", scalar_nonzero<[](u64 a, u32 b) { return a >> (b & 63); }>},
    {"s_ashr_i64", scalar_nonzero<[](i64 a, u32 b) { return a >> (b & 63); }>},
    {"s_bfe_u32", scalar_nonzero<[](u32 a, u32 b) { return bit_field(a, b); }>},
    {"s_bfe_i32", scalar_nonzero<[](i32 a, u32 b) { return bit_field(a, b); }>},
    {"s_bfe_u64", scalar_nonzero<[](u64 a, u32 b) { return bit_field(a, b); }>},
    {"s_bfe_i64", scalar_nonzero<[](i64 a, u32 b) { return bit_field(a, b); }>},
    {"s_bfm_b32", scalar<[](u32 a, u32 b) { return ((1u << (a & 31)) - 1) << (b & 31); }>},
    {"s_brev_b32", scalar<[](u32 a) { return __builtin_bitreverse32(a); }>},
    {"s_bcnt1_i32_b32", scalar_nonzero<[](u32 a) { return static_cast<u32>(std::popcount(a)); }>},
    {"s_ctz_i32_b32", scalar<[](u32 a) { return a == 0 ? -1 : std::countr_zero(a); }>},
    {"s_ctz_i32_b64", scalar<[](u64 a) { return a == 0 ? -1 : std::countr_zero(a); }>},
    {"s_clz_i32_u32", scalar<[](u32 a) { return a == 0 ? -1 : std::countl_zero(a); }>},
    {"s_sext_i32_i8", scalar<[](u32 a) { return static_cast<i32>(static_cast<int8_t>(a)); }>},
    {"s_sext_i32_i16", scalar<[](u32 a) { return static_cast<i32>(static_cast<int16_t>(a)); }>},
    {"s_pack_ll_b32_b16", scalar<[](u32 a, u32 b) { return (a & 0xffff) | b << 16; }>},
    {"s_pack_lh_b32_b16", scalar<[](u32 a, u32 b) { return (a & 0xffff) | (b & 0xffff0000); }>},
    {"s_pack_hh_b32_b16", scalar<[](u32 a, u32 b) { return a >> 16 | (b & 0xffff0000); }>},
    {"s_min_i32", scalar_carry<[](i32 a, i32 b, bool& scc) -> i32 { return (scc = a < b) ? a : b; }>},
    {"s_max_i32", scalar_carry<[](i32 a, i32 b, bool& scc) -> i32 { return (scc = a > b) ? a : b; }>},
    {"s_min_u32", scalar_carry<[](u32 a, u32 b, bool& scc) -> u32 { return (scc = a < b) ? a : b; }>},
    {"s_max_u32", scalar_carry<[](u32 a, u32 b, bool& scc) -> u32 { return (scc = a > b) ? a : b; }>},
    {"s_abs_i32", scalar_nonzero<[](i32 a) { return a < 0 ? 0u - static_cast<u32>(a) : static_cast<u32>(a); }>},
    {"s_add_f32", scalar<[](float a, float b) { return a + b; }>},
    {"s_sub_f32", scalar<[](float a, float b) { return a - b; }>},
    {"s_mul_f32", scalar<[](float a, float b) { return a * b; }>},
    {"s_min_num_f32", scalar<[](float a, float b) { return smaller(a, b); }>},
    {"s_max_num_f32", scalar<[](float a, float b) { return larger(a, b); }>},
    {"s_fmac_f32", fused_into_destination<[](float a, float b, float c) { return std::fma(a, b, c); }>},
    {"s_fmaak_f32", scalar<[](float a, float b, float c) { return std::fma(a, b, c); }>},
    {"s_fmamk_f32", scalar<[](float a, float b, float c) { return std::fma(a, b, c); }>},
    {"s_trunc_f32", scalar<[](float a) { return std::trunc(a); }>},
    {"s_rndne_f32", scalar<[](float a) { return std::nearbyint(a); }>},
    {"s_floor_f32", scalar<[](float a) { return std::floor(a); }>},
    {"s_ceil_f32", scalar<[](float a) { return std::ceil(a); }>},
    {"s_cvt_u32_f32", scalar<[](float a) { return to_u32(a); }>},
    {"s_cvt_i32_f32", scalar<[](float a) { return to_i32(a); }>},
    {"s_cvt_f32_u32", scalar<[](u32 a) { return static_cast<float>(a); }>},
    {"s_cvt_f32_i32", scalar<[](i32 a) { return static_cast<float>(a); }>},
    {"v_s_rcp_f32", approximate<reciprocal>},
    {"v_s_rsq_f32", approximate<reciprocal_root>},
    {"v_s_sqrt_f32", approximate<root>},
    {"v_s_exp_f32", approximate<power_of_two>},
    {"v_s_log_f32", approximate<binary_logarithm>},
    {"s_and_saveexec_b32", save_exec<[](u32 a, u32 exec) { return a & exec; }>},
    {"s_or_saveexec_b32", save_exec<[](u32 a, u32 exec) { return a | exec; }>},
    {"s_xor_saveexec_b32", save_exec<[](u32 a, u32 exec) { return a ^ exec; }>},
    {"s_and_not1_saveexec_b32", save_exec<[](u32 a, u32 exec) { return a & ~exec; }>},
    {"s_or_not1_saveexec_b32", save_exec<[](u32 a, u32 exec) { return a | ~exec; }>},
    {"s_and_not0_saveexec_b32", save_exec<[](u32 a, u32 exec) { return ~a & exec; }>},
    {"s_bitcmp0_b32", scalar_compare<[](u32 a, u32 b) { return (a >> (b & 31) & 1) == 0; }>},
    {"s_bitcmp1_b32", scalar_compare<[](u32 a, u32 b) { return (a >> (b & 31) & 1) == 1; }>},
#define RDNA_COMPARE(condition, type, T, expression) \
  {"s_cmp_" condition "_" type, scalar_compare<[](T a, T b) { return expression; }>}
#define RDNA_ORDERED(type, T)                                                                                   \
  RDNA_COMPARE("lt", type, T, a < b), RDNA_COMPARE("eq", type, T, a == b), RDNA_COMPARE("le", type, T, a <= b), \
      RDNA_COMPARE("gt", type, T, a > b), RDNA_COMPARE("ge", type, T, a >= b)
// With a constant of 16 bits.
#define RDNA_SHORT(condition, type, T, Short, op) \
  {"s_cmpk_" condition "_" type, scalar_compare<[](T a, u32 b) { return a op T{static_cast<Short>(b)}; }>}
#define RDNA_SHORT_ORDERED(type, T, Short)                                                                         \
  RDNA_SHORT("lt", type, T, Short, <), RDNA_SHORT("eq", type, T, Short, ==), RDNA_SHORT("le", type, T, Short, <=), \
      RDNA_SHORT("gt", type, T, Short, >), RDNA_SHORT("ge", type, T, Short, >=)
    RDNA_ORDERED("i32", i32),
    RDNA_COMPARE("lg", "i32", i32, a != b),
    RDNA_ORDERED("u32", u32),
    RDNA_COMPARE("lg", "u32", u32, a != b),
    RDNA_SHORT_ORDERED("i32", i32, int16_t),
    RDNA_SHORT("lg", "i32", i32, int16_t, !=),
    RDNA_SHORT_ORDERED("u32", u32, uint16_t),
    RDNA_SHORT("lg", "u32", u32, uint16_t, !=),
    RDNA_COMPARE("eq", "u64", u64, a == b),
    RDNA_COMPARE("lg", "u64", u64, a != b),
    RDNA_ORDERED("f32", float),
    RDNA_COMPARE("lg", "f32", float, (a < b || a > b)),
    RDNA_COMPARE("neq", "f32", float, !(a == b)),
    RDNA_COMPARE("nlt", "f32", float, !(a < b)),
    RDNA_COMPARE("nle", "f32", float, !(a <= b)),
    RDNA_COMPARE("ngt", "f32", float, !(a > b)),
    RDNA_COMPARE("nge", "f32", float, !(a >= b)),
};

}  // namespace

std::span<const Entry> scalar_entries() { return kEntries; }

}  // namespace rdna
