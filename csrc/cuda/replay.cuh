// Accepted tokens of an earlier verify, replayed on a tile from that verify's logs: no dot products, the bits of the
// steps themselves (docs/math.md (4)).
#pragma once

#include "cuda/device.h"

#include "core/exact_math.h"
#include "cuda/indices.cuh"
#include "cuda/state_tile.cuh"

namespace gdn::gpu {

// Tokens to replay of sequence n, clamped to [0, T].
__device__ __forceinline__ int accepted_count(const AcceptedShape& window, int64_t n) {
  const int64_t accepted = index_at(window.accepted, n * window.accepted.stride[0]);
  return static_cast<int>(accepted < 0 ? 0 : accepted > window.tokens ? window.tokens : accepted);
}

// The window's row of the i-th accepted token; negative: the path ends before it.
__device__ __forceinline__ int accepted_row(const AcceptedShape& window, int64_t n, int64_t i) {
  if (window.path.data == nullptr) return static_cast<int>(i);
  const int64_t row = index_at(window.path, n * window.path.stride[0] + i * window.path.stride[1]);
  return row >= 0 && row < window.tokens ? static_cast<int>(row) : -1;
}

// Where a verify's logs lie: all layers of a model have the same strides.
struct LogStrides {
  int64_t g[3], k[4], d[4];
  bool packed;  // every row of k is on a 16-byte boundary
};

inline LogStrides log_strides(const ReplayViews& logs) {
  LogStrides strides = {};
  for (int i = 0; i < 3; ++i) strides.g[i] = logs.g.stride[i];
  for (int i = 0; i < 4; ++i) {
    strides.k[i] = logs.k.stride[i];
    strides.d[i] = logs.d.stride[i];
  }
  strides.packed = reinterpret_cast<uintptr_t>(logs.k.data) % 16 == 0 &&
                   (logs.k.stride[0] | logs.k.stride[1] | logs.k.stride[2]) % 4 == 0;
  return strides;
}

// One layer's logs.
struct LogData {
  const float *g, *k, *d;
};

inline LogData log_data(const ReplayViews& logs) {
  return {static_cast<const float*>(logs.g.data), static_cast<const float*>(logs.k.data),
          static_cast<const float*>(logs.d.data)};
}

// The value head whose state a warp holds, and the first column of its tile.
struct TilePlace {
  int n, head, key_head, column0;
};

template <class Tr>
__device__ __forceinline__ void replay_accepted(Tile<Tr>& tile, const AcceptedShape& window, const LogStrides& stride,
                                                const LogData& logs, const TilePlace& at, int count) {
  const int64_t n = at.n;
  const float* g = logs.g + n * stride.g[0] + at.head * stride.g[2];
  const float* k = logs.k + n * stride.k[0] + at.key_head * stride.k[2];
  const float* d = logs.d + n * stride.d[0] + at.head * stride.d[2] + at.column0 + tile.column();
  struct Token {
    float g;
    typename Tile<Tr>::Row k;
    float delta[Tr::columns];
  };
  const auto load = [&](int t) {
    Token token;
    token.g = g[t * stride.g[1]];
    token.k = tile.row(k + t * stride.k[1], stride.packed);
#pragma unroll
    for (int c = 0; c < Tr::columns; ++c) token.delta[c] = d[t * stride.d[1] + c];
    return token;
  };
  int row = accepted_row(window, at.n, 0);
  if (count == 0 || row < 0) return;
  if constexpr (Tr::K == 256) {  // two tokens' entries are too many registers
#pragma unroll 1
    for (int i = 0; i < count && row >= 0; ++i) {
      const Token token = load(row);
      row = i + 1 < count ? accepted_row(window, at.n, i + 1) : -1;
      tile.update(exact::exp(token.g), token.k, token.delta);
    }
    return;
  }
  Token token = load(row);
#pragma unroll 1
  for (int i = 0; i < count && row >= 0; ++i) {
    const Token now = token;
    if (i + 1 < count) {
      row = accepted_row(window, at.n, i + 1);
      if (row >= 0) token = load(row);  // arrives while this one is replayed
    }
    tile.update(exact::exp(now.g), now.k, now.delta);
  }
}

}  // namespace gdn::gpu
