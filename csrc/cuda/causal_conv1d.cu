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
// is computed by one thread from its own inputs.
#include "cuda/device.h"

#include "core/exact_math.h"
#include "cuda/indices.cuh"
#include "cuda/launch.h"

namespace gdn::gpu {
namespace {

struct ConvTraits {
  static constexpr int block_threads = 128;
  static constexpr int stage_tokens = 32;
  static constexpr int batch_tokens = 4;  // rows in flight in a thread

  static_assert(stage_tokens % batch_tokens == 0, "a stage is a whole number of batches");
};

template <class Element, int channels>
struct alignas(sizeof(Element) * channels) ConvPack {
  Element e[channels];
};

struct ConvRows {
  SequenceRows rows;
  int64_t slot;
  bool has_old;
};

// Row t of the sequence: before its first one the window's columns, the newest last.
template <class Element, int channels>
__device__ __forceinline__ void load_row(const ConvParams& p, const ConvRows& at, int64_t t, int64_t c,
                                         float (&out)[channels]) {
  if (t >= 0) {
    const int64_t offset = at.rows.batch * p.x.stride[0] + (at.rows.first + t) * p.x.stride[1] + c;
    const auto pack =
        *reinterpret_cast<const ConvPack<Element, channels>*>(static_cast<const Element*>(p.x.data) + offset);
#pragma unroll
    for (int i = 0; i < channels; ++i) out[i] = to_f32(pack.e[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < channels; ++i) {
    out[i] = at.has_old ? load(p.state_in, at.slot * p.state_in.stride[0] + (c + i) * p.state_in.stride[1] +
                                               (p.window + t) * p.state_in.stride[2])
                        : 0.0f;
  }
}

template <class Element, int channels>
__device__ __forceinline__ void store_row(const ConvParams& p, const ConvRows& at, int64_t t, int64_t c,
                                          const float (&y)[channels]) {
  ConvPack<Element, channels> pack;
#pragma unroll
  for (int i = 0; i < channels; ++i) pack.e[i] = from_f32<Element>(y[i]);
  const int64_t offset = at.rows.batch * p.y.stride[0] + (at.rows.first + t) * p.y.stride[1] + c;
  *reinterpret_cast<ConvPack<Element, channels>*>(static_cast<Element*>(p.y.data) + offset) = pack;
}

// The window after the sequence: column j becomes element count + j of (old window, rows). Reads stay ahead of writes.
__device__ __forceinline__ void slide_window(const ConvParams& p, const ConvRows& at, int64_t c) {
  for (int64_t j = 0; j < p.window; ++j) {
    const int64_t t = at.rows.count + j - p.window;  // a row, or where negative a column of the old window
    float value = 0.0f;
    if (t >= 0) {
      value = load(p.x, at.rows.batch * p.x.stride[0] + (at.rows.first + t) * p.x.stride[1] + c);
    } else if (at.has_old) {
      value = load(p.state_in,
                   at.slot * p.state_in.stride[0] + c * p.state_in.stride[1] + (p.window + t) * p.state_in.stride[2]);
    }
    store(p.state_out, at.slot * p.state_out.stride[0] + c * p.state_out.stride[1] + j * p.state_out.stride[2], value);
  }
}

// Row number of the token `age` tokens before t along its branch; negative from the window's newest column on.
__device__ __forceinline__ int64_t ancestor(const ConvParams& p, int64_t n, int64_t t, int64_t age) {
  if (p.parents.data == nullptr) return t - age;
  for (; age > 0 && t >= 0; --age) {
    const int64_t parent = index_at(p.parents, n * p.parents.stride[0] + t * p.parents.stride[1]);
    t = parent >= 0 && parent < t ? parent : -1;
  }
  return t >= 0 ? t : t - age;
}

// width 0: any number of taps, and trees. The taps are then read from memory for every output, and one stage has all
// tokens: in place, a later stage could still need the window that the first one slides.
template <class Element, int channels, int width>
__global__ void __launch_bounds__(ConvTraits::block_threads) causal_conv1d_kernel(ConvParams p, int64_t stage_tokens) {
  const int64_t n = blockIdx.z, first_token = static_cast<int64_t>(blockIdx.y) * stage_tokens;
  const int64_t c = (static_cast<int64_t>(blockIdx.x) * ConvTraits::block_threads + threadIdx.x) * channels;
  ConvRows at;
  at.rows = rows_of(p.shape, n);
  at.slot = slot_of(p.state_indices, n, p.slots);
  at.has_old = p.state_in.data != nullptr && starts_from_state(p.has_initial_state, n);
  if (c >= p.channels) return;
  const float zeros[channels] = {};
  if (blockIdx.y == 0 && p.shape.cu_seqlens.data != nullptr) {  // rows that no sequence covers
    if (n == 0) {
      for (int64_t t = -at.rows.first; t < 0; ++t) store_row<Element>(p, at, t, c, zeros);
    }
    if (n == p.shape.sequences - 1) {
      for (int64_t t = at.rows.count; t < p.shape.tokens - at.rows.first; ++t) store_row<Element>(p, at, t, c, zeros);
    }
  }
  const int64_t end = first_token + stage_tokens < at.rows.count ? first_token + stage_tokens : at.rows.count;
  if (at.slot < 0) {
    for (int64_t t = first_token; t < end; ++t) store_row<Element>(p, at, t, c, zeros);
    return;
  }

  float bias[channels];
#pragma unroll
  for (int i = 0; i < channels; ++i) bias[i] = p.bias.data != nullptr ? load(p.bias, (c + i) * p.bias.stride[0]) : 0.0f;
  if constexpr (width > 0) {
    float weight[width][channels], taps[width][channels];
#pragma unroll
    for (int j = 0; j < width; ++j) {
#pragma unroll
      for (int i = 0; i < channels; ++i) weight[j][i] = load(p.weight, (c + i) * p.weight.stride[0] + j);
    }
#pragma unroll
    for (int j = 0; j + 1 < width; ++j) load_row<Element>(p, at, first_token + j - (width - 1), c, taps[j]);
    if (blockIdx.y == 0 && p.state_out.data != nullptr) {
#pragma unroll
      for (int i = 0; i < channels; ++i) slide_window(p, at, c + i);
    }
    // A batch of rows is loaded before any of its outputs is stored: loads do not pass stores to memory that may be
    // theirs.
    for (int64_t t0 = first_token; t0 < end; t0 += ConvTraits::batch_tokens) {
      float rows[ConvTraits::batch_tokens][channels];
#pragma unroll
      for (int u = 0; u < ConvTraits::batch_tokens; ++u) {
        load_row<Element>(p, at, t0 + u < end ? t0 + u : end - 1, c, rows[u]);
      }
#pragma unroll
      for (int u = 0; u < ConvTraits::batch_tokens; ++u) {
        if (t0 + u >= end) break;
        float y[channels];
#pragma unroll
        for (int i = 0; i < channels; ++i) {
          taps[width - 1][i] = rows[u][i];
          float sum = bias[i];
#pragma unroll
          for (int j = 0; j < width; ++j) sum = fmaf(weight[j][i], taps[j][i], sum);
          y[i] = p.activation == Activation::silu ? exact::silu(sum) : sum;
#pragma unroll
          for (int j = 0; j + 1 < width; ++j) taps[j][i] = taps[j + 1][i];
        }
        store_row<Element>(p, at, t0 + u, c, y);
      }
    }
  } else {
    for (int64_t t = first_token; t < end; ++t) {
      float y[channels];
#pragma unroll
      for (int i = 0; i < channels; ++i) y[i] = bias[i];
      for (int64_t j = 0; j < p.width; ++j) {
        float tap[channels];
        load_row<Element>(p, at, ancestor(p, n, t, p.width - 1 - j), c, tap);
#pragma unroll
        for (int i = 0; i < channels; ++i) y[i] = fmaf(load(p.weight, (c + i) * p.weight.stride[0] + j), tap[i], y[i]);
      }
#pragma unroll
      for (int i = 0; i < channels; ++i) y[i] = p.activation == Activation::silu ? exact::silu(y[i]) : y[i];
      store_row<Element>(p, at, t, c, y);
    }
    if (blockIdx.y == 0 && p.state_out.data != nullptr) {
#pragma unroll
      for (int i = 0; i < channels; ++i) slide_window(p, at, c + i);
    }
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
  constexpr int64_t pack_bytes = sizeof(ConvPack<Element, channels>);
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
