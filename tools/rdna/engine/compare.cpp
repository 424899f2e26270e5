// Vector comparisons: a mask with a bit a lane, into a scalar register, or for v_cmpx into exec.
#include "float_functions.h"
#include "lanes.h"
#include "tables.h"

namespace rdna {
namespace {

template <auto f, class A, class B, bool into_exec>
void compare(Wave& w, const Instruction& in) {
  const int a_at = in.count - 2;
  const Lanes<A> a = read<A>(w, in, a_at, true);
  const Lanes<B> b = read<B>(w, in, a_at + 1);
  uint32_t mask = 0;
  for (int l = 0; l < kLanes; ++l) mask |= static_cast<uint32_t>(f(a.at[l], b.at[l])) << l;
  mask &= w.exec();
  if constexpr (into_exec) {
    w.s[kExec] = mask;
  } else {
    write_mask(w, in.op[0], mask);
  }
}

#define RDNA_COMPARE(condition, type, T, expression)                                          \
  {"v_cmp_" condition "_" type, compare<[](T a, T b) { return expression; }, T, T, false>}, { \
    "v_cmpx_" condition "_" type, compare<[](T a, T b) { return expression; }, T, T, true>    \
  }
#define RDNA_ORDERED(type, T)                                                                                   \
  RDNA_COMPARE("lt", type, T, a < b), RDNA_COMPARE("eq", type, T, a == b), RDNA_COMPARE("le", type, T, a <= b), \
      RDNA_COMPARE("gt", type, T, a > b), RDNA_COMPARE("ge", type, T, a >= b)
#define RDNA_INTEGER(type, T) RDNA_ORDERED(type, T), RDNA_COMPARE("ne", type, T, a != b)
// The conditions with an n hold for NaNs too.
#define RDNA_FLOAT(type, T)                                                                                      \
  RDNA_ORDERED(type, T), RDNA_COMPARE("lg", type, T, (a < b || a > b)), RDNA_COMPARE("neq", type, T, !(a == b)), \
      RDNA_COMPARE("nlt", type, T, !(a < b)), RDNA_COMPARE("nle", type, T, !(a <= b)),                           \
      RDNA_COMPARE("ngt", type, T, !(a > b)), RDNA_COMPARE("nge", type, T, !(a >= b)),                           \
      RDNA_COMPARE("nlg", type, T, !(a < b || a > b)), RDNA_COMPARE("o", type, T, (a == a && b == b)),           \
      RDNA_COMPARE("u", type, T, (a != a || b != b))

constexpr Entry kEntries[] = {
    RDNA_INTEGER("u16", uint16_t),
    RDNA_INTEGER("i16", int16_t),
    RDNA_INTEGER("u32", uint32_t),
    RDNA_INTEGER("i32", int32_t),
    RDNA_INTEGER("u64", uint64_t),
    RDNA_INTEGER("i64", int64_t),
    RDNA_FLOAT("f16", Half),
    RDNA_FLOAT("f32", float),
    RDNA_FLOAT("f64", double),
    {"v_cmp_class_f32", compare<is_of_class, float, uint32_t, false>},
    {"v_cmpx_class_f32", compare<is_of_class, float, uint32_t, true>},
};

}  // namespace

std::span<const Entry> compare_entries() { return kEntries; }

}  // namespace rdna
