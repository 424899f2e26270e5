// Vector instructions on integers and bits.
#include <algorithm>
#include <bit>

#include "lanes.h"
#include "tables.h"

namespace rdna {
namespace {

constexpr uint32_t low24(uint32_t x) { return x & 0xffffff; }
constexpr uint32_t field(uint32_t value, uint32_t offset, uint32_t width) {
  return value >> (offset & 31) & ((1u << (width & 31)) - 1);
}
constexpr int32_t signed_field(uint32_t value, uint32_t offset, uint32_t width) {
  const uint32_t bits = width & 31;
  if (bits == 0) return 0;
  return static_cast<int32_t>(field(value, offset, width) << (32 - bits)) >> (32 - bits);
}
template <class T>
constexpr T median(T a, T b, T c) {
  const T least = std::min(a, b), most = std::max(a, b);
  return std::max(least, std::min(most, c));
}
constexpr int leading_zeros(uint32_t x) { return x == 0 ? -1 : std::countl_zero(x); }

// Bytes of (high, low), lowest first, chosen by a selector's bytes.
constexpr uint32_t permuted_bytes(uint32_t high, uint32_t low, uint32_t selector) {
  const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t s = selector >> (8 * i) & 0xff;
    uint32_t byte = 0;
    if (s < 8) byte = static_cast<uint32_t>(both >> (8 * s)) & 0xff;
    if (s >= 8 && s < 12) byte = both >> (16 * (s - 8) + 15) & 1 ? 0xff : 0;
    if (s > 12) byte = 0xff;
    result |= byte << (8 * i);
  }
  return result;
}

// (result, carry) = f(a, b, carry in)
struct Carried {
  uint32_t result;
  bool carry;
};
constexpr Carried added(uint32_t a, uint32_t b, bool carry) {
  const uint64_t sum = static_cast<uint64_t>(a) + b + carry;
  return {static_cast<uint32_t>(sum), sum >> 32 != 0};
}
constexpr Carried subtracted(uint32_t a, uint32_t b, bool borrow) {
  const uint64_t difference = static_cast<uint64_t>(a) - b - borrow;
  return {static_cast<uint32_t>(difference), difference >> 63 != 0};
}

// v, mask = a, b[, mask]
template <Carried f(uint32_t, uint32_t, bool), bool reversed>
void carry(Wave& w, const Instruction& in) {
  const Lanes<uint32_t> a = read<uint32_t>(w, in, 2, true), b = read<uint32_t>(w, in, 3);
  const uint32_t carries = in.count > 4 ? scalar_value<uint32_t>(w, in.op[4]) : 0;
  Lanes<uint32_t> result;
  uint32_t mask = 0;
  for (int l = 0; l < kLanes; ++l) {
    const bool carried = carries >> l & 1;
    const Carried r = reversed ? f(b.at[l], a.at[l], carried) : f(a.at[l], b.at[l], carried);
    result.at[l] = r.result;
    mask |= static_cast<uint32_t>(r.carry) << l;
  }
  write(w, in, 0, result);
  write_mask(w, in.op[1], mask & w.exec());
}

// v[2], mask = a * b + c
template <class T, class Wide>
void multiply_add(Wave& w, const Instruction& in) {
  const Lanes<T> a = read<T>(w, in, 2), b = read<T>(w, in, 3);
  const Lanes<Wide> c = read<Wide>(w, in, 4);
  Lanes<Wide> result;
  uint32_t mask = 0;
  for (int l = 0; l < kLanes; ++l) {
    const Wide product = static_cast<Wide>(a.at[l]) * static_cast<Wide>(b.at[l]);
    mask |= static_cast<uint32_t>(__builtin_add_overflow(product, c.at[l], &result.at[l])) << l;
  }
  write(w, in, 0, result);
  write_mask(w, in.op[1], mask & w.exec());
}

// v = mask ? b : a
template <class T>
void select(Wave& w, const Instruction& in) {
  const Lanes<T> a = read<T>(w, in, 1, true), b = read<T>(w, in, 2);
  const uint32_t mask = in.count > 3 ? scalar_value<uint32_t>(w, in.op[3]) : w.s[kVcc];
  Lanes<T> result;
  for (int l = 0; l < kLanes; ++l) result.at[l] = mask >> l & 1 ? b.at[l] : a.at[l];
  write(w, in, 0, result);
}

template <bool upper>
void count_mask_bits(Wave& w, const Instruction& in) {
  const Lanes<uint32_t> mask = read<uint32_t>(w, in, 1), add = read<uint32_t>(w, in, 2);
  Lanes<uint32_t> result;
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t lanes_below = (1u << l) - 1;
    result.at[l] = add.at[l] + (upper ? 0 : static_cast<uint32_t>(std::popcount(mask.at[l] & lanes_below)));
  }
  write(w, in, 0, result);
}

