// conv_l2: what a fused layer computes before its recurrence, in one launch (GDN_CONVL2=1): the convolution with SiLU
// and its windows, the L2 norm of queries and keys, and the gates (docs/math.md, the convolution, the norm, (15),
// (16)). The step then has nothing to normalise, which each of a key head's blocks does again for itself after
// conv_gates. The bits of causal_conv1d, gdn_gates and the recurrence's own norm: y is rounded to x's dtype, what is
// normalised is not.
//
//   tensor          shape            strides                       dtype
//   x               [N, T, C]        last 1, others any            float32, bfloat16 or float16; T from 1 to 8
//   q, k            [N, T, H, K]     contiguous                    float32
//   y               [N, T, C]        last 1, others any            x's; only v's channels are written
//   weight, bias, windows, a, b, A_log, dt_bias, g, beta           as in conv_gates.cu
//
// Grid: x = blocks of gates, then H heads of q and H of k, then blocks of K channels of v; z = sequences. Block: x = a
// warp, y = tokens. Lane l has the K/32 consecutive channels from l K/32 (the order of sums of docs/contract.md).
// Two forms: packed, for W = 4, a window of three columns, one dtype of x, weights and windows, and rows, weights and
// windows that a lane reads in whole words; and one for everything else. Shared memory: none. Barriers: one, where
// windows are slid over more than one token: every thread of the block arrives once it has read its taps. Precision:
// float32; each output comes from its own inputs alone.
#include "cuda/device.h"

#include "cuda/conv_rows.cuh"
#include "cuda/gate_rows.cuh"
#include "cuda/head_rows.cuh"
#include "cuda/launch.h"

namespace gdn::gpu {
namespace {

struct ConvL2KernelParams {
  ConvParams conv;
  GateRows gates;
  float *q, *k;  // [N, T, H, K]
  float l2_eps;
  int key_heads, gate_blocks, first_n;
};

constexpr int kTaps = 4, kColumns = kTaps - 1;  // of the packed form

// The packed form's window of a lane's channels, the columns of a channel side by side, in words of two elements.
template <class Element, int channels>
struct Window {
  static constexpr int words = channels * kColumns / 2;
  Pack<Element, 2> pair[words];

  static __device__ __forceinline__ Window* at(const ConvParams& p, int64_t slot, int64_t c) {
    const int64_t first = slot * p.state_in.stride[0] + c * kColumns;
    return reinterpret_cast<Window*>(static_cast<Element*>(const_cast<void*>(p.state_in.data)) + first);
  }
  __device__ __forceinline__ void widen(float (&column)[kColumns][channels]) const {
#pragma unroll
    for (int w = 0; w < words; ++w) {
      float two[2];
      pair[w].widen(two);
      column[2 * w % kColumns][2 * w / kColumns] = two[0];
      column[(2 * w + 1) % kColumns][(2 * w + 1) / kColumns] = two[1];
    }
  }
  __device__ __forceinline__ void narrow(const float (&tap)[kTaps][channels]) {
#pragma unroll
    for (int w = 0; w < words; ++w) {
      const float two[2] = {tap[1 + 2 * w % kColumns][2 * w / kColumns],
                            tap[1 + (2 * w + 1) % kColumns][(2 * w + 1) / kColumns]};
      pair[w].narrow(two);
    }
  }
};

// A lane's channels [c, c + channels) of token t: the taps and the sums over them.
template <class Element, int channels>
struct PackedTaps {
  float value[kTaps][channels];

  __device__ __forceinline__ void add(const ConvParams& p, const ConvRows& at, int t, int64_t c,
                                      float (&sum)[channels]) {
    const auto* x = static_cast<const Element*>(p.x.data);
    const Pack<Element, kTaps * channels> weights = *reinterpret_cast<const Pack<Element, kTaps * channels>*>(
        static_cast<const Element*>(p.weight.data) + c * kTaps);
    int row[kTaps];
    Pack<Element, channels> tap[kTaps] = {};
    Window<Element, channels> window = {};
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      row[j] = static_cast<int>(ancestor(p.parents, at.rows.batch, t, kColumns - j));
      if (row[j] >= 0) tap[j] = *reinterpret_cast<const Pack<Element, channels>*>(x + row_offset(p.x, at, row[j], c));
    }
    if (row[0] < 0) window = *Window<Element, channels>::at(p, at.slot, c);
    float weight[kTaps * channels], column[kColumns][channels];
    weights.widen(weight);
    window.widen(column);
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      tap[j].widen(value[j]);
#pragma unroll
      for (int i = 0; i < channels; ++i) {
        const float newest = column[2][i], middle = column[1][i], oldest = column[0][i];
        const float older = row[j] == -1 ? newest : row[j] == -2 ? middle : oldest;
        value[j][i] = row[j] < 0 ? older : value[j][i];
        sum[i] = fmaf(weight[i * kTaps + j], value[j][i], sum[i]);
      }
    }
  }
  // The newest columns are the last token's taps.
  __device__ __forceinline__ void store_window(const ConvParams& p, int64_t slot, int64_t c) const {
    Window<Element, channels> window;
    window.narrow(value);
    *Window<Element, channels>::at(p, slot, c) = window;
  }
};
template <int channels>
__device__ __forceinline__ void any_taps(const ConvParams& p, const ConvRows& at, int t, int64_t c,
                                         float (&sum)[channels]) {
  const int width = static_cast<int>(p.width);
#pragma unroll 1
  for (int j = 0; j < width; ++j) {
    const int64_t row = ancestor(p.parents, at.rows.batch, t, width - 1 - j);
#pragma unroll
    for (int i = 0; i < channels; ++i) {
      const float tap = row >= 0 ? load(p.x, row_offset(p.x, at, row, c + i)) : load_column(p, at, row, c + i);
      sum[i] = fmaf(load(p.weight, (c + i) * p.weight.stride[0] + j), tap, sum[i]);
    }
  }
}

