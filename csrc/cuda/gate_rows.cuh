// The gates of a fused layer's tokens, for the kernels that compute them beside its convolution.
#pragma once

#include "cuda/gate_math.cuh"

namespace gdn::gpu {

struct GateRows {
  const void *a, *b;
  int64_t a_stride[3], b_stride[3];
  const void *A_log, *dt_bias;
  float *g, *beta;
  DType a_type, b_type, A_log_type, dt_bias_type;
  uint32_t value_heads;
  bool allow_neg_eigval;

  __device__ __forceinline__ void run(uint32_t n, uint32_t t, uint32_t tokens, uint32_t head) const {
    if (head >= value_heads) return;
    const uint32_t A_log_raw = load_raw(A_log, A_log_type, head), dt_bias_raw = load_raw(dt_bias, dt_bias_type, head);
    const uint32_t a_raw = load_raw(a, a_type, n * a_stride[0] + t * a_stride[1] + head * a_stride[2]);
    const uint32_t b_raw = load_raw(b, b_type, n * b_stride[0] + t * b_stride[1] + head * b_stride[2]);
    const uint64_t out = (static_cast<uint64_t>(n) * tokens + t) * value_heads + head;
    const float rate = exact::exp(widen(A_log_raw, A_log_type));
    g[out] = log_decay(widen(a_raw, a_type), rate, widen(dt_bias_raw, dt_bias_type));  // (15)
    beta[out] = write_strength(widen(b_raw, b_type), allow_neg_eigval);                // (16)
  }
};

// gates.size is [1, N, T].
inline GateRows gate_rows(const GatesParams& gates) {
  return {gates.a.data,
          gates.b.data,
          {gates.a.stride[1], gates.a.stride[2], gates.a.stride[3]},
          {gates.b.stride[1], gates.b.stride[2], gates.b.stride[3]},
          gates.A_log.data,
          gates.dt_bias.data,
          static_cast<float*>(gates.g.data),
          static_cast<float*>(gates.beta.data),
          gates.a.dtype,
          gates.b.dtype,
          gates.A_log.dtype,
          gates.dt_bias.dtype,
          static_cast<uint32_t>(gates.value_heads),
          gates.allow_neg_eigval};
}

}  // namespace gdn::gpu
