// causal_conv1d: causal depthwise convolution with its sliding windows (docs/math.md, the convolution): an fma chain
// from the bias over the taps from the oldest to the newest, then SiLU.
//
//   tensor  shape          strides             dtype
//   x, y    [B, T, C]      last 1, others any  float32, bfloat16 or float16
//   weight  [C, W]         last 1              any of the three
//   bias    [C]            1                   any of the three, or absent
//   state   [S, C, L]      last 1, others any  x's, or float32; L >= W-1, newest column last
//
// Grid: x = blocks of channels, y = stages of tokens, z = sequences. A thread owns `channels` neighbouring channels for
// a stage of tokens and walks down the rows with the last W-1 values in registers. Shared memory: none. Barriers: none:
// a window is read and written by the thread that has its channel in the first stage. Precision: float32; each output
// is computed by one thread from its own inputs; 16-bit outputs by core/quick_silu.h where it can decide them.
#include "cuda/device.h"

#include "cuda/conv_rows.cuh"
#include "cuda/indices.cuh"
#include "cuda/launch.h"
#include "cuda/pack.cuh"

namespace gdn::gpu {
namespace {

struct ConvTraits {
  static constexpr int block_threads = 128;
  // Blocks of a multiprocessor that the registers leave room for.
  static constexpr int resident_blocks(size_t element_bytes) { return element_bytes > 2 ? 4 : 5; }
  static constexpr int stage_tokens = 32;
  static constexpr int batch_tokens = 4;  // rows in flight in a thread

  static_assert(stage_tokens % batch_tokens == 0, "a stage is a whole number of batches");
};

// Where row t >= 0 of the sequence lies.
template <class Element, class AnyView>
__device__ __forceinline__ auto* row_at(const AnyView& view, const ConvRows& at, int64_t t, int64_t c) {
  return static_cast<Element*>(view.data) + row_offset(view, at, t, c);
}

template <int channels, class Element>
__device__ __forceinline__ Pack<Element, channels> load_pack(const Element* at) {
  return *reinterpret_cast<const Pack<Element, channels>*>(at);
}

// Row t of the sequence: before its first one the window's columns, the newest last.
template <class Element, int channels>
__device__ __forceinline__ void load_row(const ConvParams& p, const ConvRows& at, int64_t t, int64_t c,
                                         float (&out)[channels]) {
  if (t >= 0) return load_pack<channels>(row_at<const Element>(p.x, at, t, c)).widen(out);
#pragma unroll
  for (int i = 0; i < channels; ++i) out[i] = load_column(p, at, t, c + i);
}

template <class Element, int channels>
__device__ __forceinline__ void store_zeros(const ConvParams& p, const ConvRows& at, int64_t t, int64_t c) {
  *reinterpret_cast<Pack<Element, channels>*>(row_at<Element>(p.y, at, t, c)) = {};
}

// What a thread needs to know of a channel.
template <int channels>
__device__ __forceinline__ void load_bias(const ConvParams& p, int64_t c, float (&bias)[channels]) {
#pragma unroll
  for (int i = 0; i < channels; ++i) bias[i] = p.bias.data != nullptr ? load(p.bias, (c + i) * p.bias.stride[0]) : 0.0f;
}

// Rows [first, end) of the sequence by the taps in registers. `window`: width - 1 rows before the batch, then the
// batch.
template <class Element, int channels, int width>
class ConvTaps {
 public:
  __device__ __forceinline__ ConvTaps(const ConvParams& p, const ConvRows& at, int64_t first, int64_t c)
      : activation_(p.activation),
        x_stride_(p.x.stride[1]),
        y_stride_(p.y.stride[1]),
        x_(row_at<const Element>(p.x, at, first, c)),
        y_(row_at<Element>(p.y, at, first, c)) {
    load_bias(p, c, bias_);
    with_element_of(p.weight.dtype, [&](auto element) {
      const auto* weight = static_cast<const decltype(element)*>(p.weight.data) + c * p.weight.stride[0];
#pragma unroll
      for (int i = 0; i < channels; ++i) {
#pragma unroll
        for (int j = 0; j < width; ++j) weight_[j][i] = to_f32(weight[i * p.weight.stride[0] + j]);
      }
    });
#pragma unroll
    for (int j = 0; j < older; ++j) load_row<Element>(p, at, first + j - older, c, window_[j]);
  }

