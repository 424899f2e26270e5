// The last step of a sum over K between the two warps that share a tile's columns (state_tile.cuh), through shared
// memory. One block barrier a token serves both of a token's sums: u at once, and the output of the token before, which
// nothing waits for.
#pragma once

#include "cuda/state_tile.cuh"

namespace gdn::gpu {

template <class Tr, int most_warps>
struct PairShared {
  float u[2][most_warps][kWarp], o[2][most_warps][kWarp];
};

// Tokens alternate between the two buffers: what is read after one barrier is not written again before the next one.
template <class Tr, int most_warps>
class PairSum {
 public:
  using Shared = PairShared<Tr, most_warps>;

  __device__ explicit PairSum(Shared& shared)
      : shared_(shared), warp_(threadIdx.x / kWarp), lane_(threadIdx.x % kWarp) {}

  // The whole sum for the column that the lane owns, from this warp's part. A barrier for a pair.
  __device__ __forceinline__ float u(float part) {
    if constexpr (!Tr::paired) {
      return part;
    } else {
      turn_ ^= 1;
      shared_.u[turn_][warp_][lane_] = part;
      sync_lds();
      return part + shared_.u[turn_][warp_ ^ 1][lane_];
    }
  }
  // Leaves this token's part of the output; o() has its sum after the next barrier.
  __device__ __forceinline__ void leave_output(float part) {
    part_ = part;
    if constexpr (Tr::paired) shared_.o[turn_][warp_][lane_] = part;
  }
  // The output left before the last u() (or, where u() is called once more, before barrier_for_output()).
  __device__ __forceinline__ float output_before() const {
    if constexpr (!Tr::paired) {
      return part_;
    } else {
      return part_ + shared_.o[turn_ ^ 1][warp_ ^ 1][lane_];
    }
  }
  __device__ __forceinline__ void finish() {
    if constexpr (Tr::paired) {
      turn_ ^= 1;
      sync_lds();
    }
  }

 private:
  Shared& shared_;
  int warp_, lane_, turn_ = 0;
  float part_ = 0.0f;
};

}  // namespace gdn::gpu
