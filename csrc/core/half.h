// bfloat16 and float16 as storage: to and from float32 in integer code, the same bits everywhere and branchless, so
// that loops over it are vectorised. Rounding is to nearest even; subnormals are kept, what is too large becomes
// infinity, a NaN stays a NaN (quiet, payload not kept). NVIDIA's conversion instructions do the same in one step.
#pragma once

#include <cstdint>

#include "core/exact_math.h"

namespace gdn {

struct bf16 {
  uint16_t bits;
};

struct f16 {
  uint16_t bits;
};

static GDN_HD float to_f32(float x) { return x; }

static GDN_HD float to_f32(bf16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }

static GDN_HD float to_f32(f16 x) {
#if defined(__CUDA_ARCH__)
  float widened;
  asm("cvt.f32.f16 %0, %1;" : "=f"(widened) : "h"(x.bits));
  return widened;
#else
  constexpr uint32_t rebias = (127u - 15u) << 23;
  constexpr uint32_t smallest_normal = 0x0400u;
  constexpr uint32_t infinity = 0x7c00u;
  constexpr uint32_t magic = 113u << 23;  // 2^-14: a subnormal is its significand at this exponent, less 2^-14
  const uint32_t sign = (x.bits & 0x8000u) << 16;
  const uint32_t size = x.bits & 0x7fffu;
  const uint32_t shifted = size << 13;
  const uint32_t normal = shifted + rebias + (size >= infinity ? rebias : 0u);
  const uint32_t subnormal = bits_of(float_of(shifted + magic) - float_of(magic));
  return float_of(sign | (size < smallest_normal ? subnormal : normal));
#endif
}

template <class T>
static GDN_HD T from_f32(float x);

template <>
GDN_HD float from_f32<float>(float x) {
  return x;
}

template <>
GDN_HD bf16 from_f32<bf16>(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  bf16 narrowed;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrowed.bits) : "f"(x));
  return narrowed;
#else
  constexpr uint32_t infinity = 0x7f800000u;
  constexpr uint32_t quiet = 0x00400000u;
  const uint32_t b = bits_of(x);
  const uint32_t rounded = b + 0x7fffu + ((b >> 16) & 1u);
  const uint32_t bits = (b & 0x7fffffffu) > infinity ? b | quiet : rounded;
  return bf16{static_cast<uint16_t>(bits >> 16)};
#endif
}

template <>
GDN_HD f16 from_f32<f16>(float x) {
#if defined(__CUDA_ARCH__)
  f16 narrowed;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrowed.bits) : "f"(x));
  return narrowed;
#else
  constexpr uint32_t rebias = (127u - 15u) << 23;
  constexpr uint32_t smallest_normal = 113u << 23;  // 2^-14
  constexpr uint32_t overflow = 143u << 23;         // 2^16: from here on infinity
  constexpr uint32_t infinity = 0x7f800000u;
  constexpr uint32_t half = 126u << 23;  // 0.5, whose unit in the last place is the float16 subnormals' spacing, 2^-24
  const uint32_t b = bits_of(x);
  const uint32_t size = b & 0x7fffffffu;
  const uint32_t normal = (size - rebias + 0xfffu + ((size >> 13) & 1u)) >> 13;
  const uint32_t subnormal = bits_of(float_of(size) + float_of(half)) - half;
  uint32_t h = size < smallest_normal ? subnormal : normal;
  h = size >= overflow ? 0x7c00u : h;
  h = size > infinity ? 0x7e00u : h;
  return f16{static_cast<uint16_t>((b >> 16 & 0x8000u) | h)};
#endif
}

// Two elements side by side in memory, as one 32-bit word.
template <class T>
static GDN_HD uint32_t pack2(float first, float second) {
  return from_f32<T>(first).bits | static_cast<uint32_t>(from_f32<T>(second).bits) << 16;
}

template <class T>
static GDN_HD void unpack2(uint32_t word, float* first, float* second) {
  *first = to_f32(T{static_cast<uint16_t>(word)});
  *second = to_f32(T{static_cast<uint16_t>(word >> 16)});
}
template <>
GDN_HD void unpack2<bf16>(uint32_t word, float* first, float* second) {
  *first = float_of(word << 16);
  *second = float_of(word & 0xffff0000u);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <>
GDN_HD uint32_t pack2<bf16>(float first, float second) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
}
template <>
GDN_HD uint32_t pack2<f16>(float first, float second) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
}
#endif

}  // namespace gdn
