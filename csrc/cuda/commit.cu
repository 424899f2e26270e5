// commit: replay of the accepted tokens of an earlier verify on the states of all layers (replay.cuh): S = α S + k δᵀ,
// no dot products (docs/math.md (4)).
//
//   tensor   shape                            strides                  dtype
//   state    [S, HV, K, V] or [S, HV, V, K]   last 1, others any       float32, one a layer
//   k_log    [N, T, H, K]                     last 1, others any       float32, one a layer
//   d_log    [N, T, HV, V]                    last 1, others any       float32, one a layer
//   g_log    [N, T, HV]                       any                      float32, one a layer
//
// Grid: x = blocks of columns of a head, y = HV x layers, z = sequences. A block is up to four warps, each with one
// tile of the same value head. Layers whose strides agree, as those of a model do, go in one launch; their addresses
// travel in the kernel's own parameters, which a captured graph keeps. Shared memory and barriers: none. Sequences with
// nothing accepted are not touched. Precision: float32.
#include "cuda/device.h"

#include <algorithm>

#include "cuda/launch.h"
#include "cuda/replay.cuh"

namespace gdn::gpu {
namespace {

template <int key_dim, TileAccess access, bool aligned>
struct CommitTraits : TileTraits<key_dim, access, aligned> {
  static constexpr int most_warps = 4;
  static constexpr int most_threads = most_warps * kWarp;
  // Blocks of a multiprocessor that the registers leave room for.
  static constexpr int resident_blocks = key_dim == 256 || !kManyRegisters ? 2 : key_dim == 128 && kHopper ? 4 : 3;
};

// Kernel parameters are at most 4 KB everywhere.
constexpr int kMostLayers = 96;
struct LayerData {
  float* state;
  LogData logs;
};
struct CommitKernelParams {
  HeadShape heads;
  AcceptedShape window;
  StateView state;  // of every layer, but for its address
  LogStrides log_stride;
  int32_t first_n, num_layers;
  LayerData layer[kMostLayers];
};
static_assert(sizeof(CommitKernelParams) <= 4096, "kernel parameters are at most 4 KB");

template <class Tr>
__global__ void __launch_bounds__(Tr::most_threads, Tr::resident_blocks)
    commit_kernel(const __grid_constant__ CommitKernelParams p) {
  const auto value_heads = static_cast<uint32_t>(p.heads.value_heads),
             key_heads = static_cast<uint32_t>(p.heads.key_heads);
  const uint32_t layer = blockIdx.y / value_heads, head = blockIdx.y % value_heads;
  TilePlace at;
  at.n = p.first_n + static_cast<int>(blockIdx.z);
  const int count = accepted_count(p.window, at.n);
  const int64_t slot = slot_of(p.window.state_indices, at.n, p.state.slots);
  if (slot < 0 || count == 0) return;
  at.head = static_cast<int>(head);
  at.key_head =
      static_cast<int>(p.heads.head_map == HeadMap::grouped ? head / (value_heads / key_heads) : head % key_heads);
  const auto block_tiles = static_cast<int>(blockDim.x) / (kWarp * Tr::tile_warps);
  at.column0 = static_cast<int>(blockIdx.x) * block_tiles * Tr::tile_columns + Tile<Tr>::first_column();
  StateView state = p.state;
  state.data = p.layer[layer].state;
  Tile<Tr> tile;
  tile.load(state, slot, at.head, at.column0);
  replay_accepted(tile, p.window, p.log_stride, p.layer[layer].logs, at, count);
  tile.store(state, slot, at.head, at.column0);
}

template <class Tr>
const char* launch(CommitKernelParams& p, int warps, void* stream) {
  const TileWarps of = tile_warps<Tr>(p.heads.value_dim, warps);
  return launch_by_sequences(p.window.sequences, [&](int first, unsigned count) {
    p.first_n = first;
    const dim3 grid(static_cast<unsigned>(of.head / of.block),
                    static_cast<unsigned>(p.heads.value_heads * p.num_layers), count);
    return launch_kernel(commit_kernel<Tr>, {grid, of.block * kWarp}, p, stream);
  });
}

bool same(const LogStrides& a, const LogStrides& b) {
  return std::equal(a.g, a.g + 3, b.g) && std::equal(a.k, a.k + 4, b.k) && std::equal(a.d, a.d + 4, b.d) &&
         a.packed == b.packed;
}
bool same_strides(const StateView& a, const StateView& b) {
  return a.slots == b.slots && a.slot_stride == b.slot_stride && a.head_stride == b.head_stride &&
         a.key_stride == b.key_stride && a.value_stride == b.value_stride;
}

}  // namespace

const char* commit(const CommitParams& params, int warps, void* stream) {
  if (params.window.sequences == 0) return nullptr;
  CommitKernelParams p = {};
  p.heads = params.heads;
  p.window = params.window;
  const auto most_layers = std::min<int64_t>(kMostLayers, 65535 / std::max<int64_t>(1, params.heads.value_heads));
  for (int64_t i = 0; i < params.num_layers;) {
    const CommitLayer& first = params.layers[i];
    p.state = first.state;
    const TileAccess access = tile_access(first.state);
    const bool aligned = first.state.in_vectors();
    p.log_stride = log_strides(first.logs);
    p.num_layers = 0;
    for (; i < params.num_layers && p.num_layers < most_layers; ++i) {
      const CommitLayer& layer = params.layers[i];
      if (!same_strides(layer.state, p.state) || layer.state.in_vectors() != aligned ||
          !same(log_strides(layer.logs), p.log_stride)) {
        break;
      }
      p.layer[p.num_layers++] = {layer.state.data, log_data(layer.logs)};
    }
    const char* refused = with_tile_traits<CommitTraits>(
        p.heads.key_dim, access, aligned, [&](auto traits) { return launch<decltype(traits)>(p, warps, stream); });
    if (refused != nullptr) return refused;
  }
  return nullptr;
}

}  // namespace gdn::gpu