template <class Element, int channels, bool packed>
__global__ void __launch_bounds__(kWarp* kMaxLayerTokens, 1)
    conv_l2_kernel(const __grid_constant__ ConvL2KernelParams GDN_GIVEN(params)) {
  GDN_IN_PLACE(ConvL2KernelParams, params);
  const ConvParams& p = params.conv;
  constexpr int K = kWarp * channels;
  const int n = params.first_n + static_cast<int>(blockIdx.z), t = uniform(static_cast<int>(threadIdx.y)),
            lane = static_cast<int>(threadIdx.x), tokens = static_cast<int>(blockDim.y);
  if (static_cast<int>(blockIdx.x) < params.gate_blocks) {
    params.gates.run(n, t, tokens, blockIdx.x * kWarp + lane);
    return;
  }
  const int row = static_cast<int>(blockIdx.x) - params.gate_blocks;  // of K channels
  const int64_t c = static_cast<int64_t>(row) * K + lane * channels;
  const bool inside = c < p.channels;  // V < K may leave lanes of the last block without channels
  const ConvRows at = {{n, 0, tokens}, slot_of(p.state_indices, n, p.slots), true};
  Pack<Element, channels> y = {};
  PackedTaps<Element, channels> taps;
  if (at.slot >= 0 && inside) {
    float sum[channels];
#pragma unroll
    for (int i = 0; i < channels; ++i) sum[i] = p.bias.data != nullptr ? load(p.bias, c + i) : 0.0f;
    if constexpr (packed) {
      taps.add(p, at, t, c, sum);
    } else {
      any_taps(p, at, t, c, sum);
    }
    store_row(reinterpret_cast<Element*>(&y), sum, Activation::silu);
  }
  if (row < 2 * params.key_heads) {
    float x[channels], sum = 0.0f;
    y.widen(x);
#pragma unroll
    for (int i = 0; i < channels; ++i) sum = fmaf(x[i], x[i], sum);
    const float factor = reciprocal_root(warp_sum(sum) + params.l2_eps);
#pragma unroll
    for (int i = 0; i < channels; ++i) x[i] = x[i] * factor;
    const bool key = row >= params.key_heads;
    const int64_t head = row - (key ? params.key_heads : 0);
    Pack<float, channels> pack;
    pack.narrow(x);
    *reinterpret_cast<Pack<float, channels>*>((key ? params.k : params.q) +
                                              ((static_cast<int64_t>(n) * tokens + t) * params.key_heads + head) * K +
                                              lane * channels) = pack;
  } else if (inside) {
    *reinterpret_cast<Pack<Element, channels>*>(static_cast<Element*>(p.y.data) + row_offset(p.y, at, t, c)) = y;
  }
  if (p.state_out.data == nullptr || at.slot < 0) return;
  if (tokens > 1) sync_block();  // the windows of the block have been read
  if (t != tokens - 1 || !inside) return;
  if constexpr (packed) {
    taps.store_window(p, at.slot, c);
  } else {
#pragma unroll 1
    for (int i = 0; i < channels; ++i) slide_window(p, at, c + i);
  }
}

bool is_aligned(const void* data, int64_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; }

template <class Element, int channels>
bool is_packed(const ConvParams& p) {
  constexpr int64_t size = sizeof(Element), row = alignof(Pack<Element, channels>),
                    weights = alignof(Pack<Element, kTaps * channels>), window = alignof(Pack<Element, 2>);
  const DType dtype = p.x.dtype;
  return p.width == kTaps && p.window == kColumns && p.weight.dtype == dtype && p.state_in.dtype == dtype &&
         p.weight.stride[0] == kTaps && p.state_in.stride[1] == kColumns && p.state_in.stride[2] == 1 &&
         is_aligned(p.x.data, row) && (p.x.stride[0] | p.x.stride[1]) * size % row == 0 &&
         is_aligned(p.weight.data, weights) && is_aligned(p.state_in.data, window) &&
         p.state_in.stride[0] * size % window == 0;
}

template <class Element, int channels>
const char* launch(ConvL2KernelParams& params, int64_t value_heads, void* stream) {
  const ConvParams& p = params.conv;
  constexpr int64_t K = kWarp * channels;
  params.gate_blocks = static_cast<int>((value_heads + kWarp - 1) / kWarp);
  const dim3 block(kWarp, static_cast<unsigned>(p.shape.tokens));
  const auto blocks = static_cast<unsigned>(params.gate_blocks + (p.channels + K - 1) / K);
  const auto kernel = is_packed<Element, channels>(p) ? conv_l2_kernel<Element, channels, true>
                                                      : conv_l2_kernel<Element, channels, false>;
  return launch_by_sequences(p.shape.sequences, [&](int first_n, unsigned count) {
    params.first_n = first_n;
    return launch_kernel(kernel, {dim3(blocks, 1, count), block}, params, stream);
  });
}

}  // namespace

const char* conv_l2(const ConvParams& conv, const GatesParams& gates, const HeadShape& heads, float l2_eps, float* q,
                    float* k, void* stream) {
  ConvL2KernelParams params = {};
  params.conv = conv;
  params.gates = gate_rows(gates);
  params.q = q;
  params.k = k;
  params.l2_eps = l2_eps;
  params.key_heads = static_cast<int>(heads.key_heads);
  const char* refused = nullptr;
  with_row_type(conv.x.dtype, heads.key_dim, [&](auto element, auto elements) {
    refused = launch<decltype(element), decltype(elements)::value>(params, heads.value_heads, stream);
  });
  return refused;
}

}  // namespace gdn::gpu
