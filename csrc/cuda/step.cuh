// Decode steps and speculative windows in the exact order, a tile of the state in each warp's registers
// (state_tile.cuh): the kernel behind step (state read and written), verify (state read, logs written), commit_verify
// (the last round's accepted tokens replayed and stored first) and, with the output norm as its epilogue, step_norm and
// verify_norm. docs/kernels/step.md. Equations: docs/math.md (1) to (5), the norm.
//
//   tensor   shape                            strides                      dtype
//   q, k     [B, T, H, K]                     last 1, others any           float32, bfloat16 or float16
//   v, o     [B, T, HV, V]                    last 1, others any           the same
//   g        [B, T, HV]                       any                          float32
//   beta     [B, T, HV]                       any                          float32, bfloat16 or float16
//   state    [S, HV, K, V] or [S, HV, V, K]   last 1, others any           float32
//   k_log    [N, T, H, K], d_log [N, T, HV, V], g_log [N, T, HV]           contiguous    float32
//   norm     gated_rms_norm.cu's z, weight and y, instead of o
//
// Grid: x = blocks of columns of a head and groups of `heads` value heads of a key head, y = H, z = sequences. A block
// is up to eight warps with tiles of the same value head; it computes its value heads one after another, so that keys
// and queries are prepared once for all of them. Shared memory: keys and queries of up to eight tokens, normalised (a
// warp a row, lane l its K/32 consecutive elements: the order of docs/contract.md), a head's gates, the pairs' sums,
// and the outputs of the norm. All that the first tokens need is under way before the state's values are, and none of
// it is waited for before they are. Sync contract: one barrier before rows or gates are replaced (nobody reads the ones
// before any more) and one after, where tiles are shared by pairs of warps one a token (pair_sum.cuh), and one before
// the norm reads the outputs; all exchange shared memory alone. Precision: float32; each output is made from its own
// column's state, so that neither the warps and heads of a block nor the other sequences reach its bits.
#pragma once

#include "cuda/device.h"

#include "core/exact_math.h"
#include "cuda/indices.cuh"
#include "cuda/launch.h"
#include "cuda/output_norm.cuh"
#include "cuda/pair_sum.cuh"
#include "cuda/replay.cuh"
#include "cuda/state_tile.cuh"

namespace gdn::gpu {

enum class StepMode : int32_t { step, verify, commit_verify, step_norm, verify_norm, decode_layer, verify_layer };
template <StepMode mode>
constexpr bool has_convolution = mode == StepMode::decode_layer || mode == StepMode::verify_layer;
template <StepMode mode>
constexpr bool has_norm = mode == StepMode::step_norm || mode == StepMode::verify_norm || has_convolution<mode>;
template <StepMode mode>
constexpr bool writes_state = mode == StepMode::step || mode == StepMode::step_norm || mode == StepMode::decode_layer;
template <StepMode mode>
constexpr bool writes_logs = !writes_state<mode>;

template <int key_dim, TileAccess access, bool aligned>
struct StepTraits : TileTraits<key_dim, access, aligned> {
  using Tile = TileTraits<key_dim, access, aligned>;
  static constexpr int most_warps = 8;
  static constexpr int stage_tokens = 8;
  static constexpr int lane_elements = key_dim / kWarp;
  static constexpr int ahead_rows = 2;  // keys and queries of a warp that are under way together
  // Threads of a multiprocessor that the registers leave room for. Older architectures need more of them, and so do a
  // state of single values and a replay. A layer in one launch has a multiprocessor for each block.
  static constexpr int resident_threads(StepMode mode) {
    if (key_dim != 128 || !kManyRegisters || mode == StepMode::decode_layer || mode == StepMode::verify_layer) {
      return 256;
    }
    const bool large = mode == StepMode::commit_verify || (mode == StepMode::step_norm && !kHopper);
    return aligned && !large ? 512 : 384;
  }

