// Products of chunk_fp32 whose inner sum is spread over eight lanes: a lane has eight rows by `columns` columns of the
// result over every eighth term (or quad of terms), and the eight partial results end, added, one row in each lane.
// That makes tiles large enough for shared memory to keep up with the arithmetic (docs/kernels/chunk_fp32.md).
#pragma once

#include "cuda/device.h"

namespace gdn::gpu {

constexpr int kSplit = 8;     // lanes of an inner sum
constexpr int kTileRows = 8;  // of a lane's tile, and after the sum one in each of the eight lanes

// lane = across * kSplit + split
__device__ __forceinline__ int split_lane() { return static_cast<int>(threadIdx.x) % kSplit; }
__device__ __forceinline__ int across_lane() { return static_cast<int>(threadIdx.x) % kWarp / kSplit; }

template <int rows, int columns>
__device__ __forceinline__ void clear(float (&tile)[rows][columns]) {
#pragma unroll
  for (int r = 0; r < rows; ++r) {
#pragma unroll
    for (int c = 0; c < columns; ++c) tile[r][c] = 0.0f;
  }
}

// Neighbouring words of shared memory, on a 16-byte boundary.
template <int words>
__device__ __forceinline__ void load_words(const float* s_from, float (&x)[words]) {
  static_assert(words % 4 == 0, "whole vectors");
#pragma unroll
  for (int w = 0; w < words; w += 4) {
    const float4 four = *reinterpret_cast<const float4*>(s_from + w);
    x[w] = four.x, x[w + 1] = four.y, x[w + 2] = four.z, x[w + 3] = four.w;
  }
}
template <int words>
__device__ __forceinline__ void store_words(float* s_to, const float (&x)[words]) {
  static_assert(words % 4 == 0, "whole vectors");
#pragma unroll
  for (int w = 0; w < words; w += 4) {
    *reinterpret_cast<float4*>(s_to + w) = make_float4(x[w], x[w + 1], x[w + 2], x[w + 3]);
  }
}

// Of two lanes `distance` apart each keeps the first half of its rows and gives the other: row r of a tile is row
// r ^ split of the result, so that no select is needed. What is left in the end, row 0, is row `split`. (A template: as
// a loop it would keep the tile in local memory for some `columns`.)
template <int distance, int rows, int columns>
__device__ __forceinline__ void add_halves(float (&tile)[rows][columns]) {
#pragma unroll
  for (int r = 0; r < distance; ++r) {
#pragma unroll
    for (int c = 0; c < columns; ++c) tile[r][c] += shuffle_xor(tile[r + distance][c], distance);
  }
  if constexpr (distance > 1) add_halves<distance / 2>(tile);
}

}  // namespace gdn::gpu
