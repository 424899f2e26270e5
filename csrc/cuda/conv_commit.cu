// conv_commit: convolution windows slid over the accepted rows of an earlier verify, all layers (docs/math.md, the
// convolution): column j of the new window is element count + j of (old window, accepted rows).
//
//   tensor  shape        strides             dtype
//   state   [S, C, L]    last 1, others any  x's, or float32; one a layer
//   x       [N, T, C]    last 1, others any  float32, bfloat16 or float16; one a layer
//
// Grid: x = blocks of channels, y = layers, z = sequences; a thread a channel. Reads stay ahead of writes within a
// thread's own window. Shared memory and barriers: none. Values are moved, not computed.
#include "cuda/device.h"

#include <algorithm>

#include "cuda/launch.h"
#include "cuda/replay.cuh"

namespace gdn::gpu {
namespace {

constexpr int kThreads = 128;
// Kernel parameters are at most 4 KB everywhere.
constexpr int kMostLayers = 200;
struct LayerData {
  void* state;
  const void* x;
};
struct ConvCommitKernelParams {
  AcceptedShape accepted;
  int64_t channels, window, slots;
  OutView<3> state;  // of every layer, but for its address
  View<3> x;
  int32_t first_n, num_layers;
  LayerData layer[kMostLayers];
};
static_assert(sizeof(ConvCommitKernelParams) <= 4096, "kernel parameters are at most 4 KB");

__global__ void __launch_bounds__(kThreads) conv_commit_kernel(const __grid_constant__ ConvCommitKernelParams p) {
  const int64_t n = p.first_n + static_cast<int64_t>(blockIdx.z);
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t slot = slot_of(p.accepted.state_indices, n, p.slots);
  if (c >= p.channels || slot < 0) return;
  int count = accepted_count(p.accepted, n);
  if (p.accepted.path.data != nullptr) {  // a path may end early
    int valid = 0;
    while (valid < count && accepted_row(p.accepted, n, valid) >= 0) ++valid;
    count = valid;
  }
  if (count == 0) return;
  const LayerData& layer = p.layer[blockIdx.y];
  const int64_t row = slot * p.state.stride[0] + c * p.state.stride[1];
  const int64_t shift = count < p.window ? count : p.window;
  const auto move = [&](auto element) {
    using Element = decltype(element);
    auto* window = static_cast<Element*>(layer.state) + row;
    for (int64_t j = 0; j + shift < p.window; ++j) {
      window[j * p.state.stride[2]] = window[(j + shift) * p.state.stride[2]];
    }
    for (int64_t j = p.window - shift; j < p.window; ++j) {
      const int64_t t = accepted_row(p.accepted, n, count - (p.window - j));
      const float x =
          widen(load_raw(layer.x, p.x.dtype, n * p.x.stride[0] + t * p.x.stride[1] + c * p.x.stride[2]), p.x.dtype);
      window[j * p.state.stride[2]] = from_f32<Element>(x);
    }
  };
  with_element_of(p.state.dtype, move);
}

bool same(const ConvCommitLayer& a, const ConvCommitLayer& b) {
  return std::equal(a.state.stride, a.state.stride + 3, b.state.stride) && a.state.dtype == b.state.dtype &&
         std::equal(a.x.stride, a.x.stride + 3, b.x.stride) && a.x.dtype == b.x.dtype;
}

}  // namespace

const char* conv_commit(const ConvCommitParams& params, void* stream) {
  if (params.channels == 0) return nullptr;
  ConvCommitKernelParams p = {};
  p.accepted = params.accepted;
  p.channels = params.channels;
  p.window = params.window;
  p.slots = params.slots;
  for (int64_t i = 0; i < params.num_layers;) {
    const ConvCommitLayer& first = params.layers[i];
    p.state = first.state;
    p.x = first.x;
    p.num_layers = 0;
    for (; i < params.num_layers && p.num_layers < kMostLayers && same(params.layers[i], first); ++i) {
      p.layer[p.num_layers++] = {params.layers[i].state.data, params.layers[i].x.data};
    }
    const char* refused = launch_by_sequences(params.accepted.sequences, [&](int first_n, unsigned count) {
      p.first_n = first_n;
      const dim3 grid(static_cast<unsigned>((params.channels + kThreads - 1) / kThreads),
                      static_cast<unsigned>(p.num_layers), count);
      return launch_kernel(conv_commit_kernel, {grid, kThreads}, p, stream);
    });
    if (refused != nullptr) return refused;
  }
  return nullptr;
}

}  // namespace gdn::gpu