  static_assert(most_warps * kTileValues == kMostBlockValues, "the registry counts on as large a block");
  static_assert(stage_tokens <= kWarp, "the gates of a stage are loaded by one warp");
  static_assert(most_warps * kWarp <= resident_threads(StepMode::commit_verify), "the largest block has room");
};

template <class Tr>
struct alignas(16) StepStage {
  float k[Tr::stage_tokens][Tr::K];
  float q[Tr::stage_tokens][Tr::K];
  float alpha[Tr::stage_tokens], beta[Tr::stage_tokens];  // of one head
  PairShared<Tr::most_warps> pair;
};

// Of the norm's outputs.
template <class Tr, StepMode mode>
constexpr int step_shared_bytes =
    has_norm<mode> ? Tr::stage_tokens * (Tr::most_warps / Tr::tile_warps * Tr::tile_columns) * 4 : 0;

struct StepParams {
  RecurrenceParams rec;
  int log2_column_blocks;  // of a head
  int columns;             // of a block
  int heads, group;        // value heads of a block, of a key head
  int first_n;             // of this launch: a grid has at most 65535 sequences
  bool packed_rows;        // every row of q and k starts on a 16-byte boundary
  AcceptedShape window;    // commit_verify: what is replayed first
  LogStrides log_stride;
  LogData logs;
  OutputNorm norm;  // step_norm, verify_norm
};

// What a block works on.
struct StepBlock {
  TilePlace at;  // of the block's first tile, and of the value head that it is at
  int64_t slot;
  int first_j;                  // of the key head's value heads: the block has p.heads of them
  int batch, first_row, count;  // its rows
  int threads;
  bool first_of_head;  // of the head's column blocks: it writes g_log
  bool writes_keys;    // k_log: one block of each key head

  // Of a tensor [B, T, heads, ...].
  template <int rank>
  __device__ int64_t row(const int64_t (&stride)[rank], int t, int head) const {
    return batch * stride[0] + (first_row + t) * stride[1] + head * stride[2];
  }
  // Of a log [N, T, heads, ...].
  template <int rank>
  __device__ int64_t log_row(const int64_t (&stride)[rank], int t, int head) const {
    return at.n * stride[0] + t * stride[1] + head * stride[2];
  }
  __device__ void go_to(const StepParams& p, int j) {
    at.head = p.rec.heads.head_map == HeadMap::grouped ? at.key_head * p.group + j
                                                       : at.key_head + j * static_cast<int>(gridDim.y);
  }
};

// Over a row of K elements, K/32 in each lane; in every lane.
template <int elements>
__device__ __forceinline__ float row_sum_of_squares(const float (&x)[elements]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < elements; ++i) sum = fmaf(x[i], x[i], sum);
  return warp_sum(sum);
}

// The inputs of a stage of tokens on their way into shared memory. Between fetch and store a thread holds raw values.
template <class Tr, StepMode mode>
class StageFeed {
 public:
  __device__ StageFeed(const StepParams& p, const StepBlock& block)
      : p_(p),
        block_(block),
        lane_(threadIdx.x % kWarp),
        warp_(uniform(static_cast<int>(threadIdx.x) / kWarp)),
        warps_(block.threads / kWarp) {}

  // Keys and queries of tokens [first, first + count).
  __device__ __forceinline__ void fetch_rows(int first, int count) {
    first_ = first;
    count_ = count;
    fetch_rows(warp_);
  }
  __device__ __forceinline__ void store_rows(StepStage<Tr>& stage) {
#pragma unroll 1
    for (int row = warp_; row < 2 * count_;) {
      store_rows(row, stage);
      row += Tr::ahead_rows * warps_;
      if (row < 2 * count_) fetch_rows(row);
    }
  }

