// The recurrence token by token in the exact order, a column's eight row groups in eight neighbouring lanes: the kernel
// behind rec_columns (one value head a thread), rec_keyhead (several value heads of one key head a thread) and
// rec_lanes (RDNA: one or two columns a thread, short stages). docs/kernels/rec_lanes.md: roofline, schedule, what was
// tried. Equations: docs/math.md (1) to (5).
//
//   tensor   shape                            strides                      dtype
//   q, k     [B, T, H, K]                     last 1, others any           float32, bfloat16 or float16
//   v, o     [B, T, HV, V]                    last 1, others any           the same
//   g        [B, T, HV]                       any                          float32
//   beta     [B, T, HV]                       any                          float32, bfloat16 or float16
//   state    [S, HV, K, V] or [S, HV, V, K]   last 1, others any           float32
//
// Grid: x = V / columns, y = H * (HV/H) / heads, z = sequences. A block owns `columns` value columns of `heads` value
// heads that read one key head. Threads: first the chain threads, 8 a column, or a pair of columns: lane group r of a
// column keeps the rows of row group r of each of its heads in registers through the whole sequence. Then four feed
// warps: they load the next stage's tokens, normalise keys and queries (a warp a row, lane l its K/32 consecutive
// elements: the order of docs/contract.md), and turn the chain's partial outputs of the stage before into outputs.
// Shared memory: two stages of widened inputs and two of partial outputs. Precision: float32; the sums over K are eight
// chains and three butterfly additions. Sync contract: one block barrier a stage. At barrier s everybody has arrived:
// the feed warps with stage s + 1 complete in buffer (s + 1) % 2, the chain threads with the partial outputs of stage s
// complete in buffer s % 2. Nobody writes a buffer that the other side reads before the next barrier. Within a stage
// the chain warps exchange values by shuffles alone.
#pragma once

#include "cuda/device.h"

#include "core/exact_math.h"
#include "cuda/indices.cuh"
#include "cuda/pack.cuh"

namespace gdn::gpu {

// Element: float, bf16 or f16.
template <int key_dim, int heads_a_thread, int columns_a_block, class ElementType, int columns_a_thread,
          int tokens_a_stage>
struct RecGeometry {
  using Element = ElementType;
  static constexpr int K = key_dim;
  static constexpr int heads = heads_a_thread;
  static constexpr int columns = columns_a_block;
  static constexpr int lane_columns = columns_a_thread;  // column_step apart
  static constexpr int column_step = columns / lane_columns;
  static constexpr int state_columns = heads * lane_columns;  // that a thread has rows of: of all its heads
  static constexpr int groups = 8;
  static constexpr int group_rows = 4;  // consecutive rows of a group
  static constexpr int period = groups * group_rows;
  static constexpr int rows = K / groups;  // of a thread and head
  static constexpr int stage_tokens = tokens_a_stage;
  static constexpr int chain_threads = column_step * groups;
  static constexpr int feed_warps = 4;
  static constexpr int feed_threads = feed_warps * kWarp;
  static constexpr int threads = chain_threads + feed_threads;
  static constexpr int blocks_a_multiprocessor =
      heads == 1 && K < 256 ? 2 : 1;                             // what the registers must leave room for
  static constexpr int feed_tokens = stage_tokens / feed_warps;  // of a warp and stage
  static constexpr int lane_elements = K / kWarp;                // of a row, in a feed lane
  static constexpr int lane_values = (heads * columns + kWarp - 1) / kWarp;
  static constexpr int feed_rows = 2 * feed_tokens + 1;  // keys, the next stage's first key, queries
  static constexpr int gate_pad = 4;
  static constexpr bool crowded = state_columns * rows >= 64 && K > 128;  // RDNA's registers are just enough

