// A whole layer between its projections in one launch, for few sequences, where the latency of launches and of memory
// is most of the time: the convolution with SiLU, the gates, the L2 norms, the recurrence and the output norm of T
// = 1..8 tokens; decode_layer with the states and windows in place, verify_layer with the logs of a replay instead. Bit
// for bit conv_gates and step_norm or verify_norm. Equations: docs/math.md.
//
//   tensor   shape                                strides                  dtype
//   x        [N, T, C], C = 2 H K + HV V          last 1, others any       float32, bfloat16 or float16
//   weight   [C, 4], bias [C] or absent           last 1                   any of the three
//   window   [S, C, L], L >= 3                    last 1, others any       x's, or float32
//   a, b     [N, T, HV]; A_log, dt_bias [HV]      any                      any of the three
//   state, logs, z, norm weight, y                as in step.cuh
//
// Grid: x = value heads of a key head, y = H, z = sequences; a block has a whole value head. Each block convolves its
// key head's q and k channels itself, next to its own v channels; where windows are written the value heads of a key
// head are a cluster: the windows of q and k are read by all of its blocks and written by the first. Shared memory: as
// in step.cuh; the values lie where the outputs will. Sync contract: one barrier after the convolution, one after the
// norms of keys and queries, then as in step.cuh; between the reads of windows and their writes a barrier of the
// cluster. The loads of everything but windows and state, which wait for the slot, are issued first. Precision:
// float32; between the single ops' equations values are rounded as those ops' results are.
#pragma once

#include <cstddef>

#include "cuda/conv_rows.cuh"
#include "cuda/gate_math.cuh"
#include "cuda/step.cuh"

namespace gdn::gpu {

struct LayerParams {
  StepParams step;  // q, k, v, g and beta come from the convolution and the gates
  ConvParams conv;
  GatesParams gates;
  bool packed_weights;  // a channel's weights may be one access
};

constexpr int kLayerTaps = 4;       // of the convolution
template <class Tr, StepMode mode>  // where the resource gate looks for it
constexpr int layer_shared_bytes = step_shared_bytes<Tr, mode>;

// A channel of the block: its taps, its window and its first row on their way, raw values until they are used. Later
// rows are sent for into the cache: one piece of code serves all tokens, since at this size a cold instruction cache
// counts.
class LayerChannel {
 public:
  static constexpr int older = kLayerTaps - 1;

  // Channel c of x. What does not wait for the slot.
  __device__ __forceinline__ void fetch_rows(const LayerParams& p, int n, int64_t c, int tokens) {
    const ConvParams& conv = p.conv;
    row_ = n * conv.x.stride[0] + c;
    x_ = load_raw(conv.x.data, conv.x.dtype, row_);
#pragma unroll 1
    for (int t = 1; t < tokens; ++t) prefetch(conv.x.data, conv.x.dtype, row_ + t * conv.x.stride[1]);
    weight_.load(conv.weight, c * conv.weight.stride[0], p.packed_weights);
    bias_ = conv.bias.data != nullptr ? load_raw(conv.bias.data, conv.bias.dtype, c * conv.bias.stride[0]) : 0;
  }
  __device__ __forceinline__ void fetch_window(const ConvParams& conv, int64_t slot, int64_t c) {
    const View<3>& window = conv.state_in;
#pragma unroll
    for (int j = 0; j < older; ++j) {
      old_[j] = load_raw(window.data, window.dtype,
                         slot * window.stride[0] + c * window.stride[1] + (conv.window - older + j) * window.stride[2]);
    }
  }

  // y of each token, rounded to x's dtype, to to[t * stride]. The newest columns of the next window stay in `newest`.
  __device__ __forceinline__ void convolve(const ConvParams& conv, int tokens, float* to, int stride) {
    float weight[kLayerTaps];
    weight_.widen(conv.weight.dtype, weight);
    const float bias = conv.bias.data != nullptr ? widen(bias_, conv.bias.dtype) : 0.0f;
#pragma unroll
    for (int j = 0; j < older; ++j) newest[j] = widen(old_[j], conv.state_in.dtype);
#pragma unroll 1
    for (int t = 0; t < tokens; ++t) {
      const float x = widen(x_, conv.x.dtype);
      if (t + 1 < tokens) x_ = load_raw(conv.x.data, conv.x.dtype, row_ + (t + 1) * conv.x.stride[1]);
      float sum = bias;
#pragma unroll
      for (int j = 0; j < older; ++j) sum = fmaf(weight[j], newest[j], sum);
      sum = fmaf(weight[older], x, sum);
      to[t * stride] = rounded(conv.x.dtype, exact::silu(sum));
#pragma unroll
      for (int j = 0; j + 1 < older; ++j) newest[j] = newest[j + 1];
      newest[older - 1] = x;
    }
  }

  float newest[older];

 private:
  int64_t row_;
  uint32_t x_, old_[older], bias_;
  RawPart<kLayerTaps> weight_;
};

// The block's channels: q, then k of its key head, then v of its value head. Each thread has up to `rounds` of them.
template <class Tr>
class LayerChannels {
 public:
  static constexpr int rounds = 3;
  static_assert(2 * Tr::K + 64 <= rounds * (Tr::K * 64 / kTileValues) * kWarp,
                "V = 64 has the fewest threads for its channels");
  static_assert(kMaxLayerTokens <= Tr::stage_tokens, "a layer's tokens are one stage");

