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
  int64_t parts = 1;                     // that the tiles of a key head are cut into
  float* scratch = nullptr;              // this worker's, laid out by RecurrenceLayout
};

struct Kernels {
  int64_t columns;  // value columns of a work unit; divides 64

  // Work units: N x H x parts.
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

// A worker's scratch memory for `tiles` tiles of a key head, in floats from its start.
struct RecurrenceLayout {
  int64_t stage_tokens;     // a tree is staged whole
  int64_t keys, queries;    // [stage_tokens + 1][K] with the next stage's first key, [stage_tokens][K]
  int64_t tiles, u;         // [tiles][K][columns], [tiles][columns]
  int64_t values, outputs;  // [tiles][stage_tokens][columns]
  int64_t kept;             // a tree's states at its branch points: [T + 1][K][columns], the root's first
  int64_t floats;

  RecurrenceLayout(const RecurrenceParams& p, int64_t columns, int64_t tile_count) {
    const int64_t K = p.heads.key_dim, T = p.shape.tokens;
    stage_tokens = p.parents ? T : T < kStageTokens ? T : kStageTokens;
    keys = 0;
    queries = keys + (stage_tokens + 1) * K;
    tiles = queries + stage_tokens * K;
    u = tiles + tile_count * K * columns;
    values = u + tile_count * columns;
    outputs = values + tile_count * stage_tokens * columns;
    kept = outputs + tile_count * stage_tokens * columns;
    floats = kept + (p.parents ? (T + 1) * K * columns : 0);
  }
};

// Transposed weights and bias, the rows before the stage and the stage itself, a pointer a tap.
constexpr int64_t conv_scratch_floats(int64_t width, int64_t stage_tokens) {
  return (width + 1 + (width - 1) + stage_tokens) * kConvChannels + width * int64_t{sizeof(void*) / sizeof(float)};
}

}  // namespace gdn::cpu