  __device__ __forceinline__ void run(int tokens) {
    int t = 0;
    if (tokens >= batch) {
      Pack<Element, channels> ahead[batch];
      fetch(ahead);
#pragma unroll 1
      for (; t + batch <= tokens; t += batch) {
#pragma unroll
        for (int u = 0; u < batch; ++u) ahead[u].widen(window_[older + u]);
        // Loads do not pass stores to memory that may be theirs: the next batch is on its way before this one's
        // outputs.
        if (t + 2 * batch <= tokens) fetch(ahead);
#pragma unroll
        for (int u = 0; u < batch; ++u) step(u);
        keep(batch);
      }
    }
#pragma unroll 1
    for (; t < tokens; ++t) {
      load_pack<channels>(x_).widen(window_[older]);
      x_ += x_stride_;
      step(0);
      keep(1);
    }
  }

 private:
  static constexpr int older = width - 1, batch = ConvTraits::batch_tokens;

  __device__ __forceinline__ void fetch(Pack<Element, channels> (&rows)[batch]) {
#pragma unroll
    for (int u = 0; u < batch; ++u) rows[u] = load_pack<channels>(x_ + u * x_stride_);
    x_ += batch * x_stride_;
  }
  // The output of window row older + u.
  __device__ __forceinline__ void step(int u) {
    float sum[channels];
#pragma unroll
    for (int i = 0; i < channels; ++i) {
      sum[i] = bias_[i];
#pragma unroll
      for (int j = 0; j < width; ++j) sum[i] = fmaf(weight_[j][i], window_[u + j][i], sum[i]);
    }
    store_row(y_, sum, activation_);
    y_ += y_stride_;
  }
  __device__ __forceinline__ void keep(int done) {
#pragma unroll
    for (int j = 0; j < older; ++j) {
#pragma unroll
      for (int i = 0; i < channels; ++i) window_[j][i] = window_[done + j][i];
    }
  }

