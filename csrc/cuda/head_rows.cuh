// Rows of a head's n = 64, 128 or 256 elements, 8 or (n = 256) 16 threads a row: what the norms share.
//
// The exact order gives the n/32 consecutive elements from l n/32 to lane l of 32, and adds the lanes' sums at
// distances 16, 8, 4, 2, 1 (docs/contract.md). Here thread t of r has the lanes t, t + r, t + 2r, ...: the first steps
// of that butterfly are its own additions, the others are shuffles, and a root and a division serve all of its
// elements.
#pragma once

#include <type_traits>

#include "cuda/pack.cuh"

namespace gdn::gpu {

// `elements`: n / 32, of a lane of the exact order.
template <int elements>
struct HeadRows {
  static constexpr int lanes = 32;
  static constexpr int segments = elements < 8 ? 4 : 2;  // lanes of the exact order in a thread
  static constexpr int row_threads = lanes / segments;
  static constexpr int block_threads = 128;
  static constexpr int resident_blocks = 3;  // of a multiprocessor: what the registers must leave room for
  static constexpr int block_rows = block_threads / row_threads;
  static_assert(kWarp % row_threads == 0, "a row's threads are in one warp");
  static_assert(segments * elements <= 16, "a thread's elements, and as many of z and the weight, are in registers");

  // A block for every block_rows rows, or, where that is more than the device holds several times over, as many as it
  // holds: what a thread loads once then serves many rows, and the blocks end together.
  template <class Kernel>
  static unsigned blocks(Kernel kernel, int64_t rows) {
    constexpr int64_t few_blocks = 4096;
    const int64_t needed = (rows + block_rows - 1) / block_rows;
    const int64_t resident = needed > few_blocks ? gpu::resident_blocks(kernel, block_threads, 0) : 0;
    return static_cast<unsigned>(resident > 0 ? resident : needed < few_blocks ? needed : few_blocks);
  }
  static __device__ int64_t first_row() {
    return static_cast<int64_t>(blockIdx.x) * block_rows + threadIdx.x / row_threads;
  }
  static __device__ int64_t row_stride() { return static_cast<int64_t>(gridDim.x) * block_rows; }
  // Whether a row of this warp exists: whole warps take part in the shuffles.
  static __device__ bool warp_has(int64_t row, int64_t rows) {
    return row - static_cast<int>(threadIdx.x) % kWarp / row_threads < rows;
  }
  // The first element of a thread's segment.
  static __device__ int element(int segment) {
    return (segment * row_threads + static_cast<int>(threadIdx.x) % row_threads) * elements;
  }

  // Where the first element of a row of [size0, size1, size2, n] lies.
  static __device__ int64_t offset(const int64_t (&size)[3], const int64_t (&stride)[4], int64_t row) {
    if (size[0] == 1 && size[1] == 1) return row * stride[2];
    const int64_t i2 = row % size[2], rest = row / size[2];
    return rest / size[1] * stride[0] + rest % size[1] * stride[1] + i2 * stride[2];
  }

  // In each of the row's threads.
  static __device__ __forceinline__ float sum_of_squares(const float (&x)[segments][elements]) {
    float lane[segments];
#pragma unroll
    for (int s = 0; s < segments; ++s) {
      lane[s] = 0.0f;
#pragma unroll
      for (int i = 0; i < elements; ++i) lane[s] = fmaf(x[s][i], x[s][i], lane[s]);
    }
#pragma unroll
    for (int half = segments / 2; half > 0; half /= 2) {
#pragma unroll
      for (int s = 0; s < half; ++s) lane[s] += lane[s + half];
    }
    float sum = lane[0];
#pragma unroll
    for (int distance = row_threads / 2; distance > 0; distance /= 2) sum += shuffle_xor(sum, distance);
    return sum;
  }
};

// A thread's part of a row as it lies in memory. `elements`: n / 32. packed: every row starts where a segment may be
// read in one access.
template <class Element, int elements, bool packed>
struct RowPart {
  using Rows = HeadRows<elements>;
  Pack<Element, elements> segment[Rows::segments];

  __device__ __forceinline__ void load(const Element* row) {
#pragma unroll
    for (int s = 0; s < Rows::segments; ++s) {
      if constexpr (packed) {
        segment[s] = *reinterpret_cast<const Pack<Element, elements>*>(row + Rows::element(s));
      } else {
        segment[s].gather(row + Rows::element(s));
      }
    }
  }
  __device__ __forceinline__ void widen(float (&x)[Rows::segments][elements]) const {
#pragma unroll
    for (int s = 0; s < Rows::segments; ++s) segment[s].widen(x[s]);
  }
};

// Whether RowPart may be packed.
inline bool packed_rows(const void* data, const int64_t (&stride)[4], int64_t element_bytes, int64_t n) {
  const int64_t lane_bytes = n / kWarp * element_bytes, bytes = lane_bytes < 16 ? lane_bytes : 16;
  const int64_t together = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data)) | stride[0] * element_bytes |
                           stride[1] * element_bytes | stride[2] * element_bytes;
  return together % bytes == 0;
}

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
