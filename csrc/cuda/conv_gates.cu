// conv_gates: what a fused layer computes before its recurrence, in one launch: the convolution with its windows
// (docs/math.md, the convolution) and the gates, equations (15) and (16). The bits of causal_conv1d and gdn_gates.
//
//   tensor          shape       strides                       dtype
//   x               [N, T, C]   last 1, others any            float32, bfloat16 or float16; T from 1 to 8
//   y               [N, T, C]   last 1, others any            x's
//   weight          [C, W]      last 1                        any of the three
//   bias            [C]         1                             any of the three, or absent
//   windows         [S, C, L]   last 1, others any            x's, or float32; L >= W-1, newest column last
//   a, b            [N, T, HV]  any                           any of the three
//   A_log, dt_bias  [HV]        1                             any of the three
//   g, beta         [N, T, HV]  contiguous                    float32
//
// Grid: x = blocks of heads, then blocks of channels, z = sequences. Block: x = heads or channels, y = tokens; a thread
// computes g and beta of one head and token, or y of neighbouring channels and one token. Two forms of the convolution:
//   PackedConv  two channels a thread in 32-bit words: W = 4, L = 3, one 16-bit dtype, windows and weights contiguous
//   AnyConv     one channel a thread: everything else
//
// Shared memory: none. Barriers: one, where windows are slid over more than one token: every thread of the block
// arrives once it has read its taps; after it the last token's threads write the windows, which no other block reads.
// Precision: float32; each output is computed by one thread from its own inputs; 16-bit outputs by core/quick_silu.h
// where it can decide them.
//
// For one sequence the time is that of two loads, one after the other: the slot, and the window that it says. All other
// loads are under way before the slot is needed. The next kernel of the stream may be launched while this one runs
// (programmatic dependent launch): it must wait before it touches what this one writes.
#include "cuda/device.h"

#include "core/exact_math.h"
#include "cuda/conv_rows.cuh"
#include "cuda/gate_rows.cuh"
#include "cuda/indices.cuh"
#include "cuda/launch.h"
#include "cuda/pack.cuh"

namespace gdn::gpu {
namespace {

struct ConvGatesTraits {
  static constexpr int most_threads = 256;
  // Of a multiprocessor. Said, because some compilers, left to choose, spill registers to have room for more.
  static constexpr int resident_blocks = 1;
  static constexpr int fewest_lanes = kWarp;  // threads of a block along the channels
  static constexpr int most_lanes = 128;
  // From so many blocks on they get larger instead of more: every card is full, and a block's start costs time too.
  static constexpr int64_t enough_blocks = 4096;
  static constexpr int64_t head_dims = 64;  // every K and V, and with them C, is a multiple of it

  static_assert(fewest_lanes * kMaxLayerTokens <= most_threads, "a block has all tokens of its channels");
};

// Two neighbouring channels of a row, as they lie in memory.
using Pair = uint32_t;
constexpr int kPair = 2;

// What the tokens of a sequence follow.
enum class Follows {
  window,  // one token: nothing but the window
  token,   // each the one before
  parent,  // a tree
};

// The slot of a sequence in two steps that do not branch: loads, and what they say. Without state_indices the loads are
// of any words.
struct SlotWords {
  const uint32_t* words;
  uint32_t stride;     // in words
  uint32_t high_word;  // 1: int64; 0: int32, whose one word is loaded twice
  uint32_t slots;      // below 2^31: a negative index is too large
  bool given;

  struct Raw {
    uint32_t low, high;
  };
  __device__ __forceinline__ Raw load(uint32_t n) const {
    const uint32_t* at = words + static_cast<uint64_t>(n) * stride;
    return {at[0], at[high_word]};
  }
  __device__ __forceinline__ uint32_t slot(Raw raw, uint32_t n) const { return given ? raw.low : n; }
  __device__ __forceinline__ bool has_slot(Raw raw, uint32_t n) const {
    return slot(raw, n) < slots && (high_word == 0 || raw.high == 0);
  }
};

// Strides are 32-bit, products 64-bit: one instruction each.
template <class Element, Follows follows>
struct PackedConv {
  static constexpr int channels = kPair;
  static constexpr int width = 4;
  static constexpr int columns = width - 1;
  static constexpr int window_words = columns * kPair / 2;
  using Weights = Pack<Element, kPair * width>;  // of the two channels: one access

  static_assert(sizeof(Element) == 2 && sizeof(Weights) == 16, "two channels are one word, their weights four");

