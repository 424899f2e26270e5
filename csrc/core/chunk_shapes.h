// What the registry, the allocation of the work buffer and the kernels of chunk_fp32 have to agree on.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/params.h"

namespace gdn::chunk {

constexpr int kTokens = 32;   // of a chunk
constexpr int kGateRows = 3;  // of a chunk and value head: e^gamma_t, e^(gamma_last - gamma_t), beta_t
constexpr int kCoefficients = kTokens * kTokens;

// Value heads of a key head in a block of the scan: as many as possible, 0 where none fits.
constexpr int block_heads(int64_t key_dim, int64_t group) {
  const int most = key_dim > 128 ? 1 : 3;
  for (int heads = most; heads > 0; --heads) {
    if (group % heads == 0) return heads;
  }
  return 0;
}
// Value columns of each of them.
constexpr int kBlockColumns = 16;

// A block is one chain or two, which have half of it each: a head, or of three heads half of the columns. Four lanes of
// a warp share a chain's columns.
constexpr int kLanesAcross = 4;
constexpr int chains(int heads) { return heads == 1 ? 1 : 2; }
constexpr int chain_heads(int heads) { return heads == 3 ? 3 : 1; }
constexpr int chain_columns(int heads) { return heads * kBlockColumns / chains(heads); }

// Where a row of a chain's columns begins in shared memory: padded so that eight rows in a row, and eight that are four
// apart, are in different banks. A lane's columns, 4 or 6, are read as vectors of four or of two.
GDN_HD constexpr int64_t row_offset(int64_t row, int columns) {
  return row * columns + 4 * (columns == 16 ? row / 2 + row / 16 : row / 4);
}

// The scan's shared memory: a stage has a chunk's keys as rows and as columns, columns of queries, and the coefficients
// and gates of the block's heads; each chain its state, corrections and their decayed form; and there are four
// barriers.
constexpr int64_t stage_floats(int64_t key_dim, int heads) {
  return 3 * kTokens * key_dim + heads * (kCoefficients + kGateRows * kTokens);
}
constexpr int64_t scan_shared_bytes(int64_t key_dim, int heads, int stages) {
  const int columns = chain_columns(heads);
  const int64_t chain = row_offset(key_dim, columns) + 2 * row_offset(kTokens, columns);
  return 4 * (chains(heads) * chain + stages * stage_floats(key_dim, heads)) + 32;
}

// Where quad a of tokens is in row i of the keys' and queries' columns and of the coefficients, and token t of it:
// lanes whose rows are eight in a row read different banks, and so do they where four of them read quad 7 - a instead.
GDN_HD constexpr int turned_quad(int i, int a) { return a ^ i % 8 ^ (i % 4 & 2) << 1; }
GDN_HD constexpr int turned(int i, int t) { return turned_quad(i, t / 4) * 4 + (t % 4 ^ i % 4); }

// The work buffer's floats a chunk: normalised keys, as rows and as columns, and columns of scaled queries of each key
// head, coefficients and gates of each value head.
struct Layout {
  int64_t rows;          // of a key head
  int64_t coefficients;  // where the part of the value heads' coefficients begins
  int64_t gates;         // and that of their gates
  int64_t floats;        // in all
};
constexpr Layout layout(const HeadShape& heads) {
  const int64_t rows = 3 * kTokens * heads.key_dim;
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
constexpr int64_t fitting_chunks(const HeadShape& heads) { return kWindowBytes / (4 * layout(heads).floats); }
constexpr int64_t window_chunks(const HeadShape& heads, const SequenceShape& shape) {
  const int64_t fit = fitting_chunks(heads), all = most_chunks(shape);
  return all < fit ? all : fit > 1 ? fit : 1;
}

}  // namespace gdn::chunk