  static_assert(K % period == 0, "a row group has whole quads of rows");
  static_assert(heads <= gate_pad, "the gates of a token are one 16-byte access");
  static_assert(state_columns * rows <= 96,
                "more state values than this do not fit a thread's registers beside the rest");
  static_assert(chain_threads % kWarp == 0,
                "a column's lanes are in one warp, and chain and feed threads in different ones");
  static_assert(stage_tokens % feed_warps == 0, "every feed warp has the same number of tokens");
  static_assert(feed_rows <= kWarp, "each row's root is computed in a lane of its own");
};

// Of rec_columns and rec_keyhead.
template <int key_dim, int heads, int columns, class Element>
struct RecTraits : RecGeometry<key_dim, heads, columns, Element, 1, (key_dim > 128 || heads > 3) ? 8 : 16> {};

template <class Tr>
struct RecStage {
  float k[Tr::stage_tokens + 1][Tr::K];  // the last row is the next stage's first key
  float q[Tr::stage_tokens][Tr::K];
  float v[Tr::stage_tokens][Tr::heads][Tr::columns];
  float alpha[Tr::stage_tokens][Tr::gate_pad];
  float beta[Tr::stage_tokens][Tr::gate_pad];
};
template <class Tr>
struct alignas(16) RecShared {
  RecStage<Tr> stage[2];
  float partial[2][Tr::stage_tokens][Tr::heads][Tr::columns][Tr::groups];  // of the outputs
};
template <class Tr>
constexpr int rec_lanes_shared_bytes = static_cast<int>(sizeof(RecShared<Tr>));

// What a block works on.
struct RecBlock {
  int64_t slot;
  SequenceRows rows;
  int64_t first_column;
  int64_t key_head, first_head, head_step;  // value heads first_head + j * head_step
  bool packed_rows;                         // q and k rows can be read in whole lane vectors
};

// The feed warps' part. Between fetch and store a thread holds raw values of the next stage: the loads have a whole
// stage to arrive.
template <class Tr>
class Feed {
 public:
  using Element = typename Tr::Element;

  __device__ Feed(const RecurrenceParams& p, const RecBlock& block)
      : p_(p),
        block_(block),
        lane_(threadIdx.x % kWarp),
        warp_((threadIdx.x - Tr::chain_threads) / kWarp),
        q_(static_cast<const Element*>(p.q.data) + first_row(p.q.stride, block.key_head) + lane_ * Tr::lane_elements),
        k_(static_cast<const Element*>(p.k.data) + first_row(p.k.stride, block.key_head) + lane_ * Tr::lane_elements),
        v_(static_cast<const Element*>(p.v.data) + first_row(p.v.stride, block.first_head) + block.first_column),
        o_(static_cast<Element*>(p.o.data) + first_row(p.o.stride, block.first_head) + block.first_column) {
    const int64_t head = block.first_head + (lane_ < Tr::heads ? lane_ : 0) * block.head_step;
    g_ = first_row(p.g.stride, head);
    beta_ = first_row(p.beta.stride, head);
  }

  // Rows past the last one are read as the last one: their values are never used.
  __device__ __forceinline__ void fetch(int64_t first_token) {
    const int64_t last = block_.rows.count - 1;
#pragma unroll
    for (int i = 0; i < Tr::feed_tokens; ++i) {
      const int64_t wanted = first_token + warp_ + i * Tr::feed_warps, t = wanted < last ? wanted : last;
      fetch_row(k_ + t * p_.k.stride[1], raw_[i]);
      fetch_row(q_ + t * p_.q.stride[1], raw_[Tr::feed_tokens + 1 + i]);
#pragma unroll
      for (int w = 0; w < Tr::lane_values; ++w) {
        const int e = lane_ + w * kWarp < Tr::heads * Tr::columns ? lane_ + w * kWarp : 0;
        v_raw_[i][w] = v_[t * p_.v.stride[1] + e / Tr::columns * block_.head_step * p_.v.stride[2] + e % Tr::columns];
      }
      g_raw_[i] = static_cast<const float*>(p_.g.data)[g_ + t * p_.g.stride[1]];
      beta_raw_[i] = load_raw(p_.beta.data, p_.beta.dtype, beta_ + t * p_.beta.stride[1]);
    }
    const int64_t next = first_token + Tr::stage_tokens;
    fetch_row(k_ + (next < last ? next : last) * p_.k.stride[1], raw_[Tr::feed_tokens]);
  }