  // The gates of the block's value head: lane t of the last warp has those of token t.
  __device__ __forceinline__ void fetch_gates(int first, int count) {
    const RecurrenceParams& rec = p_.rec;
    if (!has_gates(count)) return;
    g_ = static_cast<const float*>(rec.g.data)[block_.row(rec.g.stride, first + lane_, block_.at.head)];
    beta_ = load_raw(rec.beta.data, rec.beta.dtype, block_.row(rec.beta.stride, first + lane_, block_.at.head));
  }
  __device__ __forceinline__ void store_gates(StepStage<Tr>& stage, int first, int count) {
    const RecurrenceParams& rec = p_.rec;
    if (!has_gates(count)) return;
    stage.alpha[lane_] = exact::exp(g_);  // (1)
    stage.beta[lane_] = widen(beta_, rec.beta.dtype);
    if (writes_logs<mode> && block_.first_of_head) {
      static_cast<float*>(rec.logs.g.data)[block_.log_row(rec.logs.g.stride, first + lane_, block_.at.head)] = g_;
    }
  }

 private:
  // Row 2 t is the key of token t, row 2 t + 1 its query.
  __device__ __forceinline__ void fetch_rows(int row) {
#pragma unroll
    for (int u = 0; u < Tr::ahead_rows; ++u) {
      const int r = row + u * warps_;
      if (r >= 2 * count_) break;
      const View<4>& view = r % 2 == 0 ? p_.rec.k : p_.rec.q;
      part_[u].load(view, block_.row(view.stride, first_ + r / 2, block_.at.key_head) + lane_ * Tr::lane_elements,
                    p_.packed_rows);
    }
  }
  __device__ __forceinline__ void store_rows(int row, StepStage<Tr>& stage) {
    const RecurrenceParams& rec = p_.rec;
#pragma unroll
    for (int u = 0; u < Tr::ahead_rows; ++u) {
      const int r = row + u * warps_, t = r / 2;
      if (r >= 2 * count_) break;
      float x[Tr::lane_elements];
      part_[u].widen(rec.q.dtype, x);
      if (rec.qk_l2norm) {
        const float factor = reciprocal_root(row_sum_of_squares(x) + rec.l2_eps);
#pragma unroll
        for (int i = 0; i < Tr::lane_elements; ++i) x[i] = x[i] * factor;
      }
      float* to = (r % 2 == 0 ? stage.k[t] : stage.q[t]) + lane_ * Tr::lane_elements;
#pragma unroll
      for (int i = 0; i < Tr::lane_elements; ++i) to[i] = x[i];
      if (writes_logs<mode> && r % 2 == 0 && block_.writes_keys) {
        float* log = static_cast<float*>(rec.logs.k.data) +
                     block_.log_row(rec.logs.k.stride, first_ + t, block_.at.key_head) + lane_ * Tr::lane_elements;
#pragma unroll
        for (int i = 0; i < Tr::lane_elements; ++i) log[i] = x[i];
      }
    }
  }
  __device__ bool has_gates(int count) const { return warp_ == warps_ - 1 && lane_ < count; }

  const StepParams& p_;
  const StepBlock& block_;
  int lane_, warp_, warps_, first_ = 0, count_ = 0;
  RawPart<Tr::lane_elements> part_[Tr::ahead_rows];
  float g_ = 0.0f;
  uint32_t beta_ = 0;
};

// Outputs, and in a verify log rows, as zeros: where the sequence has no slot, and in rows that no sequence covers.
template <class Tr, StepMode mode>
__device__ __forceinline__ void write_zeros(const StepParams& p, const StepBlock& block) {
  const RecurrenceParams& rec = p.rec;
  const bool packed = rec.shape.cu_seqlens.data != nullptr;
  const bool to_end = packed && block.at.n == rec.shape.sequences - 1;
  const int begin = packed && block.at.n == 0 ? 0 : block.first_row;
  const int end = to_end ? static_cast<int>(rec.shape.tokens) : block.first_row + block.count;
#pragma unroll 1
  for (int row = begin; row < end; ++row) {
    if (row == block.first_row && block.slot >= 0) row += block.count;
    if (row >= end) return;
    const int t = row - block.first_row;  // a verify's sequences are batch rows: there it is the log's row too
    for (int c = threadIdx.x; c < p.columns; c += block.threads) {
      if constexpr (!has_norm<mode>) {
        store(rec.o, block.row(rec.o.stride, t, block.at.head) + block.at.column0 + c, 0.0f);
      }
      if constexpr (writes_logs<mode>) {
        static_cast<float*>(
            rec.logs.d.data)[block.log_row(rec.logs.d.stride, t, block.at.head) + block.at.column0 + c] = 0.0f;
      }
    }
    if constexpr (writes_logs<mode>) {
      if (block.first_of_head && threadIdx.x == 0) {
        static_cast<float*>(rec.logs.g.data)[block.log_row(rec.logs.g.stride, t, block.at.head)] = 0.0f;
      }
      for (int i = threadIdx.x; block.writes_keys && i < Tr::K; i += block.threads) {
        static_cast<float*>(rec.logs.k.data)[block.log_row(rec.logs.k.stride, t, block.at.key_head) + i] = 0.0f;
      }
    }
  }
}