  __device__ LayerChannels(const LayerParams& p, const StepBlock& block)
      : p_(p), block_(block), warp_(uniform(static_cast<int>(threadIdx.x) / kWarp)) {}

  __device__ __forceinline__ void fetch_rows() {
    for_each([&](auto& channel, int, int64_t c) { channel.fetch_rows(p_, block_.at.n, c, block_.count); });
  }
  __device__ __forceinline__ void fetch_windows() {
    for_each([&](auto& channel, int, int64_t c) { channel.fetch_window(p_.conv, block_.slot, c); });
  }
  __device__ __forceinline__ void convolve(StepStage<Tr>& stage, float* values) {
    for_each([&](auto& channel, int e, int64_t) {
      float* to = e < Tr::K ? &stage.q[0][e] : e < 2 * Tr::K ? &stage.k[0][e - Tr::K] : values + e - 2 * Tr::K;
      channel.convolve(p_.conv, block_.count, to, e < 2 * Tr::K ? Tr::K : p_.step.columns);
    });
  }
  // After every block of the key head has read its windows.
  __device__ __forceinline__ void store_windows() {
    const ConvParams& conv = p_.conv;
    if (conv.window == LayerChannel::older) {
      for_each([&](auto& channel, int e, int64_t c) {
        if (e < 2 * Tr::K && block_.first_j > 0) return;
        const int64_t at = block_.slot * conv.state_out.stride[0] + c * conv.state_out.stride[1];
#pragma unroll
        for (int j = 0; j < channel.older; ++j) {
          store(conv.state_out, at + j * conv.state_out.stride[2], channel.newest[j]);
        }
      });
      return;
    }
    const ConvRows rows = {{block_.batch, block_.first_row, block_.count}, block_.slot, true};
#pragma unroll 1
    for (int e = static_cast<int>(threadIdx.x); e < count(); e += block_.threads) {
      if (e >= 2 * Tr::K || block_.first_j == 0) slide_window(conv, rows, number(e));
    }
  }

 private:
  __device__ int count() const { return 2 * Tr::K + p_.step.columns; }
  // Channel e of the block in x.
  __device__ int64_t number(int e) const {
    const int keys = static_cast<int>(gridDim.y) * Tr::K, key = block_.at.key_head * Tr::K + e;
    if (e < Tr::K) return key;
    return e < 2 * Tr::K ? keys + key - Tr::K : 2 * keys + block_.at.head * p_.step.columns + e - 2 * Tr::K;
  }
  // f(channel, its number in the block, its number in x)
  template <class F>
  __device__ __forceinline__ void for_each(F f) {
#pragma unroll
    for (int i = 0; i < rounds; ++i) {
      const int first = warp_ * kWarp + i * block_.threads;
      if (first >= count()) break;  // whole warps: so many channels are whole warps' worth
      const int e = first + static_cast<int>(threadIdx.x) % kWarp;
      f(channel_[i], e, number(e));
    }
  }

  const LayerParams& p_;
  const StepBlock& block_;
  int warp_;
  LayerChannel channel_[rounds];
};

// Lane t of the block's last warp has the gates of token t.
template <class Tr, StepMode mode>
class LayerGates {
 public:
  __device__ LayerGates(const LayerParams& p, const StepBlock& block)
      : p_(p),
        block_(block),
        lane_(threadIdx.x % kWarp),
        mine_(static_cast<int>(threadIdx.x) / kWarp == block.threads / kWarp - 1 && lane_ < block.count) {}

  __device__ __forceinline__ void fetch() {
    if (!mine_) return;
    const GatesParams& gates = p_.gates;
    const int head = block_.at.head;
    a_ = load_raw(gates.a.data, gates.a.dtype, at(gates.a));
    b_ = load_raw(gates.b.data, gates.b.dtype, at(gates.b));
    A_log_ = load_raw(gates.A_log.data, gates.A_log.dtype, head * gates.A_log.stride[0]);
    dt_bias_ = load_raw(gates.dt_bias.data, gates.dt_bias.dtype, head * gates.dt_bias.stride[0]);
  }
  __device__ __forceinline__ void store(StepStage<Tr>& stage) {
    if (!mine_) return;
    const GatesParams& gates = p_.gates;
    const float rate = exact::exp(widen(A_log_, gates.A_log.dtype));
    const float g = log_decay(widen(a_, gates.a.dtype), rate, widen(dt_bias_, gates.dt_bias.dtype));  // (15)
    stage.alpha[lane_] = exact::exp(g);                                                               // (1)
    stage.beta[lane_] = write_strength(widen(b_, gates.b.dtype), gates.allow_neg_eigval);             // (16)
    if constexpr (writes_logs<mode>) {
      const OutView<3>& log = p_.step.rec.logs.g;
      static_cast<float*>(log.data)[block_.log_row(log.stride, lane_, block_.at.head)] = g;
    }
  }

