// The gated norm of a head's outputs in shared memory (docs/math.md, norms), the bits of gated_rms_norm: the step's
// epilogue in the fused layers. A block has whole rows of V elements. The sum of squares of a row is a warp's: lane l
// has its V/32 consecutive elements. Then each thread has pairs of neighbouring elements; their gates and weights
// are sent for before the tokens are computed. Sync contract: the outputs are behind a barrier; one more between
// the sums and the pairs.
#pragma once

#include "cuda/output_gate.cuh"

namespace gdn::gpu {

struct OutputNorm {
  View<4> z;       // [N, T, HV, V]
  View<1> weight;  // [V]
  OutView<4> y;    // [N, T, HV, V], contiguous
  float eps, mean_of;
  Activation activation;
  int log2_dim;  // of V
  bool packed;   // every pair of z is aligned as one access needs it
};

inline OutputNorm output_norm(const NormParams& p) {
  int log2_dim = 0;
  while (int64_t{1} << log2_dim < p.n) ++log2_dim;
  const int64_t bytes = p.z.dtype == DType::f32 ? 4 : 2;
  const int64_t together = static_cast<int64_t>(reinterpret_cast<uintptr_t>(p.z.data)) |
                           (p.z.stride[0] | p.z.stride[1] | p.z.stride[2]) * bytes;
  return {p.z,
          p.weight,
          p.y,
          p.eps,
          1.0f / static_cast<float>(p.n),  // a power of two
          p.activation,
          log2_dim,
          together % (2 * bytes) == 0};
}

class OutputNormRows {
 public:
  __device__ OutputNormRows(const OutputNorm& p, int n, int head)
      : p_(p), n_(n), head_(head), threads_(static_cast<int>(blockDim.x)) {}

  // Sends for what the norm of `count` rows reads of memory, into the cache: registers belong to the state.
  __device__ __forceinline__ void prefetch_rows(int count) {
    const int pair = static_cast<int>(threadIdx.x);
    prefetch(p_.weight.data, p_.weight.dtype, element(pair) * p_.weight.stride[0]);
    for (int i = pair; i < pairs(count); i += threads_) prefetch(p_.z.data, p_.z.dtype, gate_at(i));
  }

  // values: [count][V], rounded as o's dtype keeps them; factors: [count].
  __device__ __forceinline__ void run(const float* values, float* factors, int count) {
    const int warp = uniform(static_cast<int>(threadIdx.x) / kWarp), lane = static_cast<int>(threadIdx.x) % kWarp;
    const int lane_elements = (1 << p_.log2_dim) / kWarp;
#pragma unroll 1
    for (int t = warp; t < count; t += threads_ / kWarp) {
      const float* x = values + (t << p_.log2_dim) + lane * lane_elements;
      float sum = 0.0f;
      for (int i = 0; i < lane_elements; ++i) sum = fmaf(x[i], x[i], sum);
      const float factor = reciprocal_root(warp_sum(sum) * p_.mean_of + p_.eps);
      if (lane == 0) factors[t] = factor;
    }
    sync_lds();
    float weight[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) weight[i] = load(p_.weight, (element(threadIdx.x) + i) * p_.weight.stride[0]);
#pragma unroll 1
    for (int pair = static_cast<int>(threadIdx.x); pair < pairs(count); pair += threads_) {
      const int t = pair >> (p_.log2_dim - 1), c = element(pair);
      RawPart<2> raw;
      raw.load(p_.z, gate_at(pair), p_.packed);
      float z[2], x[2];
      raw.widen(p_.z.dtype, z);
#pragma unroll
      for (int i = 0; i < 2; ++i) x[i] = values[(t << p_.log2_dim) + c + i] * factors[t] * weight[i];
      with_element_of(p_.y.dtype, [&](auto element) {
        using Element = decltype(element);
        auto* y = static_cast<Element*>(p_.y.data) + offset(p_.y.stride, t) + c;
        *reinterpret_cast<Pack<Element, 2>*>(y) = gated<Element, 2>(x, z, p_.activation);
      });
    }
  }

 private:
  __device__ int pairs(int count) const { return count << (p_.log2_dim - 1); }
  // The first element of a pair in its row: the same for all pairs of a thread, since a block has whole rows' threads.
  __device__ int element(int pair) const { return 2 * pair & ((1 << p_.log2_dim) - 1); }
  __device__ int64_t offset(const int64_t (&stride)[4], int t) const {
    return n_ * stride[0] + t * stride[1] + head_ * stride[2];
  }
  __device__ int64_t gate_at(int pair) const { return offset(p_.z.stride, pair >> (p_.log2_dim - 1)) + element(pair); }

  const OutputNorm& p_;
  int n_, head_, threads_;
};

}  // namespace gdn::gpu