template <class Tr, StepMode mode>
__device__ __forceinline__ StepBlock step_block(const StepParams& p) {
  const RecurrenceParams& rec = p.rec;
  StepBlock block;
  block.threads = static_cast<int>(blockDim.x);
  const int column_block = static_cast<int>(blockIdx.x) & ((1 << p.log2_column_blocks) - 1);
  block.first_j = (static_cast<int>(blockIdx.x) >> p.log2_column_blocks) * p.heads;
  block.at.n = p.first_n + static_cast<int>(blockIdx.z);
  block.at.key_head = static_cast<int>(blockIdx.y);
  block.go_to(p, block.first_j);
  block.at.column0 = column_block * p.columns;
  block.first_of_head = column_block == 0;
  block.writes_keys = writes_logs<mode> && blockIdx.x == 0;
  const SequenceRows rows = rows_of(rec.shape, block.at.n);
  block.batch = static_cast<int>(rows.batch);
  block.first_row = static_cast<int>(rows.first);
  block.count = uniform(static_cast<int>(rows.count));
  block.slot = slot_of(rec.state_indices, block.at.n,
                       rec.state_in.slots > rec.state_out.slots ? rec.state_in.slots : rec.state_out.slots);
  return block;
}

// The tokens of one value head.
template <class Tr, StepMode mode>
class StepTokens {
 public:
  // `column0`: of the warp's tile. `outputs`: [stage_tokens][columns of the block], for the norm; with the convolution
  // they take the place of its values.
  __device__ StepTokens(const StepParams& p, const StepBlock& block, StepStage<Tr>& stage, float* outputs,
                        const Tile<Tr>& tile, int column0)
      : p_(p), block_(block), stage_(stage), outputs_(outputs), owned_(column0 + tile.owned_column()) {}

  // Sends for the lane's value of token t, in the column that it owns.
  __device__ __forceinline__ void fetch_value(int t) {
    const View<4>& v = p_.rec.v;
    value_ = load_raw(v.data, v.dtype, block_.row(v.stride, t, block_.at.head) + owned_);
  }

