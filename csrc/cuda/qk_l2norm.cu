// qk_l2norm: y = x / sqrt(sum x^2 + eps) of a head (docs/math.md, norms).
//
//   tensor  shape             strides             dtype
//   x, y    [n0, n1, n2, K]   last 1, others any  float32, bfloat16 or float16
//
// Grid: a warp a row, each warp striding by the whole grid. Shared memory: none. Barriers: none, shuffles within a
// warp. Precision: float32 in the exact order: lane l holds the K/32 consecutive elements from l K/32.
#include "cuda/device.h"

#include "cuda/launch.h"
#include "cuda/warp_rows.cuh"

namespace gdn::gpu {
namespace {

template <class Element, int elements>
__global__ void __launch_bounds__(WarpRows::block_threads) qk_l2norm_kernel(L2NormParams p, int64_t rows) {
  for (int64_t row = WarpRows::first_row(); row < rows; row += WarpRows::row_stride()) {
    float x[elements];
    WarpRows::load<Element>(p.x, p.size, row, x);
    const float factor = reciprocal_root(WarpRows::sum_of_squares(x) + p.eps);
#pragma unroll
    for (int i = 0; i < elements; ++i) x[i] = x[i] * factor;
    WarpRows::store<Element>(p.y, p.size, row, x);
  }
}

}  // namespace

const char* qk_l2norm(const L2NormParams& params, void* stream) {
  const int64_t rows = params.size[0] * params.size[1] * params.size[2];
  if (rows == 0) return nullptr;
  L2NormParams p = params;
  join_leading_dimensions(p.size, p.x, p.y);
  with_row_type(params.x.dtype, params.n, [&](auto element, auto elements) {
    qk_l2norm_kernel<decltype(element), elements()>
        <<<WarpRows::blocks(rows), WarpRows::block_threads, 0, static_cast<Stream>(stream)>>>(p, rows);
  });
  return launch_error();
}

}  // namespace gdn::gpu
