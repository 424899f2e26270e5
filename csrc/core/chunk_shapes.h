// What the registry, the allocation of the work buffer and the kernels of chunk_fp32 have to agree on.
#pragma once

#include <cstdint>

#include "core/params.h"

namespace gdn::chunk {

constexpr int kTokens = 32;   // of a chunk
constexpr int kGateRows = 3;  // of a chunk and value head: e^gamma_t, e^(gamma_last - gamma_t), beta_t
constexpr int kCoefficients = kTokens * kTokens;

// Value columns that a lane of the scan has of each of its block's value heads; four lanes side by side.
constexpr int lane_columns(int heads) { return heads == 4 ? 2 : 4; }
constexpr int kLanesAcross = 4;
constexpr int block_columns(int heads) { return kLanesAcross * lane_columns(heads); }

// Value heads of a key head in a block of the scan: as many as possible, 0 where none fits.
constexpr int block_heads(int64_t key_dim, int64_t group) {
  const int most = key_dim > 128 ? 1 : 4;
  for (int heads = most; heads > 0; --heads) {
    if (group % heads == 0) return heads;
  }
  return 0;
}

// Shared memory of a block of the scan: two buffers of keys, one of queries, the state, corrections and their decayed
// form, the coefficients and gates of its heads.
constexpr int64_t scan_shared_bytes(int64_t key_dim, int heads) {
  const int64_t columns = kLanesAcross * lane_columns(heads) * heads;
  const int64_t state = key_dim / 4 * (4 * columns + 4), rows = 2 * kTokens * (columns + 4);
  const int64_t of_heads = heads * (kCoefficients + kGateRows * kTokens);
  return 4 * (3 * kTokens * key_dim + state + rows + of_heads);
}

// The work buffer's floats a chunk: normalised keys and scaled queries of each key head, coefficients and gates of each
// value head.
struct Layout {
  int64_t rows;          // of a key head
  int64_t coefficients;  // where the part of the value heads' coefficients begins
  int64_t gates;         // and that of their gates
  int64_t floats;        // in all
};
constexpr Layout layout(const HeadShape& heads) {
  const int64_t rows = 2 * kTokens * heads.key_dim;
  const int64_t coefficients = heads.key_heads * rows, gates = coefficients + heads.value_heads * kCoefficients;
  return {rows, coefficients, gates, gates + heads.value_heads * kGateRows * kTokens};
}

// Chunks of all sequences together, at most.
constexpr int64_t most_chunks(const SequenceShape& shape) {
  return shape.cu_seqlens.data != nullptr ? shape.tokens / kTokens + shape.sequences
                                          : shape.sequences * ((shape.tokens + kTokens - 1) / kTokens);
}

// Chunks that the work buffer has room for: all, or as many as fit into kWindowBytes.
constexpr int64_t kWindowBytes = int64_t{64} << 20;
constexpr int64_t window_chunks(const HeadShape& heads, const SequenceShape& shape) {
  const int64_t fit = kWindowBytes / (4 * layout(heads).floats), all = most_chunks(shape);
  return all < fit ? all : fit > 1 ? fit : 1;
}

}  // namespace gdn::chunk
