// The CPU kernels for x86-64-v4: 16 lanes, 64 columns a tile in one strip.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/target.h"

GDN_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")

#include "core/exact_math.h"
#include "core/half.h"

namespace gdn::cpu {
namespace {

typedef float Vec __attribute__((vector_size(64)));
constexpr int kLanes = 16, kStripVectors = 4, kColumns = 64;

inline Vec broadcast(float x) { return _mm512_set1_ps(x); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec even(Vec a, Vec b) {
  return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), b);
}
inline Vec odd(Vec a, Vec b) {
  return _mm512_permutex2var_ps(a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b);
}

#include "cpu/kernels.inl"

}  // namespace

const Kernels kernels_avx512 = kKernels;

}  // namespace gdn::cpu

GDN_TARGET_END

#endif
