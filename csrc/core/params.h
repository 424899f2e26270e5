// What the launchers take: one plain struct an op, torch-free, so that CPU, CUDA and HIP kernels and the torch-free
// tests all speak the same language. Symbols as in docs/contract.md. Every stride is in elements, every offset 64-bit.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace gdn {

enum class DType : int32_t { f32 = 0, bf16 = 1, f16 = 2 };
enum class HeadMap : int32_t { grouped = 0, tiled = 1 };  // value head h reads key head h / (HV/H), or h % H
enum class Activation : int32_t { none = 0, silu = 1, sigmoid = 2 };

// A read-only tensor as the kernels see it.
template <int rank>
struct View {
  const void* data = nullptr;  // nullptr: the optional argument was not given
  DType dtype = DType::f32;
  int64_t stride[rank] = {};

  explicit operator bool() const { return data != nullptr; }
};

// The same, written by the op.
template <int rank>
struct OutView {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t stride[rank] = {};

  explicit operator bool() const { return data != nullptr; }
};

// int32 or int64 indices.
template <int rank>
struct IndexView {
  const void* data = nullptr;
  bool is_int64 = false;
  int64_t stride[rank] = {};

  explicit operator bool() const { return data != nullptr; }
};

struct BoolView {
  const bool* data = nullptr;  // [N]
  int64_t stride = 0;

  explicit operator bool() const { return data != nullptr; }
};

// A pool of float32 states. The strides name the dimensions, so "kv" and "vk" layouts are the same to a kernel that
// honours them (kv: value_stride = 1, vk: key_stride = 1).
struct StateView {
  float* data = nullptr;  // [S, HV, K, V] or [S, HV, V, K]
  int64_t slots = 0;      // S
  int64_t slot_stride = 0;
  int64_t head_stride = 0;
  int64_t key_stride = 0;
  int64_t value_stride = 0;

  explicit operator bool() const { return data != nullptr; }

  // Whether four neighbouring values may be one access, and offsets within a head are 32-bit numbers.
  bool in_vectors() const {
    constexpr int64_t most = INT32_MAX / 256;  // K and V are at most 256
    const int64_t other = value_stride == 1 ? key_stride : value_stride;
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && (slot_stride | head_stride | other) % 4 == 0 && other >= 0 &&
           other <= most;
  }
};

// State values that a warp holds in the GPU kernels of decode and speculation: 2048 / K columns.
constexpr int64_t kTileValues = 2048;

constexpr int64_t kMaxWindowTokens = 128;              // draft tokens a sequence in a verify
constexpr int64_t kMaxLayerTokens = 8;                 // tokens a sequence in the fused layers
constexpr int kLayerTaps = 4;                          // of the convolution where a fused layer is one launch
constexpr int64_t kMostBlockValues = 8 * kTileValues;  // of a head's state in a block of the GPU kernels of decode

struct HeadShape {
  int64_t key_heads = 0;    // H
  int64_t value_heads = 0;  // HV, a multiple of H
  int64_t key_dim = 0;      // K
  int64_t value_dim = 0;    // V
  HeadMap head_map = HeadMap::grouped;

  int64_t key_head_of(int64_t value_head) const {
    return head_map == HeadMap::grouped ? value_head / (value_heads / key_heads) : value_head % key_heads;
  }
};

// Which rows of the batch belong to sequence n: with cu_seqlens rows [cu[n], cu[n+1]) of batch row 0, else all T rows
// of batch row n.
struct SequenceShape {
  int64_t sequences = 0;    // N
  int64_t tokens = 0;       // T: rows of one batch row (with cu_seqlens: of all sequences together)
  IndexView<1> cu_seqlens;  // [N+1] or absent
};

// What a replay needs of an earlier verify, float32.
struct LogViews {
  OutView<3> g;  // [N, T, HV]     log decay
  OutView<4> k;  // [N, T, H, K]   normalised keys
  OutView<4> d;  // [N, T, HV, V]  corrections δ
};
struct ReplayViews {
  View<3> g;
  View<4> k;
  View<4> d;
};

// Which tokens of a window were accepted.
struct AcceptedShape {
  int64_t sequences = 0;       // N
  int64_t tokens = 0;          // T of the window
  IndexView<1> accepted;       // [N], clamped to [0, T]
  IndexView<1> state_indices;  // [N] or absent: slot n
  IndexView<2> path;           // [N, T] or absent: rows 0, 1, 2, ...
};

