// Neighbouring elements of a row as 32-bit words: one memory access, widened and narrowed in registers.
#pragma once

#include "cuda/device.h"

namespace gdn::gpu {

// n elements, aligned as their access needs it. One 16-bit element is no word: it is kept as it lies in memory.
template <class Element, int n>
struct alignas(sizeof(Element) * n < 16 ? sizeof(Element) * n : 16) Pack {
  static constexpr int bytes = static_cast<int>(sizeof(Element)) * n;
  static_assert(bytes % 4 == 0, "whole words");
  uint32_t word[bytes / 4];

  __device__ __forceinline__ void widen(float (&x)[n]) const {
#pragma unroll
    for (int w = 0; w < bytes / 4; ++w) {
      if constexpr (sizeof(Element) == 4) {
        x[w] = float_of(word[w]);
      } else {
        unpack2<Element>(word[w], &x[2 * w], &x[2 * w + 1]);
      }
    }
  }
  __device__ __forceinline__ void narrow(const float (&x)[n]) {
#pragma unroll
    for (int w = 0; w < bytes / 4; ++w) {
      if constexpr (sizeof(Element) == 4) {
        word[w] = bits_of(x[w]);
      } else {
        word[w] = pack2<Element>(x[2 * w], x[2 * w + 1]);
      }
    }
  }
  // The same from memory that may be aligned for single elements only.
  __device__ __forceinline__ void gather(const Element* from) {
#pragma unroll
    for (int w = 0; w < bytes / 4; ++w) {
      if constexpr (sizeof(Element) == 4) {
        word[w] = bits_of(from[w]);
      } else {
        word[w] = from[2 * w].bits | static_cast<uint32_t>(from[2 * w + 1].bits) << 16;
      }
    }
  }
};

template <>
struct Pack<bf16, 1> {
  bf16 element;
  __device__ __forceinline__ void widen(float (&x)[1]) const { x[0] = to_f32(element); }
  __device__ __forceinline__ void narrow(const float (&x)[1]) { element = from_f32<bf16>(x[0]); }
};
template <>
struct Pack<f16, 1> {
  f16 element;
  __device__ __forceinline__ void widen(float (&x)[1]) const { x[0] = to_f32(element); }
  __device__ __forceinline__ void narrow(const float (&x)[1]) { element = from_f32<f16>(x[0]); }
};

// f(Element{}) for a dtype that is the same for every thread, so that the branch does not diverge.
template <class F>
__device__ __forceinline__ void with_element_of(DType dtype, F f) {
  switch (dtype) {
    case DType::bf16: return f(bf16{});
    case DType::f16: return f(f16{});
    default: return f(float{});
  }
}

// The same where the dtype is known at run time only: raw words, so that a thread can have several parts under way.
template <int n>
struct RawPart {
  uint32_t word[n];

  // packed: the part is aligned as one access needs it.
  template <int rank>
  __device__ __forceinline__ void load(const View<rank>& view, int64_t offset, bool packed) {
    if (view.dtype == DType::f32) {
      fetch(static_cast<const float*>(view.data) + offset, packed);
    } else {
      fetch(static_cast<const bf16*>(view.data) + offset, packed);  // float16 lies in memory likewise
    }
  }
  __device__ __forceinline__ void widen(DType dtype, float (&x)[n]) const {
    with_element_of(dtype, [&](auto element) {
      Pack<decltype(element), n> pack;
#pragma unroll
      for (int w = 0; w < pack.bytes / 4; ++w) pack.word[w] = word[w];
      pack.widen(x);
    });
  }

 private:
  template <class Element>
  __device__ __forceinline__ void fetch(const Element* from, bool packed) {
    Pack<Element, n> pack;
    if (packed) {
      pack = *reinterpret_cast<const Pack<Element, n>*>(from);
    } else {
      pack.gather(from);
    }
#pragma unroll
    for (int w = 0; w < pack.bytes / 4; ++w) word[w] = pack.word[w];
    if constexpr (kRdna) {  // compilers join the last stores of the two types: they must be of the same word
#pragma unroll
      for (int w = pack.bytes / 4; w < n; ++w) word[w] = 0;
    }
  }
};

}  // namespace gdn::gpu
