// qk_l2norm: y = x / sqrt(sum x^2 + eps) of a head (docs/math.md, norms), for two tensors in one launch
// where they have one dtype and K.
//
//   tensor  shape             strides             dtype
//   x, y    [n0, n1, n2, K]   last 1, others any  float32, bfloat16 or float16
//
// Grid: x = 8 or 16 threads a row, each striding by the whole grid; y = the tensor. Shared memory: none. Barriers:
// none, shuffles within a row's threads. Precision: float32 in the exact order (head_rows.cuh).
#include "cuda/device.h"

#include "cuda/head_rows.cuh"
#include "cuda/launch.h"

namespace gdn::gpu {
namespace {

struct TwoTensors {
  L2NormParams tensor[2];
};

__device__ __host__ __forceinline__ int64_t rows_of(const L2NormParams& p) { return p.size[0] * p.size[1] * p.size[2]; }

template <class Element, int elements, bool packed>
__global__ void __launch_bounds__(HeadRows<elements>::block_threads) qk_l2norm_kernel(TwoTensors both) {
  using Rows = HeadRows<elements>;
  const L2NormParams& p = both.tensor[blockIdx.y];
  const int64_t rows = rows_of(p);
  for (int64_t mine = Rows::first_row(); Rows::warp_has(mine, rows); mine += Rows::row_stride()) {
    const int64_t row = mine < rows ? mine : rows - 1;
    RowPart<Element, elements, packed> part;
    part.load(static_cast<const Element*>(p.x.data) + Rows::offset(p.size, p.x.stride, row));
    float x[Rows::segments][elements];
    part.widen(x);
    const float factor = reciprocal_root(Rows::sum_of_squares(x) + p.eps);
    Element* y = static_cast<Element*>(p.y.data) + Rows::offset(p.size, p.y.stride, row);
#pragma unroll
    for (int s = 0; s < Rows::segments; ++s) {
#pragma unroll
      for (int i = 0; i < elements; ++i) x[s][i] = x[s][i] * factor;
      Pack<Element, elements> segment;
      segment.narrow(x[s]);
      // A result is contiguous, so its rows are packed.
      if (mine < rows) *reinterpret_cast<Pack<Element, elements>*>(y + Rows::element(s)) = segment;
    }
  }
}

const char* launch(TwoTensors both, unsigned tensors, void* stream) {
  int64_t rows = 0;
  for (L2NormParams& p : both.tensor) {
    join_leading_dimensions(p.size, p.x, p.y);
    rows = rows_of(p) > rows ? rows_of(p) : rows;
  }
  if (rows == 0) return nullptr;
  with_row_type(both.tensor[0].x.dtype, both.tensor[0].n, [&](auto element, auto elements) {
    using Rows = HeadRows<elements()>;
    bool packed = true;
    for (const L2NormParams& p : both.tensor) {
      packed = packed && packed_rows(p.x.data, p.x.stride, sizeof(element), both.tensor[0].n);
    }
    const auto kernel = packed ? qk_l2norm_kernel<decltype(element), elements(), true>
                               : qk_l2norm_kernel<decltype(element), elements(), false>;
    kernel<<<dim3(Rows::blocks(kernel, rows), tensors), Rows::block_threads, 0, static_cast<Stream>(stream)>>>(both);
  });
  return launch_error();
}

}  // namespace

const char* qk_l2norm(const L2NormParams& q, const L2NormParams& k, void* stream) {
  if (q.x.dtype == k.x.dtype && q.n == k.n) return launch({{q, k}}, 2, stream);
  if (const char* refused = launch({{q, {}}}, 1, stream)) return refused;
  return launch({{k, {}}}, 1, stream);
}

}  // namespace gdn::gpu
