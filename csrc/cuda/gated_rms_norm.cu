// gated_rms_norm: y = o / sqrt(mean o^2 + eps) * weight * SiLU(z), or sigmoid(z) (docs/math.md, norms).
//
//   tensor  shape             strides             dtype
//   o       [n0, n1, n2, V]   last 1, others any  float32, bfloat16 or float16
//   z       [n0, n1, n2, V]   last 1, others any  float32, bfloat16 or float16
//   weight  [V]               1                   float32, bfloat16 or float16
//   y       [n0, n1, n2, V]   contiguous          float32, bfloat16 or float16
//
// Grid: 8 or 16 threads a row, each striding by the whole grid. Shared memory: none. Barriers: none, shuffles within a
// row's threads. Precision: float32 in the exact order (head_rows.cuh); 16-bit results by core/quick_silu.h where it
// can decide them. One pass: only y is stored.
#include "cuda/device.h"

#include "cuda/head_rows.cuh"
#include "cuda/launch.h"
#include "cuda/output_gate.cuh"

namespace gdn::gpu {
namespace {

// Rows of o with their gates, as they lie in memory. usual: z and y have o's dtype, and rows are packed.
template <class Element, int elements, bool usual>
struct Loaded;

template <class Element, int elements>
struct Loaded<Element, elements, true> {
  RowPart<Element, elements, true> o, z;

  __device__ __forceinline__ void load(const NormParams& p, int64_t row) {
    using Rows = HeadRows<elements>;
    o.load(static_cast<const Element*>(p.o.data) + Rows::offset(p.size, p.o.stride, row));
    z.load(static_cast<const Element*>(p.z.data) + Rows::offset(p.size, p.z.stride, row));
  }
  __device__ __forceinline__ void widen_gate(int s, float (&x)[elements]) const { z.segment[s].widen(x); }
};
template <class Element, int elements>
struct Loaded<Element, elements, false> {
  RowPart<Element, elements, false> o;
  float z[HeadRows<elements>::segments][elements];

  __device__ __forceinline__ void load(const NormParams& p, int64_t row) {
    using Rows = HeadRows<elements>;
    o.load(static_cast<const Element*>(p.o.data) + Rows::offset(p.size, p.o.stride, row));
    with_element_of(p.z.dtype, [&](auto element) {
      RowPart<decltype(element), elements, false> part;
      part.load(static_cast<const decltype(element)*>(p.z.data) + Rows::offset(p.size, p.z.stride, row));
      part.widen(z);
    });
  }
  __device__ __forceinline__ void widen_gate(int s, float (&x)[elements]) const {
#pragma unroll
    for (int i = 0; i < elements; ++i) x[i] = z[s][i];
  }
};

template <class Element, int elements, bool usual>
__global__ void __launch_bounds__(HeadRows<elements>::block_threads, HeadRows<elements>::resident_blocks)
    gated_rms_norm_kernel(NormParams p, int64_t rows) {
  using Rows = HeadRows<elements>;
  constexpr float mean_of = 1.0f / (kWarp * elements);  // a power of two: the product is the correctly rounded quotient
  float weight[Rows::segments][elements];
  with_element_of(p.weight.dtype, [&](auto element) {
    RowPart<decltype(element), elements, false> part;
    part.load(static_cast<const decltype(element)*>(p.weight.data));
    part.widen(weight);
  });
  const auto within = [&](int64_t row) { return row < rows ? row : rows - 1; };
  int64_t mine = Rows::first_row();
  Loaded<Element, elements, usual> ahead;
  ahead.load(p, within(mine));
#pragma unroll 1
  for (; Rows::warp_has(mine, rows); mine += Rows::row_stride()) {
    const Loaded<Element, elements, usual> now = ahead;
    float x[Rows::segments][elements];
    now.o.widen(x);
    const int64_t next = mine + Rows::row_stride();
    if (Rows::warp_has(next, rows)) ahead.load(p, within(next));  // arrives while this row is computed
    const float factor = reciprocal_root(Rows::sum_of_squares(x) * mean_of + p.eps);
#pragma unroll
    for (int s = 0; s < Rows::segments; ++s) {
      float z[elements];
      now.widen_gate(s, z);
#pragma unroll
      for (int i = 0; i < elements; ++i) x[s][i] = x[s][i] * factor * weight[s][i];
      const auto store = [&](auto element) {
        auto* y = static_cast<decltype(element)*>(p.y.data) + Rows::offset(p.size, p.y.stride, within(mine));
        const auto segment = gated<decltype(element), elements>(x[s], z, p.activation);
        // A result is contiguous, so its rows are packed.
        if (mine < rows) *reinterpret_cast<Pack<decltype(element), elements>*>(y + Rows::element(s)) = segment;
      };
      if constexpr (usual) {
        store(Element{});
      } else {
        with_element_of(p.y.dtype, store);
      }
    }
  }
}

}  // namespace

const char* gated_rms_norm(const NormParams& params, void* stream) {
  const int64_t rows = params.size[0] * params.size[1] * params.size[2];
  if (rows == 0) return nullptr;
  NormParams p = params;
  join_leading_dimensions(p.size, p.o, p.z, p.y);
  const bool one_dtype = p.z.dtype == p.o.dtype && p.y.dtype == p.o.dtype;
  with_row_type(params.o.dtype, params.n, [&](auto element, auto elements) {
    using Rows = HeadRows<elements()>;
    constexpr int64_t bytes = sizeof(element);
    const bool usual =
        one_dtype && packed_rows(p.o.data, p.o.stride, bytes, p.n) && packed_rows(p.z.data, p.z.stride, bytes, p.n);
    const auto kernel = usual ? gated_rms_norm_kernel<decltype(element), elements(), true>
                              : gated_rms_norm_kernel<decltype(element), elements(), false>;
    kernel<<<Rows::blocks(kernel, rows), Rows::block_threads, 0, static_cast<Stream>(stream)>>>(p, rows);
  });
  return launch_error();
}

}  // namespace gdn::gpu
