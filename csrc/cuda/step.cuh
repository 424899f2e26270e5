// Decode steps and speculative windows in the exact order, a tile of the state in each warp's registers
// (state_tile.cuh): the kernel behind step (state read and written), verify (state read, logs written) and
// commit_verify (the last round's accepted tokens replayed and stored first). docs/kernels/step.md.
// Equations: docs/math.md (1) to (5).
//
//   tensor   shape                            strides                      dtype
//   q, k     [B, T, H, K]                     last 1, others any           float32, bfloat16 or float16
//   v, o     [B, T, HV, V]                    last 1, others any           the same
//   g        [B, T, HV]                       any                          float32
//   beta     [B, T, HV]                       any                          float32, bfloat16 or float16
//   state    [S, HV, K, V] or [S, HV, V, K]   last 1, others any           float32
//   k_log    [N, T, H, K], d_log [N, T, HV, V], g_log [N, T, HV]           contiguous    float32
//
// Grid: x = blocks of columns of a head and value heads of a key head, y = H, z = sequences. A block is up to four
// warps with tiles of the same value head. Shared memory: the inputs of up to eight tokens, widened, keys and queries
// normalised (a warp a row, lane l its K/32 consecutive elements: the order of docs/contract.md), and the pairs' sums.
// All that the first tokens need is under way before the state's values are, and none of it is waited for before they
// are. Sync contract: one barrier before a stage is filled (nobody reads the one before any more) and one after, and
// where tiles are shared by pairs of warps one a token (pair_sum.cuh); all exchange shared memory alone. Precision:
// float32; each output is made from its own column's state, so that neither the number of warps a block nor the other
// sequences reach its bits.
#pragma once

#include "core/exact_math.h"
#include "cuda/indices.cuh"
#include "cuda/launch.h"
#include "cuda/pair_sum.cuh"
#include "cuda/replay.cuh"
#include "cuda/state_tile.cuh"

namespace gdn::gpu {

enum class StepMode : int32_t { step, verify, commit_verify };

template <int key_dim, TileAccess access, bool aligned>
struct StepTraits : TileTraits<key_dim, access, aligned> {
  using Tile = TileTraits<key_dim, access, aligned>;
  static constexpr int most_warps = 4;
  static constexpr int most_threads = most_warps * kWarp;
  static constexpr int stage_tokens = 8;
  static constexpr int lane_elements = key_dim / kWarp;
  static constexpr int warp_columns = Tile::tile_columns / Tile::tile_warps;
  static constexpr int most_columns = most_warps * warp_columns;
  static constexpr int v_tokens = kWarp / warp_columns;  // whose values a warp loads in one access
  static constexpr int v_parts = stage_tokens / v_tokens;
  static constexpr int ahead_rows = 2;  // keys and queries of a warp that are under way together
  // Blocks of a multiprocessor that the registers leave room for; older architectures need a few more of them.
  static constexpr int resident_blocks(StepMode mode) {
    return key_dim == 128 && mode != StepMode::commit_verify && kManyRegisters ? 3 : 2;
  }

  static_assert(stage_tokens <= kWarp, "the gates of a stage are loaded by one warp");
};

template <class Tr>
struct alignas(16) StepStage {
  float k[Tr::stage_tokens][Tr::K];
  float q[Tr::stage_tokens][Tr::K];
  float v[Tr::stage_tokens][Tr::most_columns];
  float alpha[Tr::stage_tokens], beta[Tr::stage_tokens];
  PairShared<Tr::most_warps> pair;
};

struct StepParams {
  RecurrenceParams rec;
  int log2_column_blocks;  // of a head
  bool packed_rows;        // every row of q and k starts on a 16-byte boundary
  int64_t first_n;         // of this launch: a grid has at most 65535 sequences
  AcceptedShape window;    // commit_verify: what is replayed first
  LogStrides log_stride;
  LogData logs;
};

// What a block works on.
struct StepBlock {
  TilePlace at;  // of the block's first tile
  int64_t slot;
  int batch, first_row, count;  // its rows
  int threads, columns;         // of the block
  bool first_of_head;           // of the head's column blocks: it writes g_log
  bool writes_keys;             // k_log: by one value head of each key head

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
};

// Over a row of K elements, K/32 in each lane; in every lane.
template <int elements>
__device__ __forceinline__ float row_sum_of_squares(const float (&x)[elements]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < elements; ++i) sum = fmaf(x[i], x[i], sum);
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) sum += shuffle_xor(sum, distance);
  return sum;
}

