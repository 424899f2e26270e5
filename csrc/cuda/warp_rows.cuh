// A warp a row of a head's 64, 128 or 256 elements, lane l holding the n/32 consecutive elements from l n/32: what the
// norms share.
#pragma once

#include <type_traits>

#include "cuda/device.h"

namespace gdn::gpu {

struct WarpRows {
  static constexpr int block_threads = 256;
  static constexpr int block_rows = block_threads / kWarp;
  static constexpr int64_t max_blocks = 2048;  // enough for any card; what a warp loads once then serves many rows

  static unsigned blocks(int64_t rows) {
    const int64_t needed = (rows + block_rows - 1) / block_rows;
    return static_cast<unsigned>(needed < max_blocks ? needed : max_blocks);
  }
  static __device__ int lane() { return threadIdx.x % kWarp; }
  static __device__ int64_t first_row() { return static_cast<int64_t>(blockIdx.x) * block_rows + threadIdx.x / kWarp; }
  static __device__ int64_t row_stride() { return static_cast<int64_t>(gridDim.x) * block_rows; }

  // Where the first element of a row of [size0, size1, size2, n] lies.
  static __device__ int64_t offset(const int64_t (&size)[3], const int64_t (&stride)[4], int64_t row) {
    if (size[0] == 1 && size[1] == 1) return row * stride[2];
    const int64_t i2 = row % size[2], rest = row / size[2];
    return rest / size[1] * stride[0] + rest % size[1] * stride[1] + i2 * stride[2];
  }

  // A lane's elements, which lie side by side; in one access where the address allows it.
  template <class Element, int elements>
  struct alignas(sizeof(Element) * elements < 16 ? sizeof(Element) * elements : 16) Pack {
    Element e[elements];
  };
  template <class Element, int elements>
  static __device__ void load(const View<4>& view, const int64_t (&size)[3], int64_t row, float (&x)[elements]) {
    using Packed = Pack<Element, elements>;
    const Element* from = static_cast<const Element*>(view.data) + offset(size, view.stride, row) + lane() * elements;
    Packed pack;
    if (reinterpret_cast<uintptr_t>(from) % alignof(Packed) == 0) {
      pack = *reinterpret_cast<const Packed*>(from);
    } else {
#pragma unroll
      for (int i = 0; i < elements; ++i) pack.e[i] = from[i];
    }
#pragma unroll
    for (int i = 0; i < elements; ++i) x[i] = to_f32(pack.e[i]);
  }
  template <class Element, int elements>
  static __device__ void store(const OutView<4>& view, const int64_t (&size)[3], int64_t row,
                               const float (&x)[elements]) {
    using Packed = Pack<Element, elements>;
    Packed pack;
#pragma unroll
    for (int i = 0; i < elements; ++i) pack.e[i] = from_f32<Element>(x[i]);
    // Results are contiguous: aligned.
    *reinterpret_cast<Packed*>(static_cast<Element*>(view.data) + offset(size, view.stride, row) + lane() * elements) =
        pack;
  }
  template <int elements>
  static __device__ void load_any(const View<4>& view, const int64_t (&size)[3], int64_t row, float (&x)[elements]) {
    switch (view.dtype) {
      case DType::bf16: return load<bf16>(view, size, row, x);
      case DType::f16: return load<f16>(view, size, row, x);
      default: return load<float>(view, size, row, x);
    }
  }
  template <int elements>
  static __device__ void store_any(const OutView<4>& view, const int64_t (&size)[3], int64_t row,
                                   const float (&x)[elements]) {
    switch (view.dtype) {
      case DType::bf16: return store<bf16>(view, size, row, x);
      case DType::f16: return store<f16>(view, size, row, x);
      default: return store<float>(view, size, row, x);
    }
  }

  // In every lane.
  template <int elements>
  static __device__ float sum_of_squares(const float (&x)[elements]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < elements; ++i) sum = fmaf(x[i], x[i], sum);
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) sum += shuffle_xor(sum, distance);
    return sum;
  }
};

// f(Element{}, n/32 as a constant)
template <class F>
void with_row_type(DType dtype, int64_t n, F f) {
  const auto with_elements = [&](auto element) {
    switch (n) {
      case 64: return f(element, std::integral_constant<int, 2>{});
      case 128: return f(element, std::integral_constant<int, 4>{});
      default: return f(element, std::integral_constant<int, 8>{});
    }
  };
  switch (dtype) {
    case DType::bf16: return with_elements(bf16{});
    case DType::f16: return with_elements(f16{});
    default: return with_elements(float{});
  }
}

}  // namespace gdn::gpu
