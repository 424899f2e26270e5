// The rows of a convolution and their windows: what the kernels that convolve have in common.
#pragma once

#include "cuda/device.h"

#include "core/exact_math.h"
#include "core/quick_silu.h"
#include "cuda/indices.cuh"
#include "cuda/pack.cuh"

namespace gdn::gpu {

struct ConvRows {
  SequenceRows rows;
  int64_t slot;
  bool has_old;
};

// Where row t >= 0 of the sequence lies.
template <class AnyView>
__device__ __forceinline__ int64_t row_offset(const AnyView& view, const ConvRows& at, int64_t t, int64_t c) {
  return at.rows.batch * view.stride[0] + (at.rows.first + t) * view.stride[1] + c;
}

// Where row t < 0 lies: before the first one come the window's columns, the newest last.
__device__ __forceinline__ int64_t column_offset(const ConvParams& p, const ConvRows& at, int64_t t, int64_t c) {
  return at.slot * p.state_in.stride[0] + c * p.state_in.stride[1] + (p.window + t) * p.state_in.stride[2];
}
__device__ __forceinline__ float load_column(const ConvParams& p, const ConvRows& at, int64_t t, int64_t c) {
  return at.has_old ? load(p.state_in, column_offset(p, at, t, c)) : 0.0f;
}

// Row number of the token `age` tokens before t along its branch; negative from the window's newest column on.
__device__ __forceinline__ int64_t ancestor(const IndexView<2>& parents, int64_t n, int64_t t, int64_t age) {
  if (parents.data == nullptr) return t - age;
  for (; age > 0 && t >= 0; --age) t = parent_of(parents, n, t);
  return t >= 0 ? t : t - age;
}

// A row of y from the sums over the taps.
template <class Element, int channels>
__device__ __forceinline__ void store_row(Element* y, const float (&sum)[channels], Activation activation) {
  Pack<Element, channels> pack;
  if constexpr (sizeof(Element) == 2 && channels % 2 == 0) {
    if (activation == Activation::silu) {
      bool decided = true;
#pragma unroll
      for (int w = 0; w < channels / 2; ++w) {
        const float first = sum[2 * w], second = sum[2 * w + 1];
        const quick::Rounded both = quick::round_both<Element>(first * quick::sigmoid(first, Approximate{}),
                                                               second * quick::sigmoid(second, Approximate{}));
        pack.word[w] = both.word;
        decided = both.decided && quick::in_range(first) && quick::in_range(second) && decided;
      }
      if (__builtin_expect(decided, true)) {
        *reinterpret_cast<Pack<Element, channels>*>(y) = pack;
        return;
      }
    }
  }
  float exact_y[channels];
#pragma unroll
  for (int i = 0; i < channels; ++i) exact_y[i] = activation == Activation::silu ? exact::silu(sum[i]) : sum[i];
  pack.narrow(exact_y);
  *reinterpret_cast<Pack<Element, channels>*>(y) = pack;
}

// The window after the sequence: column j becomes element count + j of (old window, rows). Reads stay ahead of writes.
__device__ __forceinline__ void slide_window(const ConvParams& p, const ConvRows& at, int64_t c) {
  for (int64_t j = 0; j < p.window; ++j) {
    const int64_t t = at.rows.count + j - p.window;
    const float value = t >= 0 ? load(p.x, row_offset(p.x, at, t, c)) : load_column(p, at, t, c);
    store(p.state_out, at.slot * p.state_out.stride[0] + c * p.state_out.stride[1] + j * p.state_out.stride[2], value);
  }
}

}  // namespace gdn::gpu
