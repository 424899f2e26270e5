// The last step of the sums over K between the two warps that share a tile's columns (state_tile.cuh), through shared
// memory and one block barrier.
#pragma once

#include "cuda/state_tile.cuh"

namespace gdn::gpu {

// Of one column: u of a token, and the output of the token before it, which reads the same state.
struct Sums {
  float u, o;
};

template <int most_warps>
using PairShared = Sums[2][most_warps][kWarp];

// The whole sums from the two halves. Calls alternate between two buffers: what is read after one barrier is not
// written again before the next one. Without pairs the halves are the whole.
template <class Tr, int most_warps>
__device__ __forceinline__ Sums pair_sum(PairShared<most_warps>& shared, int& turn, Sums half) {
  if constexpr (!Tr::paired) {
    return half;
  } else {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    turn ^= 1;
    shared[turn][warp][lane] = half;
    sync_lds();
    const Sums other = shared[turn][warp ^ 1][lane];
    return {half.u + other.u, half.o + other.o};
  }
}

}  // namespace gdn::gpu