// gated_delta_rule_commit_ and _commit_layers_: replay of accepted tokens, one entry a layer.
struct CommitLayer {
  StateView state;
  ReplayViews logs;
};
struct CommitParams {
  HeadShape heads;
  AcceptedShape window;
  const CommitLayer* layers = nullptr;  // [num_layers], host memory
  int64_t num_layers = 0;
};

// gated_delta_rule, gated_delta_rule_, gated_delta_rule_verify and gated_delta_rule_commit_verify_.
struct RecurrenceParams {
  HeadShape heads;
  SequenceShape shape;
  View<4> q;                   // [B, T, H, K]
  View<4> k;                   // [B, T, H, K]
  View<4> v;                   // [B, T, HV, V]
  View<3> g;                   // [B, T, HV]     float32
  View<3> beta;                // [B, T, HV]
  OutView<4> o;                // [B, T, HV, V]  q's dtype
  StateView state_in;          // read; absent: zeros
  StateView state_out;         // written; absent (verify): nothing is
  IndexView<1> state_indices;  // [N] or absent: slot n
  BoolView has_initial_state;  // [N] or absent: true
  float scale = 1.0f;
  bool qk_l2norm = false;
  float l2_eps = 1e-6f;
  IndexView<2> parents;  // [N, T] or absent: a chain (verify only)
  LogViews logs;         // verify only
};

// causal_conv1d, causal_conv1d_, causal_conv1d_verify.
struct ConvParams {
  SequenceShape shape;
  int64_t channels = 0;  // C
  int64_t width = 0;     // W
  View<3> x;             // [B, T, C]
  View<2> weight;        // [C, W]
  View<1> bias;          // [C] or absent
  OutView<3> y;          // [B, T, C]  x's dtype
  Activation activation = Activation::silu;
  int64_t window = 0;    // columns of a state: at least W-1, newest last
  int64_t slots = 0;     // S
  View<3> state_in;      // [S, C, window]; absent: zeros
  OutView<3> state_out;  // the same shape; absent (verify): nothing is written
  IndexView<1> state_indices;
  BoolView has_initial_state;
  IndexView<2> parents;  // [N, T], verify only
};

// causal_conv1d_commit_ and _commit_layers_: slide the windows over the accepted rows of x.
struct ConvCommitLayer {
  OutView<3> state;  // [S, C, window]
  View<3> x;         // [N, T, C]
};
struct ConvCommitParams {
  AcceptedShape accepted;
  int64_t channels = 0;
  int64_t window = 0;
  int64_t slots = 0;
  const ConvCommitLayer* layers = nullptr;
  int64_t num_layers = 0;
};

// qk_l2norm on one of the two: x / sqrt(sum x^2 + eps) over the last dimension of a [rows..., n] tensor of rank <= 4.
struct L2NormParams {
  int64_t size[3] = {};  // leading dimensions, padded in front with 1
  int64_t n = 0;         // elements a head
  View<4> x;             // [.., .., .., n]
  OutView<4> y;          // x's dtype
  float eps = 1e-6f;
};

// Joins leading dimensions that every tensor steps through in one stride, so that a row's address needs no division:
// [2, 5, 48, n] becomes [1, 1, 480, n] where it is contiguous.
template <class... Views>
void join_leading_dimensions(int64_t (&size)[3], Views&... views) {
  for (const int from : {1, 0}) {
    if (size[from] == 1) continue;
    if (size[2] == 1) {
      ((views.stride[2] = views.stride[from]), ...);
    } else if (!((views.stride[from] == size[2] * views.stride[2]) && ...)) {
      return;
    }
    size[2] *= size[from];
    size[from] = 1;
  }
}

struct GatesParams {
  int64_t size[3] = {};  // leading dimensions, padded in front with 1
  int64_t value_heads = 0;
  View<4> a;  // [.., .., .., HV]  any strides
  View<4> b;
  View<1> A_log;    // [HV]
  View<1> dt_bias;  // [HV]
  OutView<4> g;     // float32, contiguous
  OutView<4> beta;  // float32, contiguous
  bool allow_neg_eigval = false;
};

struct NormParams {
  int64_t size[3] = {};  // leading dimensions, padded in front with 1
  int64_t n = 0;         // V
  View<4> o;             // [.., .., .., V]
  View<4> z;             // the same shape
  View<1> weight;        // [V]
  OutView<4> y;
  float eps = 1e-6f;
  Activation activation = Activation::silu;
};

}  // namespace gdn
