// The CPU kernels for whatever the compiler targets by default: 4 lanes. Where that has no fused multiply-add (x86-64
// before v3) a correct one is computed in double precision, slowly.

#include <cstddef>
#include <cstdint>

#if !defined(__FMA__) && !defined(__aarch64__)
#define GDN_SOFT_FMA
#endif

#include "core/exact_math.h"
#include "core/half.h"
#include "cpu/kernels.h"

namespace gdn::cpu {
namespace {

typedef float Vec __attribute__((vector_size(16)));
constexpr int kLanes = 4, kStripVectors = 4, kColumns = 32;

inline Vec broadcast(float x) { return Vec{x, x, x, x}; }
inline Vec fma(Vec a, Vec b, Vec c) {
  return Vec{fma_f32(a[0], b[0], c[0]), fma_f32(a[1], b[1], c[1]), fma_f32(a[2], b[2], c[2]),
             fma_f32(a[3], b[3], c[3])};
}
inline Vec even(Vec a, Vec b) { return Vec{a[0], a[2], b[0], b[2]}; }
inline Vec odd(Vec a, Vec b) { return Vec{a[1], a[3], b[1], b[3]}; }

#include "cpu/kernels.inl"

}  // namespace

const Kernels kernels_baseline = kKernels;

}  // namespace gdn::cpu
