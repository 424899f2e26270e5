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
// Grid: x = blocks of columns of a head, y = HV, z = sequences. A block is up to four warps, each with one tile of the
// same value head. Shared memory: the inputs of up to eight tokens, widened, keys and queries normalised (a warp a row,
// lane l its K/32 consecutive elements: the order of docs/contract.md). Sync contract: one barrier before a stage is
// filled (nobody reads the one before any more) and one after; both exchange shared memory alone. Between them warps do
// not meet. Precision: float32; each output is made by one warp from its own tile, so that neither the number of warps
// a block nor the other sequences reach its bits.
#pragma once

#include <algorithm>

#include "core/exact_math.h"
#include "cuda/indices.cuh"
#include "cuda/replay.cuh"
#include "cuda/state_tile.cuh"

namespace gdn::gpu {

enum class StepMode : int32_t { step, verify, commit_verify };

template <int key_dim>
struct StepTraits : TileTraits<key_dim> {
  using Base = TileTraits<key_dim>;
  static constexpr int most_warps = 4;
  static constexpr int most_threads = most_warps * kWarp;
  static constexpr int most_columns = most_warps * Base::tile_columns;
  static constexpr int stage_tokens = 8;
  static constexpr int lane_elements = key_dim / kWarp;
  // Blocks of a multiprocessor that the registers leave room for.
  static constexpr int resident_blocks(StepMode mode) { return key_dim != 128 ? 2 : mode == StepMode::step ? 4 : 3; }

  static_assert(stage_tokens <= kWarp, "the gates of a stage are loaded by one warp");
};

template <class Tr>
struct StepStage {
  float k[Tr::stage_tokens][Tr::K];
  float q[Tr::stage_tokens][Tr::K];
  float v[Tr::stage_tokens][Tr::most_columns];
  float alpha[Tr::stage_tokens], beta[Tr::stage_tokens];
};

struct StepParams {
  RecurrenceParams rec;
  TileAccess access;
  bool packed_rows;      // every row of q and k starts on a 16-byte boundary
  int64_t first_n;       // of this launch: a grid has at most 65535 sequences
  AcceptedShape window;  // commit_verify: what is replayed first
  LogStrides log_stride;
  LogData logs;
};

// What a block works on.
struct StepBlock {
  TilePlace at;  // of the block's first tile
  int64_t slot;
  int batch, first_row, count;  // its rows
  int threads, columns;         // of the block
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

// Keys and queries of tokens [first, first + count), normalised, and their log.
template <class Tr, class Element>
__device__ __forceinline__ void fill_keys(const StepParams& p, const StepBlock& block, int first, int count,
                                          StepStage<Tr>& stage) {
  constexpr int batch = 2;  // rows under way in a warp
  const RecurrenceParams& rec = p.rec;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = block.threads / kWarp;
  using Part = Pack<Element, Tr::lane_elements>;
#pragma unroll 1
  for (int r0 = warp; r0 < 2 * count; r0 += batch * warps) {
    Part part[batch];
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      const int r = r0 + u * warps < 2 * count ? r0 + u * warps : r0;
      const View<4>& view = r % 2 == 0 ? rec.k : rec.q;
      const Element* from = static_cast<const Element*>(view.data) +
                            block.row(view.stride, first + r / 2, block.at.key_head) + lane * Tr::lane_elements;
      if (p.packed_rows) {
        part[u] = *reinterpret_cast<const Part*>(from);
      } else {
        part[u].gather(from);
      }
    }
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      const int r = r0 + u * warps;
      if (r >= 2 * count) break;
      float x[Tr::lane_elements];
      part[u].widen(x);
      if (rec.qk_l2norm) {
        const float factor = reciprocal_root(row_sum_of_squares(x) + rec.l2_eps);
#pragma unroll
        for (int i = 0; i < Tr::lane_elements; ++i) x[i] = x[i] * factor;
      }
      float* row = (r % 2 == 0 ? stage.k[r / 2] : stage.q[r / 2]) + lane * Tr::lane_elements;
#pragma unroll
      for (int i = 0; i < Tr::lane_elements; ++i) row[i] = x[i];
      if (r % 2 == 0 && block.writes_keys) {
        float* log = static_cast<float*>(rec.logs.k.data) +
                     block.log_row(rec.logs.k.stride, first + r / 2, block.at.key_head) + lane * Tr::lane_elements;
#pragma unroll
        for (int i = 0; i < Tr::lane_elements; ++i) log[i] = x[i];
      }
    }
  }
}