// The inputs of a stage of tokens on their way into shared memory. Between fetch and store a thread holds raw values.
template <class Tr, StepMode mode>
class StageFeed {
 public:
  __device__ StageFeed(const StepParams& p, const StepBlock& block)
      : p_(p), block_(block), lane_(threadIdx.x % kWarp), warp_(threadIdx.x / kWarp), warps_(block.threads / kWarp) {}

  // Tokens [first, first + count).
  __device__ __forceinline__ void fetch(int first, int count) {
    first_ = first;
    count_ = count;
    fetch_rows(warp_);
    for_each_value([&](int t, int c, uint32_t& raw) {
      const View<4>& v = p_.rec.v;
      raw = load_raw(v.data, v.dtype, block_.row(v.stride, first_ + t, block_.at.head) + block_.at.column0 + c);
    });
    if (has_gates()) {
      const RecurrenceParams& rec = p_.rec;
      g_ = static_cast<const float*>(rec.g.data)[block_.row(rec.g.stride, first_ + lane_, block_.at.head)];
      beta_ = load_raw(rec.beta.data, rec.beta.dtype, block_.row(rec.beta.stride, first_ + lane_, block_.at.head));
    }
  }

  __device__ __forceinline__ void store(StepStage<Tr>& stage) {
    const RecurrenceParams& rec = p_.rec;
    if (has_gates()) {
      stage.alpha[lane_] = exact::exp(g_);  // (1)
      stage.beta[lane_] = widen(beta_, rec.beta.dtype);
      if (mode != StepMode::step && block_.first_of_head) {
        static_cast<float*>(rec.logs.g.data)[block_.log_row(rec.logs.g.stride, first_ + lane_, block_.at.head)] = g_;
      }
    }
    for_each_value([&](int t, int c, uint32_t& raw) { stage.v[t][c] = widen(raw, rec.v.dtype); });
#pragma unroll 1
    for (int row = warp_; row < 2 * count_;) {
      store_rows(row, stage);
      row += Tr::ahead_rows * warps_;
      if (row < 2 * count_) fetch_rows(row);
    }
  }

 private:
  // The thread's values: of token t and the block's column c.
  template <class F>
  __device__ __forceinline__ void for_each_value(F f) {
#pragma unroll
    for (int i = 0; i < Tr::v_parts; ++i) {
      const int t = i * Tr::v_tokens + lane_ / Tr::warp_columns;
      if (t < count_) f(t, warp_ * Tr::warp_columns + lane_ % Tr::warp_columns, v_[i]);
    }
  }
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
      if (mode != StepMode::step && r % 2 == 0 && block_.writes_keys) {
        float* log = static_cast<float*>(rec.logs.k.data) +
                     block_.log_row(rec.logs.k.stride, first_ + t, block_.at.key_head) + lane_ * Tr::lane_elements;
#pragma unroll
        for (int i = 0; i < Tr::lane_elements; ++i) log[i] = x[i];
      }
    }
  }
  // Lane t of the last warp has the gates of token t.
  __device__ bool has_gates() const { return warp_ == warps_ - 1 && lane_ < count_; }

  const StepParams& p_;
  const StepBlock& block_;
  int lane_, warp_, warps_, first_ = 0, count_ = 0;
  RawPart<Tr::lane_elements> part_[Tr::ahead_rows];
  uint32_t v_[Tr::v_parts];
  float g_ = 0.0f;
  uint32_t beta_ = 0;
};