  Activation activation_;
  int64_t x_stride_, y_stride_;
  const Element* x_;
  Element* y_;
  float bias_[channels], weight_[width][channels], window_[width - 1 + batch][channels];
};

// width 0: any number of taps, and trees. The taps are then read from memory for every output, and one stage has all
// tokens: in place, a later stage could still need the window that the first one slides.
template <class Element, int channels, int width>
__global__ void __launch_bounds__(ConvTraits::block_threads, ConvTraits::resident_blocks(sizeof(Element)))
    causal_conv1d_kernel(ConvParams p, int64_t stage_tokens) {
  const int64_t n = blockIdx.z, first_token = static_cast<int64_t>(blockIdx.y) * stage_tokens;
  const int64_t c = (static_cast<int64_t>(blockIdx.x) * ConvTraits::block_threads + threadIdx.x) * channels;
  ConvRows at;
  at.rows = rows_of(p.shape, n);
  at.slot = slot_of(p.state_indices, n, p.slots);
  at.has_old = p.state_in.data != nullptr && starts_from_state(p.has_initial_state, n);
  if (c >= p.channels) return;
  if (blockIdx.y == 0 && p.shape.cu_seqlens.data != nullptr) {  // rows that no sequence covers
    if (n == 0) {
      for (int64_t t = -at.rows.first; t < 0; ++t) store_zeros<Element, channels>(p, at, t, c);
    }
    if (n == p.shape.sequences - 1) {
      for (int64_t t = at.rows.count; t < p.shape.tokens - at.rows.first; ++t) {
        store_zeros<Element, channels>(p, at, t, c);
      }
    }
  }
  // A grid has stages for the longest sequence: past the end of this one there is nothing, not even rows to read.
  if (blockIdx.y > 0 && first_token >= at.rows.count) return;
  const int64_t end = first_token + stage_tokens < at.rows.count ? first_token + stage_tokens : at.rows.count;
  if (at.slot < 0) {
    for (int64_t t = first_token; t < end; ++t) store_zeros<Element, channels>(p, at, t, c);
    return;
  }
  const auto slide = [&] {
    if (blockIdx.y != 0 || p.state_out.data == nullptr) return;
#pragma unroll 1
    for (int i = 0; i < channels; ++i) slide_window(p, at, c + i);
  };
  if constexpr (width > 0) {
    ConvTaps<Element, channels, width> taps(p, at, first_token, c);
    slide();
    if (first_token < end) taps.run(static_cast<int>(end - first_token));
  } else {
    float bias[channels];
    load_bias(p, c, bias);
    for (int64_t t = first_token; t < end; ++t) {
      float sum[channels];
#pragma unroll
      for (int i = 0; i < channels; ++i) sum[i] = bias[i];
      for (int64_t j = 0; j < p.width; ++j) {
        float tap[channels];
        load_row<Element>(p, at, ancestor(p.parents, n, t, p.width - 1 - j), c, tap);
#pragma unroll
        for (int i = 0; i < channels; ++i) {
          sum[i] = fmaf(load(p.weight, (c + i) * p.weight.stride[0] + j), tap[i], sum[i]);
        }
      }
      store_row(row_at<Element>(p.y, at, t, c), sum, p.activation);
    }
    slide();
  }
}

template <class Element, int channels, int width>
void launch(const ConvParams& p, void* stream) {
  const int64_t stage_tokens = width > 0 ? ConvTraits::stage_tokens : p.shape.tokens > 0 ? p.shape.tokens : 1;
  const int64_t stages = (p.shape.tokens + stage_tokens - 1) / stage_tokens;
  const int64_t block_channels = static_cast<int64_t>(ConvTraits::block_threads) * channels;
  const dim3 grid(static_cast<unsigned>((p.channels + block_channels - 1) / block_channels),
                  static_cast<unsigned>(stages > 0 ? stages : 1), static_cast<unsigned>(p.shape.sequences));
  causal_conv1d_kernel<Element, channels, width>
      <<<grid, ConvTraits::block_threads, 0, static_cast<Stream>(stream)>>>(p, stage_tokens);
}

template <class Element, int channels>
void launch_width(const ConvParams& p, void* stream) {
  static_assert(ConvTraits::stage_tokens >= 4 - 1, "only the first stage reads the window");
  if (p.parents.data != nullptr) return launch<Element, channels, 0>(p, stream);
  switch (p.width) {
    case 2: return launch<Element, channels, 2>(p, stream);
    case 3: return launch<Element, channels, 3>(p, stream);
    case 4: return launch<Element, channels, 4>(p, stream);
    default: return launch<Element, channels, 0>(p, stream);
  }
}

template <class Element>
void launch_channels(const ConvParams& p, void* stream) {
  constexpr int channels = 4;
  constexpr int64_t pack_bytes = sizeof(Pack<Element, channels>);
  const auto aligned = [](const void* data, const int64_t (&stride)[3]) {
    return reinterpret_cast<uintptr_t>(data) % pack_bytes == 0 && stride[0] % channels == 0 &&
           stride[1] % channels == 0;
  };
  if (p.channels % channels == 0 && aligned(p.x.data, p.x.stride) && aligned(p.y.data, p.y.stride)) {
    launch_width<Element, channels>(p, stream);
  } else {
    launch_width<Element, 1>(p, stream);
  }
}

}  // namespace

const char* causal_conv1d(const ConvParams& params, void* stream) {
  if (params.shape.sequences == 0 || params.channels == 0) return nullptr;
  switch (params.x.dtype) {
    case DType::bf16: launch_channels<bf16>(params, stream); break;
    case DType::f16: launch_channels<f16>(params, stream); break;
    case DType::f32: launch_channels<float>(params, stream); break;
  }
  return launch_error();
}

}  // namespace gdn::gpu
