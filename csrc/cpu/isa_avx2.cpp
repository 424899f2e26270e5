// The CPU kernels for x86-64-v3: 8 lanes, 32 columns a tile in strips of two vectors (16 registers hold no more
// chains).
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/target.h"

GDN_TARGET_BEGIN("avx2,fma,f16c")

#include "core/exact_math.h"
#include "core/half.h"

namespace gdn::cpu {
namespace {

typedef float Vec __attribute__((vector_size(32)));
constexpr int kLanes = 8, kStripVectors = 2, kColumns = 32;

inline Vec broadcast(float x) { return _mm256_set1_ps(x); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
// A shuffle works within 128-bit halves: a0 a2 b0 b2 | a4 a6 b4 b6; the middle pairs then change places.
inline Vec join_pairs(Vec x) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0b11'01'10'00)); }
inline Vec even(Vec a, Vec b) { return join_pairs(_mm256_shuffle_ps(a, b, 0b10'00'10'00)); }
inline Vec odd(Vec a, Vec b) { return join_pairs(_mm256_shuffle_ps(a, b, 0b11'01'11'01)); }

#include "cpu/kernels.inl"

}  // namespace

const Kernels kernels_avx2 = kKernels;

}  // namespace gdn::cpu

GDN_TARGET_END

#endif