using u16 = uint16_t;
using i16 = int16_t;
using u32 = uint32_t;
using i32 = int32_t;
using u64 = uint64_t;
using i64 = int64_t;

constexpr Entry kEntries[] = {
    {"v_mov_b32", lanewise<[](u32 a) { return a; }>},
    {"v_mov_b64", lanewise<[](u64 a) { return a; }>},
    {"v_mov_b16", lanewise<[](u16 a) { return a; }>},
    {"v_not_b32", lanewise<[](u32 a) { return ~a; }>},
    {"v_not_b16", lanewise<[](u16 a) { return static_cast<u16>(~a); }>},
    {"v_bfrev_b32", lanewise<[](u32 a) { return __builtin_bitreverse32(a); }>},
    {"v_clz_i32_u32", lanewise<[](u32 a) { return leading_zeros(a); }>},
    {"v_ctz_i32_b32", lanewise<[](u32 a) { return a == 0 ? -1 : std::countr_zero(a); }>},
    {"v_add_nc_u32", lanewise<[](u32 a, u32 b) { return a + b; }>},
    {"v_sub_nc_u32", lanewise<[](u32 a, u32 b) { return a - b; }>},
    {"v_subrev_nc_u32", lanewise<[](u32 a, u32 b) { return b - a; }>},
    {"v_add_nc_i32", lanewise<[](u32 a, u32 b) { return a + b; }>},
    {"v_sub_nc_i32", lanewise<[](u32 a, u32 b) { return a - b; }>},
    {"v_add_nc_u16", lanewise<[](u16 a, u16 b) { return static_cast<u16>(a + b); }>},
    {"v_sub_nc_u16", lanewise<[](u16 a, u16 b) { return static_cast<u16>(a - b); }>},
    {"v_mul_lo_u16", lanewise<[](u16 a, u16 b) { return static_cast<u16>(u32{a} * b); }>},
    {"v_mul_lo_u32", lanewise<[](u32 a, u32 b) { return a * b; }>},
    {"v_mul_hi_u32", lanewise<[](u32 a, u32 b) { return static_cast<u32>(u64{a} * b >> 32); }>},
    {"v_mul_hi_i32", lanewise<[](i32 a, i32 b) { return static_cast<u32>(static_cast<u64>(i64{a} * b) >> 32); }>},
    {"v_mul_u32_u24", lanewise<[](u32 a, u32 b) { return low24(a) * low24(b); }>},
    {"v_mul_i32_i24", lanewise<[](u32 a, u32 b) { return signed_field(a, 0, 24) * signed_field(b, 0, 24); }>},
    {"v_mad_u32_u24", lanewise<[](u32 a, u32 b, u32 c) { return low24(a) * low24(b) + c; }>},
    {"v_mad_i32_i24",
     lanewise<[](u32 a, u32 b, i32 c) { return signed_field(a, 0, 24) * signed_field(b, 0, 24) + c; }>},
    {"v_mad_u16", lanewise<[](u16 a, u16 b, u16 c) { return static_cast<u16>(u32{a} * b + c); }>},
    {"v_mad_co_u64_u32", multiply_add<u32, u64>},
    {"v_mad_co_i64_i32", multiply_add<i32, i64>},
    {"v_and_b32", lanewise<[](u32 a, u32 b) { return a & b; }>},
    {"v_or_b32", lanewise<[](u32 a, u32 b) { return a | b; }>},
    {"v_xor_b32", lanewise<[](u32 a, u32 b) { return a ^ b; }>},
    {"v_xnor_b32", lanewise<[](u32 a, u32 b) { return ~(a ^ b); }>},
    {"v_and_b16", lanewise<[](u16 a, u16 b) { return static_cast<u16>(a & b); }>},
    {"v_or_b16", lanewise<[](u16 a, u16 b) { return static_cast<u16>(a | b); }>},
    {"v_xor_b16", lanewise<[](u16 a, u16 b) { return static_cast<u16>(a ^ b); }>},
    {"v_and_or_b32", lanewise<[](u32 a, u32 b, u32 c) { return (a & b) | c; }>},
    {"v_or3_b32", lanewise<[](u32 a, u32 b, u32 c) { return a | b | c; }>},
    {"v_xor3_b32", lanewise<[](u32 a, u32 b, u32 c) { return a ^ b ^ c; }>},
    {"v_bfi_b32", lanewise<[](u32 a, u32 b, u32 c) { return (a & b) | (~a & c); }>},
    {"v_bfe_u32", lanewise<[](u32 a, u32 b, u32 c) { return field(a, b, c); }>},
    {"v_bfe_i32", lanewise<[](u32 a, u32 b, u32 c) { return signed_field(a, b, c); }>},
    {"v_lshlrev_b32", lanewise<[](u32 a, u32 b) { return b << (a & 31); }>},
    {"v_lshrrev_b32", lanewise<[](u32 a, u32 b) { return b >> (a & 31); }>},
    {"v_ashrrev_i32", lanewise<[](u32 a, i32 b) { return b >> (a & 31); }>},
    {"v_lshlrev_b16", lanewise<[](u16 a, u16 b) { return static_cast<u16>(b << (a & 15)); }>},
    {"v_lshrrev_b16", lanewise<[](u16 a, u16 b) { return static_cast<u16>(b >> (a & 15)); }>},
    {"v_ashrrev_i16", lanewise<[](u16 a, i16 b) { return static_cast<i16>(b >> (a & 15)); }>},
    {"v_lshlrev_b64", lanewise<[](u32 a, u64 b) { return b << (a & 63); }>},
    {"v_lshrrev_b64", lanewise<[](u32 a, u64 b) { return b >> (a & 63); }>},
    {"v_ashrrev_i64", lanewise<[](u32 a, i64 b) { return b >> (a & 63); }>},
    {"v_lshl_add_u32", lanewise<[](u32 a, u32 b, u32 c) { return (a << (b & 31)) + c; }>},
    {"v_lshl_or_b32", lanewise<[](u32 a, u32 b, u32 c) { return a << (b & 31) | c; }>},
    {"v_add_lshl_u32", lanewise<[](u32 a, u32 b, u32 c) { return (a + b) << (c & 31); }>},
    {"v_add3_u32", lanewise<[](u32 a, u32 b, u32 c) { return a + b + c; }>},
    {"v_xad_u32", lanewise<[](u32 a, u32 b, u32 c) { return (a ^ b) + c; }>},
    {"v_alignbit_b32", lanewise<[](u32 a, u32 b, u32 c) { return static_cast<u32>((u64{a} << 32 | b) >> (c & 31)); }>},
    {"v_alignbyte_b32",
     lanewise<[](u32 a, u32 b, u32 c) { return static_cast<u32>((u64{a} << 32 | b) >> (8 * (c & 3))); }>},
    {"v_perm_b32", lanewise<[](u32 a, u32 b, u32 c) { return permuted_bytes(a, b, c); }>},
    {"v_min_u32", lanewise<[](u32 a, u32 b) { return std::min(a, b); }>},
    {"v_max_u32", lanewise<[](u32 a, u32 b) { return std::max(a, b); }>},
    {"v_min_i32", lanewise<[](i32 a, i32 b) { return std::min(a, b); }>},
    {"v_max_i32", lanewise<[](i32 a, i32 b) { return std::max(a, b); }>},
    {"v_min_u16", lanewise<[](u16 a, u16 b) { return std::min(a, b); }>},
    {"v_max_u16", lanewise<[](u16 a, u16 b) { return std::max(a, b); }>},
    {"v_med3_u32", lanewise<[](u32 a, u32 b, u32 c) { return median(a, b, c); }>},
    {"v_med3_i32", lanewise<[](i32 a, i32 b, i32 c) { return median(a, b, c); }>},
    {"v_min3_u32", lanewise<[](u32 a, u32 b, u32 c) { return std::min({a, b, c}); }>},
    {"v_max3_u32", lanewise<[](u32 a, u32 b, u32 c) { return std::max({a, b, c}); }>},
    {"v_min3_i32", lanewise<[](i32 a, i32 b, i32 c) { return std::min({a, b, c}); }>},
    {"v_max3_i32", lanewise<[](i32 a, i32 b, i32 c) { return std::max({a, b, c}); }>},
    {"v_bcnt_u32_b32", lanewise<[](u32 a, u32 b) { return static_cast<u32>(std::popcount(a)) + b; }>},
    {"v_mbcnt_lo_u32_b32", count_mask_bits<false>},
    {"v_mbcnt_hi_u32_b32", count_mask_bits<true>},
    {"v_cndmask_b32", select<u32>},
    {"v_cndmask_b16", select<u16>},
    {"v_add_co_u32", carry<added, false>},
    {"v_add_co_ci_u32", carry<added, false>},
    {"v_sub_co_u32", carry<subtracted, false>},
    {"v_sub_co_ci_u32", carry<subtracted, false>},
    {"v_subrev_co_u32", carry<subtracted, true>},
    {"v_subrev_co_ci_u32", carry<subtracted, true>},
};

}  // namespace

std::span<const Entry> vector_integer_entries() { return kEntries; }

}  // namespace rdna