 private:
  __device__ int64_t at(const View<4>& view) const {
    return block_.at.n * view.stride[1] + lane_ * view.stride[2] + block_.at.head * view.stride[3];
  }

  const LayerParams& p_;
  const StepBlock& block_;
  int lane_;
  bool mine_;
  uint32_t a_, b_, A_log_, dt_bias_;
};

// Keys and queries in the stage, a warp a row.
template <class Tr, StepMode mode>
__device__ __forceinline__ void normalise_rows(const RecurrenceParams& rec, const StepBlock& block,
                                               StepStage<Tr>& stage) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll 1
  for (int r = uniform(static_cast<int>(threadIdx.x) / kWarp); r < 2 * block.count; r += block.threads / kWarp) {
    const int t = r / 2;
    float* row = (r % 2 == 0 ? stage.k[t] : stage.q[t]) + lane * Tr::lane_elements;
    float x[Tr::lane_elements];
#pragma unroll
    for (int i = 0; i < Tr::lane_elements; ++i) x[i] = row[i];
    const float factor = reciprocal_root(row_sum_of_squares(x) + rec.l2_eps);
    float* log = nullptr;
    if constexpr (writes_logs<mode>) {
      log = static_cast<float*>(rec.logs.k.data) + block.log_row(rec.logs.k.stride, t, block.at.key_head) +
            lane * Tr::lane_elements;
    }
#pragma unroll
    for (int i = 0; i < Tr::lane_elements; ++i) {
      row[i] = x[i] * factor;
      if (writes_logs<mode> && r % 2 == 0 && block.writes_keys) log[i] = x[i] * factor;
    }
  }
}

template <class Tr, StepMode mode>
__global__ void __launch_bounds__(Tr::resident_threads(mode), 1)
    layer_kernel(const __grid_constant__ LayerParams GDN_GIVEN(p)) {
  GDN_IN_PLACE(LayerParams, p);
  if constexpr (writes_state<mode> && !kClusters) trap();  // code for older cards on a newer one: no silent result
  __shared__ StepStage<Tr> stage;
  extern __shared__ float outputs[];  // [stage_tokens][V]; the values before them
  trigger_dependents();
  wait_for_prerequisites();
  const RecurrenceParams& rec = p.step.rec;
  const StepBlock block = step_block<Tr, mode>(p.step);
  OutputNormRows<true> norm(p.step.norm, block.at.n, block.at.head);
  LayerChannels<Tr> channels(p, block);
  LayerGates<Tr, mode> gates(p, block);
  channels.fetch_rows();
  gates.fetch();
  norm.fetch(block.count);
  if (uniform(block.slot < 0)) {  // the whole cluster
    write_zeros<Tr, mode>(p.step, block);
    for (int e = threadIdx.x; e < block.count * p.step.columns; e += block.threads) outputs[e] = 0.0f;
    sync_lds();
    norm.run(outputs, block.count);
    return;
  }
  channels.fetch_windows();
  Tile<Tr> tile;
  const int column0 = Tile<Tr>::first_column();
  tile.load(rec.state_in, block.slot, block.at.head, column0);
  channels.convolve(stage, outputs);
  if constexpr (writes_state<mode>) arrive_in_cluster();
  gates.store(stage);
  sync_lds();
  normalise_rows<Tr, mode>(rec, block, stage);
  if constexpr (writes_state<mode>) {
    wait_for_cluster();
    channels.store_windows();
  }
  sync_lds();
  StepTokens<Tr, mode> tokens(p.step, block, stage, outputs, tile, column0);
  tokens.run(tile, 0, block.count);
  if constexpr (writes_state<mode>) tile.store(rec.state_out, block.slot, block.at.head, column0);
  sync_lds();
  norm.run(outputs, block.count);
}

template <StepMode mode>
const char* launch_layer(const ConvParams& conv, const GatesParams& gates, const RecurrenceParams& rec,
                         const NormParams& norm, const StepLaunch& how, void* stream) {
  LayerParams p = {};
  p.step.rec = rec;
  p.step.norm = output_norm(norm);
  p.conv = conv;
  p.gates = gates;
  const int64_t weight_bytes = kLayerTaps * (conv.weight.dtype == DType::f32 ? 4 : 2);
  p.packed_weights = conv.weight.stride[1] == 1 && conv.weight.stride[0] % kLayerTaps == 0 &&
                     reinterpret_cast<uintptr_t>(conv.weight.data) % static_cast<uintptr_t>(weight_bytes) == 0;
  return with_tile_traits<StepTraits, true>(rec.heads.key_dim, tile_access(rec.state_in), [&](auto traits) {
    using Tr = decltype(traits);
    return launch_by_sequences(rec.shape.sequences, [&](int first, unsigned count) {
      p.step.first_n = first;
      LaunchShape shape = divide_step<Tr, mode>(p.step, how, count);
      if (writes_state<mode>) shape.cluster = p.step.group;
      return launch_kernel(layer_kernel<Tr, mode>, shape, p, stream);
    });
  });
}

}  // namespace gdn::gpu