  // Tokens [first, first + tokens), which are in the stage. The first one's value has been sent for.
  __device__ __forceinline__ void run(Tile<Tr>& tile, int first, int tokens) {
    const RecurrenceParams& rec = p_.rec;
    const bool stores = tile.stores_owned();
    // Offsets in a window, which has at most 128 tokens, are 32-bit numbers.
    using Offset = std::conditional_t<writes_logs<mode>, int32_t, int64_t>;
    const int64_t o_row = block_.row(rec.o.stride, first, block_.at.head);
    Offset o_at = owned_, d_at = owned_;
    float* d_log = nullptr;
    if constexpr (writes_logs<mode>) {
      d_log = static_cast<float*>(rec.logs.d.data) + block_.log_row(rec.logs.d.stride, first, block_.at.head);
    }
    auto k = tile.row(stage_.k[0]);
    Sums sums = pair_sum<Tr, Tr::most_warps>(stage_.pair, turn_, {tile.dot(k), 0.0f});  // (2)
#pragma unroll 1
    for (int i = 0; i < tokens; ++i) {
      float value;
      if constexpr (has_convolution<mode>) {
        value = outputs_[i * p_.columns + owned_];
      } else {
        value = widen(value_, rec.v.dtype);
        if (first + i + 1 < block_.count) fetch_value(first + i + 1);
      }
      const float delta = fmaf(-stage_.alpha[i], sums.u, value) * stage_.beta[i];  // (3)
      if constexpr (writes_logs<mode>) {
        if (stores) d_log[d_at] = delta;
        d_at += static_cast<Offset>(rec.logs.d.stride[1]);
      }
      float deltas[Tr::columns];
      tile.spread(delta, deltas);
      tile.update(stage_.alpha[i], k, deltas);  // (4)
      // The output's chains and those of the next token's u read the same state: they run side by side. Where there is
      // no next token in the stage its own key stands in: nobody reads that u.
      k = tile.row(stage_.k[i + 1 < tokens ? i + 1 : i]);
      sums =
          pair_sum<Tr, Tr::most_warps>(stage_.pair, turn_, {tile.dot(k), tile.dot(tile.row(stage_.q[i]))});  // (5), (2)
      const float o = sums.o * rec.scale;
      if constexpr (has_norm<mode>) {
        if (stores) outputs_[i * p_.columns + owned_] = rounded(rec.o.dtype, o);
      } else {
        if (stores) store(rec.o, o_row + o_at, o);
        o_at += static_cast<Offset>(rec.o.stride[1]);
      }
    }
  }

 private:
  const StepParams& p_;
  const StepBlock& block_;
  StepStage<Tr>& stage_;
  float* outputs_;
  int owned_;
  uint32_t value_ = 0;
  int turn_ = 0;  // of the pairs' buffers
};

template <class Tr, StepMode mode>
__global__ void __launch_bounds__(Tr::resident_threads(mode), 1)
    step_kernel(const __grid_constant__ StepParams GDN_GIVEN(p)) {
  GDN_IN_PLACE(StepParams, p);
  __shared__ StepStage<Tr> stage;
  extern __shared__ float outputs[];  // of the norm: [stage_tokens][columns]
  trigger_dependents();
  if constexpr (!has_norm<mode>) wait_for_prerequisites();
  const RecurrenceParams& rec = p.rec;
  StepBlock block = step_block<Tr, mode>(p);
  const bool skipped = uniform(block.slot < 0) != 0;
  const bool from_state =
      uniform(rec.state_in.data != nullptr && starts_from_state(rec.has_initial_state, block.at.n)) != 0;
  const auto stage_count = [&](int first) {
    return block.count - first < Tr::stage_tokens ? block.count - first : Tr::stage_tokens;
  };
  Tile<Tr> tile;
  const int column0 = block.at.column0 + Tile<Tr>::first_column();
  StageFeed<Tr, mode> feed(p, block);
  StepTokens<Tr, mode> tokens(p, block, stage, outputs, tile, column0);
  const auto fetch_head = [&] {
    feed.fetch_gates(0, stage_count(0));
    if (block.count > 0) tokens.fetch_value(0);
  };
  const auto load = [&] {
    if constexpr (kRdna) {  // compilers join the two branches' last stores, which are not of the same values
      tile.zero();
      if (from_state) tile.load(rec.state_in, block.slot, block.at.head, column0);
    } else if (from_state) {
      tile.load(rec.state_in, block.slot, block.at.head, column0);
    } else {
      tile.zero();
    }
  };
  int staged = -1;  // the first token in the stage
#pragma unroll 1
  for (int j = block.first_j; j < block.first_j + p.heads; ++j) {
    block.go_to(p, j);
    const auto norm = [&] { return OutputNormRows<false>(p.norm, block.at.n, block.at.head); };
    if (skipped) wait_for_prerequisites();
    if (skipped || rec.shape.cu_seqlens.data != nullptr) write_zeros<Tr, mode>(p, block);
    if (skipped) {
      if constexpr (has_norm<mode>) {
        for (int e = threadIdx.x; e < block.count * p.columns; e += block.threads) outputs[e] = 0.0f;
        sync_lds();
        norm().run(outputs, block.count);
        sync_lds();
      }
      continue;
    }
    const bool first_head = j == block.first_j;
    if constexpr (has_norm<mode>) {  // states are nobody's results that this kernel may be ahead of
      load();
      norm().fetch(block.count);
      if (first_head) wait_for_prerequisites();
    }
    if (first_head) feed.fetch_rows(0, stage_count(0));
    fetch_head();
    if constexpr (!has_norm<mode>) load();
    if constexpr (mode == StepMode::commit_verify) {
      const int accepted = uniform(accepted_count(p.window, block.at.n));
      if (accepted > 0) {
        TilePlace at = block.at;
        at.column0 = column0;
        replay_accepted(tile, p.window, p.log_stride, p.logs, at, accepted);
        tile.store(rec.state_in, block.slot, at.head, column0);
      }
    }
#pragma unroll 1
    for (int first = 0; first < block.count; first += Tr::stage_tokens) {
      const bool new_rows = first != staged;
      if (first > 0) feed.fetch_gates(first, stage_count(first));
      if (new_rows && staged >= 0) feed.fetch_rows(first, stage_count(first));
      if (staged >= 0) sync_lds();
      if (new_rows) feed.store_rows(stage);
      feed.store_gates(stage, first, stage_count(first));
      sync_lds();
      staged = first;
      tokens.run(tile, first, stage_count(first));
    }
    if constexpr (writes_state<mode>) {
      tile.store(rec.state_out, block.slot, block.at.head, column0);
    }
    if constexpr (has_norm<mode>) {
      sync_lds();
      norm().run(outputs, block.count);
    }
  }
}

