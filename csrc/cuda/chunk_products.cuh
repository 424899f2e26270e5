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

// Neighbouring words of shared memory, as vectors of four or of two words that begin on their own boundaries.
template <int words>
__device__ __forceinline__ void load_words(const float* s_from, float* x) {
  static_assert(words % 2 == 0, "whole vectors");
  if constexpr (words % 4 == 0) {
#pragma unroll
    for (int w = 0; w < words; w += 4) {
      const float4 four = *reinterpret_cast<const float4*>(s_from + w);
      x[w] = four.x, x[w + 1] = four.y, x[w + 2] = four.z, x[w + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int w = 0; w < words; w += 2) {
      const float2 two = *reinterpret_cast<const float2*>(s_from + w);
      x[w] = two.x, x[w + 1] = two.y;
    }
  }
}
template <int words>
__device__ __forceinline__ void load_words(const float* s_from, float (&x)[words]) {
  load_words<words>(s_from, &x[0]);
}
template <int words>
__device__ __forceinline__ void store_words(float* s_to, const float (&x)[words]) {
  static_assert(words % 2 == 0, "whole vectors");
  if constexpr (words % 4 == 0) {
#pragma unroll
    for (int w = 0; w < words; w += 4) {
      *reinterpret_cast<float4*>(s_to + w) = make_float4(x[w], x[w + 1], x[w + 2], x[w + 3]);
    }
  } else {
#pragma unroll
    for (int w = 0; w < words; w += 2) *reinterpret_cast<float2*>(s_to + w) = make_float2(x[w], x[w + 1]);
  }
}

// Adds the products of `terms` columns a and rows b, which load(m, a, b) reads from shared memory: the next ones while
// one is multiplied. The order decides the speed: of a register file's two banks, even and odd registers, each gives
// one register a clock, and an fma needs three. Along a row and back along the next one, it shares a factor with the
// fma before, and often both, which then need not be read again.
template <int terms, int rows, int columns, class Load>
__device__ __forceinline__ void add_products(float (&tile)[rows][columns], Load load) {
  static_assert(terms % 2 == 0, "two buffers");
  float a[2][rows], b[2][columns];
  load(0, a[0], b[0]);
#pragma unroll 2
  for (int m = 0; m < terms; m += 2) {
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const int next = m + x + 1;
      load(next < terms ? next : 0, a[1 - x], b[1 - x]);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
#pragma unroll
        for (int i = 0; i < columns; ++i) {
          const int c = r % 2 == 0 ? i : columns - 1 - i;
          tile[r][c] = fmaf(a[x][r], b[x][c], tile[r][c]);
        }
      }
    }
  }
}

// Of two lanes `distance` apart each keeps the first half of its rows and gives the other: row first + r of a tile is
// row r ^ split of the result, so that no select is needed. What is left in the end, row `first`, is row `split`; and
// where column c of a tile is column c ^ (split & turned), it still is. (A template: as a loop it would keep the tile
// in local memory for some `columns`.)
template <int distance, int first = 0, int turned = 0, int rows, int columns>
__device__ __forceinline__ void add_halves(float (&tile)[rows][columns]) {
#pragma unroll
  for (int r = first; r < first + distance; ++r) {
#pragma unroll
    for (int c = 0; c < columns; ++c) tile[r][c] += shuffle_xor(tile[r + distance][c ^ (distance & turned)], distance);
  }
  if constexpr (distance > 1) add_halves<distance / 2, first, turned>(tile);
}

}  // namespace gdn::gpu