  __device__ __forceinline__ void store(RecStage<Tr>& stage) const {
    float x[Tr::feed_rows][Tr::lane_elements], sum[Tr::feed_rows];
#pragma unroll
    for (int r = 0; r < Tr::feed_rows; ++r) {
      raw_[r].widen(x[r]);
      sum[r] = 0.0f;
#pragma unroll
      for (int i = 0; i < Tr::lane_elements; ++i) sum[r] = fmaf(x[r][i], x[r][i], sum[r]);
    }
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int r = 0; r < Tr::feed_rows; ++r) sum[r] += shuffle_xor(sum[r], distance);
    }
    // Lane r has the root and the division of row r. (A chain of selects would become an array in local memory.)
    float mine = 0.0f;
#pragma unroll
    for (int r = 0; r < Tr::feed_rows; ++r)
      mine = float_of(bits_of(mine) | (bits_of(sum[r]) & (lane_ == r ? ~0u : 0u)));
    const float factor = p_.qk_l2norm ? reciprocal_root(mine + p_.l2_eps) : 1.0f;
#pragma unroll
    for (int r = 0; r < Tr::feed_rows; ++r) {
      const float by = shuffle(factor, r);
      float* row = r < Tr::feed_tokens    ? stage.k[warp_ + r * Tr::feed_warps]
                   : r == Tr::feed_tokens ? stage.k[Tr::stage_tokens]
                                          : stage.q[warp_ + (r - Tr::feed_tokens - 1) * Tr::feed_warps];
      if (r == Tr::feed_tokens && warp_ != 0) continue;
#pragma unroll
      for (int i = 0; i < Tr::lane_elements; ++i) row[lane_ * Tr::lane_elements + i] = x[r][i] * by;
    }
#pragma unroll
    for (int i = 0; i < Tr::feed_tokens; ++i) {
      const int t = warp_ + i * Tr::feed_warps;
#pragma unroll
      for (int w = 0; w < Tr::lane_values; ++w) {
        const int e = lane_ + w * kWarp;
        if (e < Tr::heads * Tr::columns) stage.v[t][e / Tr::columns][e % Tr::columns] = to_f32(v_raw_[i][w]);
      }
      const float alpha = exact::exp(g_raw_[i]);  // (1)
      if (lane_ < Tr::heads) {
        stage.alpha[t][lane_] = alpha;
        stage.beta[t][lane_] = widen(beta_raw_[i], p_.beta.dtype);
      }
    }
  }

  // (5) from the chain's partial sums.
  __device__ __forceinline__ void write_outputs(
      const float (&partial)[Tr::stage_tokens][Tr::heads][Tr::columns][Tr::groups], int64_t first_token) const {
    const int64_t left = block_.rows.count - first_token;
    const int tokens = left < Tr::stage_tokens ? static_cast<int>(left) : Tr::stage_tokens;
    Element* o = o_ + first_token * p_.o.stride[1];
    constexpr int outputs = Tr::stage_tokens * Tr::heads * Tr::columns;
#pragma unroll
    for (int base = 0; base < outputs; base += Tr::feed_threads) {
      const int e = base + static_cast<int>(threadIdx.x) - Tr::chain_threads;
      const int c = e % Tr::columns, j = e / Tr::columns % Tr::heads, t = e / Tr::columns / Tr::heads;
      if (e < outputs && t < tokens) {
        const float4 a = *reinterpret_cast<const float4*>(&partial[t][j][c][0]);
        const float4 b = *reinterpret_cast<const float4*>(&partial[t][j][c][4]);
        const float sum = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
        o[t * p_.o.stride[1] + j * block_.head_step * p_.o.stride[2] + c] = from_f32<Element>(sum * p_.scale);
      }
    }
  }

  // Rows [begin, end) of the batch row as zeros.
  __device__ void write_zeros(int64_t begin, int64_t end) const {
    Element* o = o_ - block_.rows.first * p_.o.stride[1];
    for (int64_t t = begin; t < end; ++t) {
      for (int e = static_cast<int>(threadIdx.x) - Tr::chain_threads; e < Tr::heads * Tr::columns;
           e += Tr::feed_threads) {
        o[t * p_.o.stride[1] + e / Tr::columns * block_.head_step * p_.o.stride[2] + e % Tr::columns] = Element{};
      }
    }
  }

 private:
  template <int rank>
  __device__ int64_t first_row(const int64_t (&stride)[rank], int64_t head) const {
    return block_.rows.batch * stride[0] + block_.rows.first * stride[1] + head * stride[2];
  }
  using RowPart = Pack<Element, Tr::lane_elements>;
  __device__ __forceinline__ void fetch_row(const Element* from, RowPart& to) const {
    if (block_.packed_rows) {
      to = *reinterpret_cast<const RowPart*>(from);
    } else {
      to.gather(from);
    }
  }

  const RecurrenceParams& p_;
  const RecBlock block_;
  int lane_, warp_;
  const Element *q_, *k_, *v_;
  Element* o_;
  int64_t g_, beta_;
  RowPart raw_[Tr::feed_rows];  // keys, the next stage's first key, queries
  Element v_raw_[Tr::feed_tokens][Tr::lane_values];
  float g_raw_[Tr::feed_tokens];
  uint32_t beta_raw_[Tr::feed_tokens];
};

