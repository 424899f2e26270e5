// The gates of one token and value head (docs/contract.md, "The exact order"), for the kernels that compute them.
#pragma once

#include "cuda/device.h"

#include "core/exact_math.h"

namespace gdn::gpu {

// (15), rate = exp(A_log)
__device__ __forceinline__ float log_decay(float a, float rate, float dt_bias) {
  const float step = exact::softplus(a + dt_bias);
  return step == 0.0f ? 0.0f : -(rate * step);
}

// (16)
__device__ __forceinline__ float write_strength(float b, bool allow_neg_eigval) {
  const float beta = exact::sigmoid(b);
  return allow_neg_eigval ? 2.0f * beta : beta;
}

}  // namespace gdn::gpu