  SlotWords slot_words;
  const Element* x;
  uint32_t x_stride[2];
  const Element *weight, *bias;
  Element* windows;
  uint32_t slot_stride_bytes;
  bool in_place;
  Element* y;
  uint32_t y_stride[2];
  IndexView<2> parents;

  // Requires: t is one of the block's tokens; every thread of the block calls it.
  __device__ __forceinline__ void run(uint32_t n, uint32_t t, uint32_t tokens, uint32_t c) const {
    // Every load but the window's is under way before the slot is known.
    const SlotWords::Raw raw_slot = slot_words.load(n);
    const Element* rows = x + offset(n, x_stride[0]) + c;
    Pair tap[width];
    tap[columns] = *pair_at(rows + offset(t, x_stride[1]));
    const Weights weights = *reinterpret_cast<const Weights*>(weight + offset(c, width));
    const Pair bias_pair = bias != nullptr ? *pair_at(bias + c) : 0;
    // The rows of the older taps, the oldest first.
    int row[columns];
    int64_t next = t;
#pragma unroll
    for (int j = columns - 1; j >= 0; --j) {
      if constexpr (follows == Follows::parent) {
        next = next >= 0 ? parent_of(parents, n, next) : next - 1;
      } else {
        --next;
      }
      row[j] = follows == Follows::window ? j - columns : static_cast<int>(next);
      if (follows != Follows::window) {
        tap[j] = row[j] >= 0 ? *pair_at(rows + offset(static_cast<uint32_t>(row[j]), x_stride[1])) : 0;
      }
    }
    Pair* out = pair_at(y + offset(n, y_stride[0]) + offset(t, y_stride[1]) + c);
    sync_warp();  // the compiler would move the loads above behind the branch below
    // The address before the branch: behind it the window's loads come first, and nothing ahead of them that waits for
    // a load above.
    char* windows_of_slot = reinterpret_cast<char*>(windows) + offset(slot_words.slot(raw_slot, n), slot_stride_bytes);
    Pair* window = reinterpret_cast<Pair*>(reinterpret_cast<Element*>(windows_of_slot) + offset(c, columns));
    if (!slot_words.has_slot(raw_slot, n)) {  // the whole block
      *out = 0;
      return;
    }
    Pair word[window_words] = {};
    if (row[0] < 0) {
#pragma unroll
      for (int w = 0; w < window_words; ++w) word[w] = window[w];
    }
    // The columns of a channel are neighbours in the window, the channels of a column are in a pair.
    const Pair column[columns] = {(word[0] & kLow) | (word[1] & ~kLow), word[0] >> 16 | word[2] << 16,
                                  (word[1] & kLow) | (word[2] & ~kLow)};
#pragma unroll
    for (int j = 0; j < columns; ++j) {
      if (row[j] < 0) tap[j] = row[j] == -1 ? column[2] : row[j] == -2 ? column[1] : column[0];
    }
    if (follows != Follows::parent && in_place) {
      if (follows == Follows::token) sync_block();  // the windows of the block have been read
      // The newest columns are the last token's taps.
      if (follows == Follows::window || t == tokens - 1) {
        window[0] = (tap[1] & kLow) | tap[2] << 16;
        window[1] = (tap[3] & kLow) | (tap[1] & ~kLow);
        window[2] = tap[2] >> 16 | (tap[3] & ~kLow);
      }
    }
    float sum[kPair], weight_of[kPair * width];
    unpack2<Element>(bias_pair, &sum[0], &sum[1]);
    weights.widen(weight_of);
#pragma unroll
    for (int j = 0; j < width; ++j) {
      float value[kPair];
      unpack2<Element>(tap[j], &value[0], &value[1]);
#pragma unroll
      for (int i = 0; i < kPair; ++i) sum[i] = fmaf(weight_of[i * width + j], value[i], sum[i]);
    }
    store_row(reinterpret_cast<Element*>(out), sum, Activation::silu);
  }

 private:
  static constexpr Pair kLow = 0xffff;  // the first of a pair

  static __device__ __forceinline__ uint64_t offset(uint32_t index, uint32_t stride) {
    return static_cast<uint64_t>(index) * stride;
  }
  static __device__ __forceinline__ const Pair* pair_at(const Element* at) { return reinterpret_cast<const Pair*>(at); }
  static __device__ __forceinline__ Pair* pair_at(Element* at) { return reinterpret_cast<Pair*>(at); }
};

// The kernel reads all of ConvParams here: its lines of arguments are not what such a call waits for.
struct AnyConv {
  static constexpr int channels = 1;
  static constexpr int batch_taps = 4;  // loads of so many are under way in a thread