// The chain threads' part: rows of one row group and column of each head's state, in registers.
template <class Tr>
class Chain {
 public:
  __device__ Chain(const RecurrenceParams& p, const RecBlock& block)
      : group_(threadIdx.x % Tr::groups), column_(threadIdx.x / Tr::groups) {
    const bool from_zeros = p.state_in.data == nullptr || !starts_from_state(p.has_initial_state, blockIdx.z);
    for_each_element(p.state_in, block, [&](int s, int i, float* element) { S_[s][i] = from_zeros ? 0.0f : *element; });
  }

  __device__ void save(const StateView& state, const RecBlock& block) {
    for_each_element(state, block, [&](int s, int i, float* element) { *element = S_[s][i]; });
  }

  // (2) of the first token.
  __device__ void begin(const RecStage<Tr>& stage) {
    load_row(stage.k[0], k_even_);
    start_u(k_even_);
  }

  // Tokens [0, tokens) of a stage. u_ is that of its first token, and afterwards that of the token after its last one.
  __device__ __forceinline__ void run(const RecStage<Tr>& stage, int tokens,
                                      float (&partial)[Tr::stage_tokens][Tr::heads][Tr::columns][Tr::groups]) {
    load_row(stage.k[0], k_even_);
    load_row(stage.k[1], k_odd_);
    load_row(stage.q[0], q_);
    load_token(stage, 0);
    int t = 0;
#pragma unroll 1
    for (; t + 4 <= tokens; t += 4) {
      step(stage, partial, t, k_even_, k_odd_);
      step(stage, partial, t + 1, k_odd_, k_even_);
      step(stage, partial, t + 2, k_even_, k_odd_);
      step(stage, partial, t + 3, k_odd_, k_even_);
    }
    // The end of a sequence.
#pragma unroll 1
    for (; t < tokens; ++t) {
      step(stage, partial, t, k_even_, k_odd_);
#pragma unroll
      for (int i = 0; i < Tr::rows; ++i) {
        const float next = k_odd_[i];
        k_odd_[i] = k_even_[i];
        k_even_[i] = next;
      }
    }
  }

