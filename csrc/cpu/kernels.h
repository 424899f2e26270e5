// What one instruction set's translation unit (isa_*.cpp) offers to the launchers in dispatch.cpp: for each kernel a
// function that does the work units [begin, end). They allocate nothing and call no template of the standard library:
// an inline function that two instruction sets both instantiate would be one symbol, and the linker would keep either.
#pragma once

#include "core/params.h"

namespace gdn::cpu {

// The sequences' rows, already clamped: sequence n has rows [first(n), first(n) + count(n)) of batch row batch(n).
struct Rows {
  const int64_t* bounds = nullptr;  // [N+1] with cu_seqlens, else nullptr
  int64_t tokens = 0;

  int64_t first(int64_t n) const { return bounds ? bounds[n] : 0; }
  int64_t count(int64_t n) const { return bounds ? bounds[n + 1] - bounds[n] : tokens; }
  int64_t batch(int64_t n) const { return bounds ? 0 : n; }
};

struct RecurrenceJob {
  const RecurrenceParams* params = nullptr;
  Rows rows;
  const CommitParams* commit = nullptr;  // commit_verify: replayed and stored before the tokens
  int64_t parts = 1;                     // that the tiles of a sequence are cut into
  float* scratch = nullptr;              // this worker's, laid out by RecurrenceLayout
};

struct Kernels {
  int64_t columns;  // value columns of a tile; divides 64

  // Work units: N x parts.
  void (*recurrence)(const RecurrenceJob& job, int64_t begin, int64_t end);
  // Work units: layers x N x HV x V/columns; scratch: one tile.
  void (*commit)(const CommitParams& params, float* scratch, int64_t begin, int64_t end);
  // Work units: N x ceil(C / kConvChannels); scratch: conv_scratch_floats().
  void (*conv)(const ConvParams& params, const Rows& rows, float* scratch, int64_t begin, int64_t end);
  // Work units: layers x N x ceil(C / kConvChannels).
  void (*conv_commit)(const ConvCommitParams& params, int64_t begin, int64_t end);
  // Work units: rows (all leading dimensions flattened).
  void (*l2norm)(const L2NormParams& params, int64_t begin, int64_t end);
  void (*gates)(const GatesParams& params, int64_t begin, int64_t end);
  void (*norm)(const NormParams& params, int64_t begin, int64_t end);
};

extern const Kernels kernels_baseline;
#if defined(__x86_64__)
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
#endif

constexpr int64_t kStageTokens = 64;   // tokens of a chain staged at a time
constexpr int64_t kConvChannels = 64;  // channels of a convolution unit
constexpr int64_t kConvStageTokens = 32;

// Most tiles of a recurrence unit, and most floats of their states: from stage to stage these stay in the second-level
// cache.
constexpr int64_t kMaxUnitTiles = 64, kMaxUnitStates = 1 << 18;
constexpr int64_t unit_tiles(int64_t K, int64_t columns) {
  const int64_t tiles = kMaxUnitStates / (K * columns);
  return tiles < kMaxUnitTiles ? tiles : kMaxUnitTiles;
}

// A worker's scratch memory for `tile_count` tiles of a sequence, in floats from its start.
struct RecurrenceLayout {
  int64_t stage_tokens;   // a tree is staged whole
  int64_t keys, queries;  // [key heads][stage_tokens + 1][K], the keys with the next stage's first one
  int64_t tiles, u;       // [tiles][K][columns], [tiles][columns]
  int64_t rows;           // [tiles][stage_tokens][columns]: a token's values until its outputs replace them
  int64_t gates;          // [tiles][3][stage_tokens]: log decay, decay, beta
  int64_t kept;           // a tree's states at its branch points: [T + 1][K][columns], the root's first
  int64_t floats;

  RecurrenceLayout(const RecurrenceParams& p, int64_t columns, int64_t tile_count) {
    const int64_t K = p.heads.key_dim, T = p.shape.tokens;
    stage_tokens = p.parents ? T : T < kStageTokens ? T : kStageTokens;
    // A range that begins within a key head's tiles meets one key head more.
    const int64_t tiles_of_key_head = p.heads.value_heads / p.heads.key_heads * (p.heads.value_dim / columns);
    const int64_t met = tile_count / tiles_of_key_head + 2;
    const int64_t key_heads = met < p.heads.key_heads ? met : p.heads.key_heads;
    keys = 0;
    queries = keys + key_heads * (stage_tokens + 1) * K;
    tiles = queries + key_heads * (stage_tokens + 1) * K;
    u = tiles + (T > stage_tokens ? tile_count : 1) * K * columns;
    rows = u + tile_count * columns;
    gates = rows + tile_count * stage_tokens * columns;
    kept = gates + tile_count * 3 * stage_tokens;
    kept += -kept & 15;  // on a cache line boundary, like the rest
    floats = kept + (p.parents ? (T + 1) * K * columns : 0);
  }
};

// Transposed weights and bias, the rows before the stage and the stage itself, a pointer a tap.
constexpr int64_t conv_scratch_floats(int64_t width, int64_t stage_tokens) {
  return (width + 1 + (width - 1) + stage_tokens) * kConvChannels + width * int64_t{sizeof(void*) / sizeof(float)};
}

}  // namespace gdn::cpu
