// Which rows and which slot belong to a sequence: what wrong values in index tensors mean on the device
// (docs/contract.md, "Bad input").
#pragma once

#include "cuda/device.h"

namespace gdn::gpu {

template <int rank>
__device__ __forceinline__ int64_t index_at(const IndexView<rank>& view, int64_t offset) {
  return view.is_int64 ? static_cast<const int64_t*>(view.data)[offset]
                       : static_cast<const int32_t*>(view.data)[offset];
}

// The token that t >= 0 follows in a tree; -1: what came before the first one.
template <class Index>
__device__ __forceinline__ Index parent_of(const IndexView<2>& parents, int64_t n, Index t) {
  const int64_t parent = index_at(parents, n * parents.stride[0] + t * parents.stride[1]);
  return parent >= 0 && parent < t ? static_cast<Index>(parent) : -1;
}

// The pool slot of sequence n, or -1 to skip it.
__device__ __forceinline__ int64_t slot_of(const IndexView<1>& state_indices, int64_t n, int64_t slots) {
  const int64_t slot = state_indices.data != nullptr ? index_at(state_indices, n * state_indices.stride[0]) : n;
  return slot >= 0 && slot < slots ? slot : -1;
}

__device__ __forceinline__ bool starts_from_state(const BoolView& has_initial_state, int64_t n) {
  return has_initial_state.data == nullptr || has_initial_state.data[n * has_initial_state.stride];
}

// A sequence's rows [first, first + count) of a batch row.
struct SequenceRows {
  int64_t batch, first, count;
};

// An entry of cu_seqlens, clamped into [0, T].
__device__ __forceinline__ int64_t bound_at(const SequenceShape& shape, int64_t i) {
  const int64_t raw = index_at(shape.cu_seqlens, i * shape.cu_seqlens.stride[0]);
  return raw < 0 ? 0 : raw > shape.tokens ? shape.tokens : raw;
}

// With cu_seqlens every bound is clamped into [the one before, T]: the largest clamped value so far. Called by whole
// warps; each scans the bounds on its own.
__device__ __forceinline__ SequenceRows rows_of(const SequenceShape& shape, int64_t n) {
  if (shape.cu_seqlens.data == nullptr) return {n, 0, shape.tokens};
  int64_t first = 0, end = 0;
  for (int64_t i = threadIdx.x % kWarp; i <= n + 1; i += kWarp) {
    const int64_t bound = bound_at(shape, i);
    if (i <= n && bound > first) first = bound;
    if (bound > end) end = bound;
  }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const int64_t other_first = shuffle_xor(first, distance), other_end = shuffle_xor(end, distance);
    first = other_first > first ? other_first : first;
    end = other_end > end ? other_end : end;
  }
  return {0, first, end - first};
}

}  // namespace gdn::gpu