// Rows [begin, end) of the batch row: outputs, and in a verify log rows, as zeros.
template <class Tr, StepMode mode>
__device__ __forceinline__ void write_zeros(const StepParams& p, const StepBlock& block, int begin, int end) {
  const RecurrenceParams& rec = p.rec;
  for (int t = begin; t < end; ++t) {
    const int64_t row = block.row(rec.o.stride, t - block.first_row, block.at.head) + block.at.column0;
    for (int c = threadIdx.x; c < block.columns; c += block.threads) {
      store(rec.o, row + c, 0.0f);
      if constexpr (mode != StepMode::step) {
        static_cast<float*>(
            rec.logs.d.data)[block.log_row(rec.logs.d.stride, t, block.at.head) + block.at.column0 + c] = 0.0f;
      }
    }
    if constexpr (mode != StepMode::step) {
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
  block.columns = block.threads / (kWarp * Tr::tile_warps) * Tr::tile_columns;
  const int column_block = static_cast<int>(blockIdx.x) & ((1 << p.log2_column_blocks) - 1);
  const int j = static_cast<int>(blockIdx.x) >> p.log2_column_blocks;  // of the key head's value heads
  block.at.n = p.first_n + static_cast<int>(blockIdx.z);
  block.at.key_head = static_cast<int>(blockIdx.y);
  const bool grouped = rec.heads.head_map == HeadMap::grouped;
  const auto group = static_cast<int>(gridDim.x >> p.log2_column_blocks), key_heads = static_cast<int>(gridDim.y);
  block.at.head = grouped ? block.at.key_head * group + j : block.at.key_head + j * key_heads;
  block.at.column0 = column_block * block.columns;
  block.first_of_head = column_block == 0;
  block.writes_keys = mode != StepMode::step && blockIdx.x == 0;
  const SequenceRows rows = rows_of(rec.shape, block.at.n);
  block.batch = static_cast<int>(rows.batch);
  block.first_row = static_cast<int>(rows.first);
  block.count = static_cast<int>(rows.count);
  block.slot = slot_of(rec.state_indices, block.at.n,
                       rec.state_in.slots > rec.state_out.slots ? rec.state_in.slots : rec.state_out.slots);
  return block;
}

template <class Tr, StepMode mode>
__global__ void __launch_bounds__(Tr::most_threads, Tr::resident_blocks(mode))
    step_kernel(const __grid_constant__ StepParams p) {
  __shared__ StepStage<Tr> stage;
  const RecurrenceParams& rec = p.rec;
  const StepBlock block = step_block<Tr, mode>(p);
  if (rec.shape.cu_seqlens.data != nullptr) {  // rows that no sequence covers
    if (block.at.n == 0) write_zeros<Tr, mode>(p, block, 0, block.first_row);
    if (block.at.n == rec.shape.sequences - 1) {
      write_zeros<Tr, mode>(p, block, block.first_row + block.count, static_cast<int>(rec.shape.tokens));
    }
  }
  if (block.slot < 0) {
    write_zeros<Tr, mode>(p, block, block.first_row, block.first_row + block.count);
    return;
  }

  TilePlace at = block.at;
  at.column0 += Tile<Tr>::first_column();
  Tile<Tr> tile;
  const int owned = at.column0 + tile.owned_column();
  const auto stage_count = [&](int first) {
    return block.count - first < Tr::stage_tokens ? block.count - first : Tr::stage_tokens;
  };
  int64_t o_at = block.row(rec.o.stride, 0, at.head) + owned;
  StageFeed<Tr, mode> feed(p, block);
  if (block.count > 0) feed.fetch(0, stage_count(0));
  if (rec.state_in.data == nullptr || !starts_from_state(rec.has_initial_state, at.n)) {
    tile.zero();
  } else {
    tile.load(rec.state_in, block.slot, at.head, at.column0);
  }
  if constexpr (mode == StepMode::commit_verify) {
    const int accepted = accepted_count(p.window, at.n);
    if (accepted > 0) {
      replay_accepted(tile, p.window, p.log_stride, p.logs, at, accepted);
      tile.store(rec.state_in, block.slot, at.head, at.column0);
    }
  }

  float* d_log = nullptr;
  if constexpr (mode != StepMode::step) {
    d_log = static_cast<float*>(rec.logs.d.data) + block.log_row(rec.logs.d.stride, 0, at.head) + owned;
  }
  int turn = 0;
#pragma unroll 1
  for (int first = 0; first < block.count; first += Tr::stage_tokens) {
    const int tokens = stage_count(first);
    if (first > 0) {
      feed.fetch(first, tokens);
      sync_lds();
    }
    feed.store(stage);
    sync_lds();
    auto k = tile.row(stage.k[0]);
    Sums sums = pair_sum<Tr, Tr::most_warps>(stage.pair, turn, {tile.dot(k), 0.0f});  // (2)
#pragma unroll 1
    for (int i = 0; i < tokens; ++i) {
      const float delta = fmaf(-stage.alpha[i], sums.u, stage.v[i][owned - block.at.column0]) * stage.beta[i];  // (3)
      if constexpr (mode != StepMode::step) {
        if (tile.stores_owned()) *d_log = delta;
        d_log += rec.logs.d.stride[1];
      }
      float deltas[Tr::columns];
      tile.spread(delta, deltas);
      tile.update(stage.alpha[i], k, deltas);  // (4)
      // The output's chains and those of the next token's u read the same state: they run side by side. Where there is
      // no next token in the stage its own key stands in: nobody reads that u.
      k = tile.row(stage.k[i + 1 < tokens ? i + 1 : i]);
      sums = pair_sum<Tr, Tr::most_warps>(stage.pair, turn, {tile.dot(k), tile.dot(tile.row(stage.q[i]))});  // (5), (2)
      if (tile.stores_owned()) store(rec.o, o_at, sums.o * rec.scale);
      o_at += rec.o.stride[1];
    }
  }
  if constexpr (mode == StepMode::step) tile.store(rec.state_out, block.slot, at.head, at.column0);
}

// `wanted`: warps of a block; as many are taken as a head's columns have tiles for.
template <class Tr, class Kernel>
const char* launch_step_kernel(Kernel kernel, StepParams p, int wanted, void* stream) {
  const HeadShape& heads = p.rec.heads;
  const TileWarps warps = tile_warps<Tr>(heads.value_dim, wanted);
  for (p.log2_column_blocks = 0; warps.block << p.log2_column_blocks < warps.head;) ++p.log2_column_blocks;
  return launch_by_sequences(p.rec.shape.sequences, [&](int first, unsigned count) {
    p.first_n = first;
    const dim3 grid(static_cast<unsigned>(heads.value_heads / heads.key_heads) << p.log2_column_blocks,
                    static_cast<unsigned>(heads.key_heads), count);
    kernel<<<grid, warps.block * kWarp, 0, static_cast<Stream>(stream)>>>(p);
  });
}

// What the modes' launchers share.
template <StepMode mode>
const char* launch_step(StepParams& p, const RecurrenceParams& rec, const StepLaunch& how, void* stream) {
  const StateView& state = rec.state_in ? rec.state_in : rec.state_out;
  p.rec = rec;
  const bool aligned = tile_aligned(state) && (!rec.state_out || tile_aligned(rec.state_out));
  p.packed_rows = how.packed_rows;
  return with_tile_traits<StepTraits>(rec.heads.key_dim, tile_access(state), aligned, [&](auto traits) {
    using Tr = decltype(traits);
    return launch_step_kernel<Tr>(step_kernel<Tr, mode>, p, how.warps, stream);
  });
}

}  // namespace gdn::gpu
