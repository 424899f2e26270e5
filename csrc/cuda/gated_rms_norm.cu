// gated_rms_norm: y = o / sqrt(mean o^2 + eps) * weight * SiLU(z), or sigmoid(z) (docs/math.md, norms).
//
//   tensor  shape             strides             dtype
//   o       [n0, n1, n2, V]   last 1, others any  float32, bfloat16 or float16
//   z       [n0, n1, n2, V]   last 1, others any  float32, bfloat16 or float16
//   weight  [V]               1                   float32, bfloat16 or float16
//   y       [n0, n1, n2, V]   contiguous          float32, bfloat16 or float16
//
// Grid: a warp a row, each warp striding by the whole grid. Shared memory: none. Barriers: none, shuffles within a
// warp. Precision: float32 in the exact order: lane l holds the V/32 consecutive elements from l V/32. One pass: only y
// is stored.
#include "cuda/device.h"

#include "core/exact_math.h"
#include "cuda/launch.h"
#include "cuda/warp_rows.cuh"

namespace gdn::gpu {
namespace {

template <class Element, int elements>
__global__ void __launch_bounds__(WarpRows::block_threads) gated_rms_norm_kernel(NormParams p, int64_t rows) {
  float weight[elements];
#pragma unroll
  for (int i = 0; i < elements; ++i) weight[i] = load(p.weight, (WarpRows::lane() * elements + i) * p.weight.stride[0]);
  for (int64_t row = WarpRows::first_row(); row < rows; row += WarpRows::row_stride()) {
    float x[elements], z[elements];
    WarpRows::load<Element>(p.o, p.size, row, x);
    WarpRows::load_any(p.z, p.size, row, z);
    const float mean = __fdiv_rn(WarpRows::sum_of_squares(x), static_cast<float>(kWarp * elements));
    const float factor = reciprocal_root(mean + p.eps);
#pragma unroll
    for (int i = 0; i < elements; ++i) {
      const float gate = p.activation == Activation::silu ? exact::silu(z[i]) : exact::sigmoid(z[i]);
      x[i] = x[i] * factor * weight[i] * gate;
    }
    WarpRows::store_any(p.y, p.size, row, x);
  }
}

}  // namespace

const char* gated_rms_norm(const NormParams& params, void* stream) {
  const int64_t rows = params.size[0] * params.size[1] * params.size[2];
  if (rows == 0) return nullptr;
  NormParams p = params;
  join_leading_dimensions(p.size, p.o, p.z, p.y);
  with_row_type(params.o.dtype, params.n, [&](auto element, auto elements) {
    gated_rms_norm_kernel<decltype(element), elements()>
        <<<WarpRows::blocks(rows), WarpRows::block_threads, 0, static_cast<Stream>(stream)>>>(p, rows);
  });
  return launch_error();
}

}  // namespace gdn::gpu