 private:
  template <class F>
  __device__ __forceinline__ void for_each_element(const StateView& state, const RecBlock& block, F f) {
    float* column = state.data + block.slot * state.slot_stride + (block.first_column + column_) * state.value_stride;
#pragma unroll
    for (int s = 0; s < Tr::state_columns; ++s) {
      float* head = column + (block.first_head + head_of(s) * block.head_step) * state.head_stride +
                    offset_of(s) * state.value_stride;
#pragma unroll
      for (int i = 0; i < Tr::rows; ++i) {
        const int row = i / Tr::group_rows * Tr::period + group_ * Tr::group_rows + i % Tr::group_rows;
        f(s, i, head + row * state.key_stride);
      }
    }
  }

  // Of the thread's state column s: its head, and how far its column is from the thread's first one.
  static __device__ constexpr int head_of(int s) { return s / Tr::lane_columns; }
  static __device__ constexpr int offset_of(int s) { return s % Tr::lane_columns * Tr::column_step; }

  // This thread's rows out of K values in shared memory.
  __device__ __forceinline__ void load_row(const float (&from)[Tr::K], float (&to)[Tr::rows]) const {
#pragma unroll
    for (int i = 0; i < Tr::rows; i += Tr::group_rows) {
      const float4 x =
          *reinterpret_cast<const float4*>(&from[i / Tr::group_rows * Tr::period + group_ * Tr::group_rows]);
      to[i] = x.x;
      to[i + 1] = x.y;
      to[i + 2] = x.z;
      to[i + 3] = x.w;
    }
  }

  __device__ __forceinline__ void load_token(const RecStage<Tr>& stage, int t) {
    const float4 a = *reinterpret_cast<const float4*>(stage.alpha[t]),
                 b = *reinterpret_cast<const float4*>(stage.beta[t]);
    const float alphas[] = {a.x, a.y, a.z, a.w}, betas[] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int j = 0; j < Tr::heads; ++j) {
      alpha_[j] = alphas[j];
      beta_[j] = betas[j];
    }
#pragma unroll
    for (int s = 0; s < Tr::state_columns; ++s) v_[s] = stage.v[t][head_of(s)][column_ + offset_of(s)];
  }

  // (2): this group's chain, then the sum over the eight groups in every lane.
  __device__ __forceinline__ void start_u(const float (&k)[Tr::rows]) {
    dot(k, u_);
#pragma unroll
    for (int distance = 1; distance < Tr::groups; distance *= 2) {
#pragma unroll
      for (int s = 0; s < Tr::state_columns; ++s) u_[s] += shuffle_xor(u_[s], distance);
    }
  }

  __device__ __forceinline__ void dot(const float (&x)[Tr::rows], float (&out)[Tr::state_columns]) const {
#pragma unroll
    for (int s = 0; s < Tr::state_columns; ++s) out[s] = 0.0f;
#pragma unroll
    for (int i = 0; i < Tr::rows; ++i) {
#pragma unroll
      for (int s = 0; s < Tr::state_columns; ++s) out[s] = fmaf(S_[s][i], x[i], out[s]);
    }
  }

  // k is k_t, whose registers get k_{t+2}; k_next is k_{t+1}. What the next token needs is loaded, and this token's
  // output summed, while u_{t+1} is on its way through the butterfly.
  __device__ __forceinline__ void step(const RecStage<Tr>& stage,
                                       float (&partial)[Tr::stage_tokens][Tr::heads][Tr::columns][Tr::groups], int t,
                                       float (&k)[Tr::rows], const float (&k_next)[Tr::rows]) {
#pragma unroll
    for (int s = 0; s < Tr::state_columns; ++s) {
      const float alpha = alpha_[head_of(s)], delta = fmaf(-alpha, u_[s], v_[s]) * beta_[head_of(s)];  // (3)
#pragma unroll
      for (int i = 0; i < Tr::rows; ++i) S_[s][i] = fmaf(alpha, S_[s][i], k[i] * delta);  // (4)
    }
    start_u(k_next);
    if constexpr (Tr::crowded) keep_order();
    const int next = t + 1 < Tr::stage_tokens ? t + 1 : t;
    load_row(stage.k[t + 2 <= Tr::stage_tokens ? t + 2 : t], k);
    load_token(stage, next);
    float o[Tr::state_columns];
    dot(q_, o);  // (5)
    load_row(stage.q[next], q_);
#pragma unroll
    for (int s = 0; s < Tr::state_columns; ++s) partial[t][head_of(s)][column_ + offset_of(s)][group_] = o[s];
  }

  int group_, column_;
  float S_[Tr::state_columns][Tr::rows];
  float u_[Tr::state_columns], v_[Tr::state_columns], alpha_[Tr::heads], beta_[Tr::heads];
  float k_even_[Tr::rows], k_odd_[Tr::rows], q_[Tr::rows];
};