// How the blocks divide the work: into p, and what a launch of p's sequences from first_n on needs. As many warps are
// taken as a head's columns have tiles for.
template <class Tr, StepMode mode>
LaunchShape divide_step(StepParams& p, const StepLaunch& how, unsigned sequences) {
  const HeadShape& heads = p.rec.heads;
  const TileWarps warps = tile_warps<Tr>(heads.value_dim, how.warps);
  p.log2_column_blocks = 0;
  while (warps.block << p.log2_column_blocks < warps.head) ++p.log2_column_blocks;
  p.columns = static_cast<int>(heads.value_dim >> p.log2_column_blocks);
  p.group = static_cast<int>(heads.value_heads / heads.key_heads);
  p.heads = how.heads;
  p.packed_rows = how.packed_rows;
  const dim3 grid(static_cast<unsigned>(p.group / p.heads) << p.log2_column_blocks,
                  static_cast<unsigned>(heads.key_heads), sequences);
  return {grid, warps.block * kWarp, step_shared_bytes<Tr, mode>, how.early};
}

template <class Tr, StepMode mode>
const char* launch_step_kernel(void (*kernel)(StepParams), StepParams p, const StepLaunch& how, void* stream) {
  return launch_by_sequences(p.rec.shape.sequences, [&](int first, unsigned count) {
    p.first_n = first;
    return launch_kernel(kernel, divide_step<Tr, mode>(p, how, count), p, stream);
  });
}

// What the modes' launchers share.
template <StepMode mode>
const char* launch_step(StepParams& p, const RecurrenceParams& rec, const StepLaunch& how, void* stream) {
  const StateView& state = rec.state_in ? rec.state_in : rec.state_out;
  p.rec = rec;
  const auto launch = [&](auto traits) {
    using Tr = decltype(traits);
    return launch_step_kernel<Tr, mode>(step_kernel<Tr, mode>, p, how, stream);
  };
  if constexpr (has_norm<mode>) {
    return with_tile_traits<StepTraits, true>(rec.heads.key_dim, tile_access(state), launch);
  } else {
    const bool aligned = state.in_vectors() && (!rec.state_out || rec.state_out.in_vectors());
    return with_tile_traits<StepTraits>(rec.heads.key_dim, tile_access(state), aligned, launch);
  }
}

}  // namespace gdn::gpu