template <class Tr, StepMode mode>
__device__ __forceinline__ void fill_stage(const StepParams& p, const StepBlock& block, int first, int count,
                                           StepStage<Tr>& stage) {
  const RecurrenceParams& rec = p.rec;
  const int last_warp = static_cast<int>(threadIdx.x) - (block.threads - kWarp);
  if (last_warp >= 0 && last_warp < count) {
    const float g = static_cast<const float*>(rec.g.data)[block.row(rec.g.stride, first + last_warp, block.at.head)];
    stage.alpha[last_warp] = exact::exp(g);  // (1)
    stage.beta[last_warp] = load(rec.beta, block.row(rec.beta.stride, first + last_warp, block.at.head));
    if constexpr (mode != StepMode::step) {
      if (blockIdx.x == 0) {
        static_cast<float*>(rec.logs.g.data)[block.log_row(rec.logs.g.stride, first + last_warp, block.at.head)] = g;
      }
    }
  }
  with_element_of(rec.q.dtype, [&](auto element) {
    using Element = decltype(element);
#pragma unroll 1
    for (int t = 0; t < count; ++t) {
      const Element* v = static_cast<const Element*>(rec.v.data) + block.row(rec.v.stride, first + t, block.at.head);
#pragma unroll 1
      for (int c = threadIdx.x; c < block.columns; c += block.threads) {
        stage.v[t][c] = to_f32(v[block.at.column0 + c]);
      }
    }
    fill_keys<Tr, Element>(p, block, first, count, stage);
  });
}

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
      if (blockIdx.x == 0 && threadIdx.x == 0) {
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
  const HeadShape& heads = rec.heads;
  StepBlock block;
  block.threads = static_cast<int>(blockDim.x);
  block.columns = block.threads / kWarp * Tr::tile_columns;
  block.at.n = p.first_n + static_cast<int>(blockIdx.z);
  block.at.head = static_cast<int>(blockIdx.y);
  const auto head = static_cast<uint32_t>(blockIdx.y), key_heads = static_cast<uint32_t>(heads.key_heads);
  const uint32_t group = static_cast<uint32_t>(heads.value_heads) / key_heads;
  const bool grouped = heads.head_map == HeadMap::grouped;
  block.at.key_head = static_cast<int>(grouped ? head / group : head % key_heads);
  block.at.column0 = static_cast<int>(blockIdx.x) * block.columns;
  block.writes_keys = mode != StepMode::step && blockIdx.x == 0 && (grouped ? head % group == 0 : head < key_heads);
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

  const int warp = threadIdx.x / kWarp;
  TilePlace at = block.at;
  at.column0 += warp * Tr::tile_columns;
  Tile<Tr> tile;
  const bool from_zeros = rec.state_in.data == nullptr || !starts_from_state(rec.has_initial_state, at.n);
  if (from_zeros) {
    tile.zero();
  } else {
    tile.load(rec.state_in, p.access, block.slot, at.head, at.column0);
  }
  if constexpr (mode == StepMode::commit_verify) {
    const int accepted = accepted_count(p.window, at.n);
    if (accepted > 0) {
      replay_accepted(tile, p.window, p.log_stride, p.logs, at, accepted);
      tile.store(rec.state_in, p.access, block.slot, at.head, at.column0);
    }
  }

  const int owned = warp * Tr::tile_columns + tile.owned_column();
  const auto count = block.count;
#pragma unroll 1
  for (int first = 0; first < count; first += Tr::stage_tokens) {
    const int tokens = count - first < Tr::stage_tokens ? count - first : Tr::stage_tokens;
    if (first > 0) sync_lds();
    fill_stage<Tr, mode>(p, block, first, tokens, stage);
    sync_lds();
#pragma unroll 1
    for (int t = 0; t < tokens; ++t) {
      const auto k = tile.row(stage.k[t]);
      const float u = tile.dot(k);                                                      // (2)
      const float delta = fmaf(-stage.alpha[t], u, stage.v[t][owned]) * stage.beta[t];  // (3)
      float deltas[Tr::columns];
      tile.spread(delta, deltas);
      tile.update(stage.alpha[t], k, deltas);                      // (4)
      const float o = tile.dot(tile.row(stage.q[t])) * rec.scale;  // (5)
      if (tile.stores_owned()) {
        store(rec.o, block.row(rec.o.stride, first + t, at.head) + block.at.column0 + owned, o);
        if constexpr (mode != StepMode::step) {
          static_cast<float*>(
              rec.logs.d.data)[block.log_row(rec.logs.d.stride, first + t, at.head) + block.at.column0 + owned] = delta;
        }
      }
    }
  }
  if constexpr (mode == StepMode::step) tile.store(rec.state_out, p.access, block.slot, at.head, at.column0);
}

// `warps`: wanted of a block; as many are taken as a head's columns have tiles for.
template <class Tr, class Kernel>
const char* launch_step_kernel(Kernel kernel, StepParams p, int warps, void* stream) {
  const HeadShape& heads = p.rec.heads;
  const auto tiles = static_cast<int>(heads.value_dim / Tr::tile_columns);
  const int block_warps = std::min({warps, tiles, Tr::most_warps});
  constexpr int64_t most_sequences = 65535;
  for (int64_t n = 0; n < p.rec.shape.sequences; n += most_sequences) {
    p.first_n = static_cast<int>(n);
    const dim3 grid(static_cast<unsigned>(tiles / block_warps), static_cast<unsigned>(heads.value_heads),
                    static_cast<unsigned>(std::min(p.rec.shape.sequences - n, most_sequences)));
    kernel<<<grid, block_warps * kWarp, 0, static_cast<Stream>(stream)>>>(p);
    if (const char* refused = launch_error()) return refused;
  }
  return nullptr;
}

// f(StepTraits<K>{})
template <class F>
const char* with_step_traits(int64_t key_dim, F f) {
  switch (key_dim) {
    case 64: return f(StepTraits<64>{});
    case 128: return f(StepTraits<128>{});
    default: return f(StepTraits<256>{});
  }
}

template <StepMode mode>
const char* launch_step(const StepParams& p, int warps, void* stream) {
  return with_step_traits(p.rec.heads.key_dim, [&](auto traits) {
    using Tr = decltype(traits);
    return launch_step_kernel<Tr>(step_kernel<Tr, mode>, p, warps, stream);
  });
}

// The access that both ends of a step allow.
inline TileAccess common_access(const StateView& in, const StateView& out) {
  if (!in || !out) return tile_access(in ? in : out);
  return tile_access(in) == tile_access(out) ? tile_access(in) : TileAccess::scalar;
}

}  // namespace gdn::gpu