template <class Tr>
__global__ void __launch_bounds__(Tr::threads, Tr::blocks_a_multiprocessor)
    rec_lanes_kernel(RecurrenceParams p, bool packed_rows, bool pipelined) {
  extern __shared__ float4 s_memory[];
  RecShared<Tr>& shared = *reinterpret_cast<RecShared<Tr>*>(s_memory);
  const int64_t n = blockIdx.z;
  const int64_t group = p.heads.value_heads / p.heads.key_heads, subgroups = group / Tr::heads;
  RecBlock block;
  block.key_head = blockIdx.y / subgroups;
  block.head_step = p.heads.head_map == HeadMap::grouped ? 1 : p.heads.key_heads;
  const int64_t first = blockIdx.y % subgroups * Tr::heads;
  block.first_head = p.heads.head_map == HeadMap::grouped ? block.key_head * group + first
                                                          : block.key_head + first * p.heads.key_heads;
  block.first_column = static_cast<int64_t>(blockIdx.x) * Tr::columns;
  block.rows = rows_of(p.shape, n);
  block.slot = slot_of(p.state_indices, n, p.state_in.slots > p.state_out.slots ? p.state_in.slots : p.state_out.slots);
  block.packed_rows = packed_rows;
  const int count = uniform(static_cast<int>(block.rows.count));
  const bool skipped = uniform(block.slot < 0 ? 1 : 0) != 0;
  const int stages = skipped ? 0 : (count + Tr::stage_tokens - 1) / Tr::stage_tokens;

  if (uniform(static_cast<int>(threadIdx.x) / kWarp) >= Tr::chain_threads / kWarp) {
    Feed<Tr> feed(p, block);
    if (p.shape.cu_seqlens.data != nullptr) {
      if (n == 0) feed.write_zeros(0, block.rows.first);
      if (n == p.shape.sequences - 1) feed.write_zeros(block.rows.first + count, p.shape.tokens);
    }
    if (skipped) feed.write_zeros(block.rows.first, block.rows.first + count);
    if (stages == 0) return;
#pragma unroll 1
    for (int s = -1; s < stages; ++s) {
      if (s < 0 || !pipelined) feed.fetch((s + 1) * Tr::stage_tokens);
      feed.store(shared.stage[(s + 1) % 2]);
      if (pipelined) feed.fetch((s + 2) * Tr::stage_tokens);
      if (s > 0) feed.write_outputs(shared.partial[(s - 1) % 2], (s - 1) * Tr::stage_tokens);
      block_barrier<Tr::threads>();
    }
    feed.write_outputs(shared.partial[(stages - 1) % 2], (stages - 1) * Tr::stage_tokens);
    return;
  }
  if (skipped) return;
  Chain<Tr> chain(p, block);
  if (stages > 0) {
    block_barrier<Tr::threads>();
    chain.begin(shared.stage[0]);
#pragma unroll 1
    for (int s = 0; s < stages; ++s) {
      const int left = count - s * Tr::stage_tokens;
      chain.run(shared.stage[s % 2], left < Tr::stage_tokens ? left : Tr::stage_tokens, shared.partial[s % 2]);
      block_barrier<Tr::threads>();
    }
  }
  if (p.state_out.data != nullptr) chain.save(p.state_out, block);
}

}  // namespace gdn::gpu
