// The gated norm of a head's outputs in shared memory (docs/math.md, norms), the bits of gated_rms_norm: the step's
// epilogue in the fused layers. A block has whole rows of V elements. A thread has pairs of neighbouring elements; a
// warp's pairs are of one row, whose sum of squares each of its warps adds up itself: lane l has the V/32 consecutive
// elements from l V/32. ahead: the first pair's gate and weights are loaded before the tokens are computed; else they
// are only sent for, into the cache, where registers belong to the state. Sync contract: the outputs are behind a
// barrier.
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

template <bool ahead>
class OutputNormRows {
 public:
  __device__ OutputNormRows(const OutputNorm& p, int n, int head)
      : p_(p), n_(n), head_(head), threads_(static_cast<int>(blockDim.x)) {}

  // Of `count` rows.
  __device__ __forceinline__ void fetch(int count) {
    const int pair = static_cast<int>(threadIdx.x);
    if constexpr (ahead) {
      load_weights();
      if (pair < pairs(count)) gate_.load(p_.z, gate_at(pair), p_.packed);
    } else {
      prefetch(p_.weight.data, p_.weight.dtype, element(pair) * p_.weight.stride[0]);
      for (int i = pair; i < pairs(count); i += threads_) prefetch(p_.z.data, p_.z.dtype, gate_at(i));
    }
  }

  // values: [count][V], rounded as o's dtype keeps them.
  __device__ __forceinline__ void run(const float* values, int count) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, lane_elements = (1 << p_.log2_dim) / kWarp;
    if constexpr (!ahead) load_weights();
#pragma unroll 1
    for (int first = uniform(static_cast<int>(threadIdx.x) / kWarp) * kWarp; first < pairs(count); first += threads_) {
      const int pair = first + lane, t = first >> (p_.log2_dim - 1), c = element(pair);
      if (!ahead || first >= threads_) gate_.load(p_.z, gate_at(pair), p_.packed);
      const float* row = values + (t << p_.log2_dim);
      float sum = 0.0f;
      for (int i = 0; i < lane_elements; ++i) {
        const float x = row[lane * lane_elements + i];
        sum = fmaf(x, x, sum);
      }
      const float factor = reciprocal_root(warp_sum(sum) * p_.mean_of + p_.eps);
      float z[2], x[2];
      gate_.widen(p_.z.dtype, z);
#pragma unroll
      for (int i = 0; i < 2; ++i) x[i] = row[c + i] * factor * widen(weight_[i], p_.weight.dtype);
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
  __device__ __forceinline__ void load_weights() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      weight_[i] =
          load_raw(p_.weight.data, p_.weight.dtype, (element(static_cast<int>(threadIdx.x)) + i) * p_.weight.stride[0]);
    }
  }

  const OutputNorm& p_;
  int n_, head_, threads_;
  uint32_t weight_[2];
  RawPart<2> gate_;
};

}  // namespace gdn::gpu