  ConvParams p;

  // Requires: t is one of the block's tokens; every thread of the block calls it.
  __device__ __forceinline__ void run(uint32_t n, uint32_t t, uint32_t tokens, int64_t c) const {
    const ConvRows at = {{n, 0, tokens}, slot_of(p.state_indices, n, p.slots), true};
    if (at.slot < 0) return store(p.y, row_offset(p.y, at, t, c), 0.0f);  // the whole block
    const uint32_t bias = p.bias.data != nullptr ? load_raw(p.bias.data, p.bias.dtype, c) : 0;
    float sum = 0.0f;
    const int width = static_cast<int>(p.width);
#pragma unroll 1
    for (int first = 0; first < width; first += batch_taps) {
      uint32_t tap[batch_taps], weight[batch_taps];
      DType type[batch_taps];
#pragma unroll
      for (int u = 0; u < batch_taps; ++u) {
        const int j = first + u < width ? first + u : width - 1;  // past the last tap: that one again
        const int row = static_cast<int>(ancestor(p.parents, n, t, width - 1 - j));
        type[u] = row >= 0 ? p.x.dtype : p.state_in.dtype;
        tap[u] = load_raw(row >= 0 ? p.x.data : p.state_in.data, type[u],
                          row >= 0 ? row_offset(p.x, at, row, c) : column_offset(p, at, row, c));
        weight[u] = load_raw(p.weight.data, p.weight.dtype, c * p.weight.stride[0] + j);
      }
      if (first == 0) sum = widen(bias, p.bias.dtype);  // after the loads: it waits for its own
#pragma unroll
      for (int u = 0; u < batch_taps; ++u) {
        const float next = fmaf(widen(weight[u], p.weight.dtype), widen(tap[u], type[u]), sum);
        sum = first + u < width ? next : sum;
      }
    }
    store(p.y, row_offset(p.y, at, t, c), exact::silu(sum));
    if (p.state_out.data != nullptr) {
      if (tokens > 1) sync_block();  // the windows of the block have been read
      if (t == tokens - 1) slide_window(p, at, c);
    }
  }
};

// What the kernel reads of ConvParams and GatesParams: a launch on a cold cache waits for every line of its arguments.
template <class Conv>
struct ConvGatesKernelParams {
  uint32_t tokens, lanes, gate_blocks, first_n;
  Conv conv;
  GateRows gates;
};

template <class Conv>
__global__ void __launch_bounds__(ConvGatesTraits::most_threads, ConvGatesTraits::resident_blocks)
    conv_gates_kernel(const __grid_constant__ ConvGatesKernelParams<Conv> p) {
  trigger_dependents();
  const uint32_t n = p.first_n + blockIdx.z, t = threadIdx.y;
  if (blockIdx.x < p.gate_blocks) {
    p.gates.run(n, t, p.tokens, blockIdx.x * p.lanes + threadIdx.x);
  } else {
    p.conv.run(n, t, p.tokens, ((blockIdx.x - p.gate_blocks) * p.lanes + threadIdx.x) * Conv::channels);
  }
}

template <class Conv>
const char* launch(const Conv& conv, const ConvParams& p, const GatesParams& gates, void* stream) {
  ConvGatesKernelParams<Conv> params = {};
  params.conv = conv;
  params.gates = gate_rows(gates);
  const int64_t tokens = p.shape.tokens;
  const auto conv_blocks = [&](int64_t lanes) { return p.channels / (lanes * Conv::channels); };
  int64_t lanes = ConvGatesTraits::fewest_lanes;
  while (conv_blocks(lanes) * p.shape.sequences > ConvGatesTraits::enough_blocks &&
         2 * lanes <= ConvGatesTraits::most_lanes && 2 * lanes * tokens <= ConvGatesTraits::most_threads &&
         p.channels % (2 * lanes * Conv::channels) == 0) {
    lanes *= 2;
  }
  params.tokens = static_cast<uint32_t>(tokens);
  params.lanes = static_cast<uint32_t>(lanes);
  params.gate_blocks = static_cast<uint32_t>((gates.value_heads + lanes - 1) / lanes);
  const dim3 block(params.lanes, params.tokens);
  const auto blocks = params.gate_blocks + static_cast<uint32_t>(conv_blocks(lanes));
  return launch_by_sequences(p.shape.sequences, [&](int first_n, unsigned count) {
    params.first_n = static_cast<uint32_t>(first_n);
    return launch_kernel(conv_gates_kernel<Conv>, {dim3(blocks, 1, count), block}, params, stream);
  });
}

bool is_aligned(const void* data, size_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; }

// Whether a dimension's stride is a multiple of `unit` and, in units of `scale`, 32-bit. One that never steps is not
// used.
bool fits(int64_t stride, int64_t size, int64_t unit, int64_t scale) {
  return size == 1 || (stride % unit == 0 && stride >= 0 && stride <= UINT32_MAX / scale);
}

template <class AnyView>
bool has_pairs(const AnyView& rows, const SequenceShape& shape) {
  return is_aligned(rows.data, sizeof(Pair)) && fits(rows.stride[0], shape.sequences, kPair, 1) &&
         fits(rows.stride[1], shape.tokens, kPair, 1);
}

int64_t index_words(const ConvParams& p) { return p.state_indices.is_int64 ? 2 : 1; }

template <class Element, class Conv>
bool is_packed(const ConvParams& p) {
  const DType dtype = p.x.dtype;
  const bool one_dtype =
      p.weight.dtype == dtype && p.state_in.dtype == dtype && (p.bias.data == nullptr || p.bias.dtype == dtype);
  const bool contiguous = p.width == Conv::width && p.weight.stride[0] == Conv::width && p.window == Conv::columns &&
                          p.state_in.stride[1] == Conv::columns;
  const bool aligned = is_aligned(p.weight.data, sizeof(typename Conv::Weights)) &&
                       is_aligned(p.bias.data, sizeof(Pair)) && is_aligned(p.state_in.data, sizeof(Pair)) &&
                       fits(p.state_in.stride[0], p.slots, kPair, sizeof(Element));
  return one_dtype && contiguous && aligned && has_pairs(p.x, p.shape) && has_pairs(p.y, p.shape) &&
         fits(p.state_indices.stride[0], p.shape.sequences, 1, index_words(p)) && p.slots <= INT32_MAX;
}

template <class Element, Follows follows>
const char* launch_form(const ConvParams& p, const GatesParams& gates, void* stream) {
  using Conv = PackedConv<Element, follows>;
  if (!is_packed<Element, Conv>(p)) return launch(AnyConv{p}, p, gates, stream);
  const bool given = p.state_indices.data != nullptr;
  const int64_t words = index_words(p);
  const auto small = [](int64_t stride) { return static_cast<uint32_t>(stride); };
  Conv conv = {};
  conv.slot_words = {static_cast<const uint32_t*>(given ? p.state_indices.data : p.x.data),
                     given ? small(p.state_indices.stride[0] * words) : 0, small(words - 1), small(p.slots), given};
  conv.x = static_cast<const Element*>(p.x.data);
  conv.weight = static_cast<const Element*>(p.weight.data);
  conv.bias = static_cast<const Element*>(p.bias.data);
  conv.windows = static_cast<Element*>(const_cast<void*>(p.state_in.data));
  conv.slot_stride_bytes = small(p.state_in.stride[0] * static_cast<int64_t>(sizeof(Element)));
  conv.in_place = p.state_out.data != nullptr;
  conv.y = static_cast<Element*>(p.y.data);
  for (int i = 0; i < 2; ++i) {
    conv.x_stride[i] = small(p.x.stride[i]);
    conv.y_stride[i] = small(p.y.stride[i]);
  }
  conv.parents = p.parents;
  return launch(conv, p, gates, stream);
}

template <class Element>
const char* launch_element(const ConvParams& p, const GatesParams& gates, void* stream) {
  if (p.shape.tokens == 1) return launch_form<Element, Follows::window>(p, gates, stream);
  if (p.parents.data == nullptr) return launch_form<Element, Follows::token>(p, gates, stream);
  return launch_form<Element, Follows::parent>(p, gates, stream);
}

}  // namespace

const char* conv_gates(const ConvParams& conv, const GatesParams& gates, void* stream) {
  if (conv.channels % ConvGatesTraits::head_dims != 0 || conv.channels > INT32_MAX || conv.width > INT32_MAX) {
    return "conv_gates takes a multiple of 64 channels, fewer than 2^31, and as many taps";
  }
  switch (conv.x.dtype) {
    case DType::bf16: return launch_element<bf16>(conv, gates, stream);
    case DType::f16: return launch_element<f16>(conv, gates, stream);
    default: return launch(AnyConv{conv}, conv, gates, stream);
  }
}

}  // namespace gdn::gpu
