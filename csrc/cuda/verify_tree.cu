// verify_tree: a tree of draft tokens, token t following parents[t] (-1: the committed state). A token that follows the
// one before it goes on with the state in the registers; any other starts from the committed state and replays its
// ancestors (docs/math.md (4)): no dot products, the bits of the steps themselves. Equations: docs/math.md (1) to (5).
//
//   tensor    shape                            strides             dtype
//   q, k      [N, T, H, K]                     last 1, others any  float32, bfloat16 or float16
//   v, o      [N, T, HV, V]                    last 1, others any  the same
//   g         [N, T, HV]                       any                 float32
//   beta      [N, T, HV]                       any                 float32, bfloat16 or float16
//   state     [S, HV, K, V] or [S, HV, V, K]   last 1, others any  float32, read
//   parents   [N, T]                           any                 int32 or int64
//   k_log     [N, T, H, K], d_log [N, T, HV, V], g_log [N, T, HV]  contiguous   float32
//
// Grid and precision as in step.cuh. Shared memory: for every token of the window the reciprocal norms of its key and
// query, its decay, its beta and the set of its ancestors, so that a replay needs only the key itself, read again, and
// d_log, which the warp has written. Sync contract: one barrier after that table is filled, two a token where pairs of
// warps share a tile (pair_sum.cuh), and one after each token's d_log entries, of the block or, without pairs, of the
// warp. On RDNA, where a barrier for other memory than LDS waits for it, pairs of warps hand each other the corrections
// in shared memory too: they are written before the token's second exchange, which is their barrier.
#include "cuda/device.h"

#include "core/exact_math.h"
#include "cuda/indices.cuh"
#include "cuda/launch.h"
#include "cuda/step.cuh"

namespace gdn::gpu {
namespace {

constexpr int kWindow = static_cast<int>(kMaxWindowTokens);
constexpr int kSetWords = kWindow / 32;

struct TreeTable {
  float k_factor[kWindow], q_factor[kWindow], alpha[kWindow], beta[kWindow];
  int parent[kWindow];
  uint32_t ancestors[kWindow][kSetWords];  // as a set: parents come first, so ascending order is from the root down
};

// The reciprocal norm of a row, and for keys its log.
template <class Tr>
__device__ __forceinline__ float factor_of(const StepParams& p, const StepBlock& block, const View<4>& view, int t,
                                           bool writes_log) {
  const RecurrenceParams& rec = p.rec;
  const int first = static_cast<int>(threadIdx.x) % kWarp * Tr::lane_elements;
  RawPart<Tr::lane_elements> part;
  part.load(view, block.row(view.stride, t, block.at.key_head) + first, p.packed_rows);
  float x[Tr::lane_elements], factor = 1.0f;
  part.widen(rec.q.dtype, x);
  if (rec.qk_l2norm) factor = reciprocal_root(row_sum_of_squares(x) + rec.l2_eps);
  if (writes_log) {
    float* log = static_cast<float*>(rec.logs.k.data) + block.log_row(rec.logs.k.stride, t, block.at.key_head) + first;
#pragma unroll
    for (int i = 0; i < Tr::lane_elements; ++i) log[i] = x[i] * factor;
  }
  return factor;
}

template <class Tr>
__device__ __forceinline__ void fill_table(const StepParams& p, const StepBlock& block, TreeTable& table) {
  const RecurrenceParams& rec = p.rec;
  const int lane = threadIdx.x % kWarp, warp = uniform(static_cast<int>(threadIdx.x) / kWarp);
#pragma unroll 1
  for (int t = warp; t < block.count; t += block.threads / kWarp) {
    const float k = factor_of<Tr>(p, block, rec.k, t, block.writes_keys);
    const float q = factor_of<Tr>(p, block, rec.q, t, false);
    if (lane == 0) {
      table.k_factor[t] = k;
      table.q_factor[t] = q;
    }
  }
  for (int t = threadIdx.x; t < block.count; t += block.threads) {
    const float g = static_cast<const float*>(rec.g.data)[block.row(rec.g.stride, t, block.at.head)];
    table.alpha[t] = exact::exp(g);  // (1)
    table.beta[t] = load(rec.beta, block.row(rec.beta.stride, t, block.at.head));
    if (block.first_of_head) {
      static_cast<float*>(rec.logs.g.data)[block.log_row(rec.logs.g.stride, t, block.at.head)] = g;
    }
    // The set of ancestors, by walking up: no thread waits for another one.
    int parent = parent_of(rec.parents, block.at.n, t);
    table.parent[t] = parent;
    uint32_t set[kSetWords] = {};
#pragma unroll 1
    for (; parent >= 0; parent = parent_of(rec.parents, block.at.n, parent)) {
#pragma unroll
      for (int w = 0; w < kSetWords; ++w) set[w] |= parent / 32 == w ? 1u << parent % 32 : 0u;
    }
#pragma unroll
    for (int w = 0; w < kSetWords; ++w) table.ancestors[t][w] = set[w];
  }
}

template <class Tr>
constexpr bool shares_deltas = kRdna && Tr::paired;

template <class Tr>
__global__ void __launch_bounds__(Tr::most_warps* kWarp, 1)
    verify_tree_kernel(const __grid_constant__ StepParams GDN_GIVEN(p)) {
  GDN_IN_PLACE(StepParams, p);
  __shared__ TreeTable table;
  __shared__ PairShared<Tr::most_warps> pair;
  extern __shared__ float s_deltas[];  // [T][columns of the block], where shares_deltas
  trigger_dependents();
  wait_for_prerequisites();
  const RecurrenceParams& rec = p.rec;
  const StepBlock block = step_block<Tr, StepMode::verify>(p);
  if (uniform(block.slot < 0)) return write_zeros<Tr, StepMode::verify>(p, block);
  TilePlace at = block.at;
  at.column0 += Tile<Tr>::first_column();
  Tile<Tr> tile;
  tile.load(rec.state_in, block.slot, at.head, at.column0);
  fill_table<Tr>(p, block, table);
  sync_lds();

  const int owned = at.column0 + tile.owned_column();
  float* d_log = static_cast<float*>(rec.logs.d.data) + block.log_row(rec.logs.d.stride, 0, at.head);
  const int64_t d_stride = rec.logs.d.stride[1];
  const auto row_of = [&](const View<4>& view, int t, float factor) {
    typename Tile<Tr>::Row row;
    with_element_of(rec.q.dtype, [&](auto element) {
      row = tile.row(static_cast<const decltype(element)*>(view.data) + block.row(view.stride, t, at.key_head),
                     p.packed_rows);
    });
    row.scale(factor);
    return row;
  };
  int turn = 0;
#pragma unroll 1
  for (int t = 0; t < block.count; ++t) {
    if (uniform(table.parent[t]) != t - 1) {
      tile.load(rec.state_in, block.slot, at.head, at.column0);
#pragma unroll 1
      for (int w = 0; w < kSetWords; ++w) {
#pragma unroll 1
        for (auto left = static_cast<uint32_t>(uniform(static_cast<int>(table.ancestors[t][w]))); left != 0;
             left &= left - 1) {
          const int ancestor = 32 * w + lowest_bit(left);
          float deltas[Tr::columns];
#pragma unroll
          for (int c = 0; c < Tr::columns; ++c) {
            deltas[c] = shares_deltas<Tr>
                            ? s_deltas[ancestor * p.columns + Tile<Tr>::first_column() + tile.column() + c]
                            : d_log[ancestor * d_stride + at.column0 + tile.column() + c];
          }
          tile.update(table.alpha[ancestor], row_of(rec.k, ancestor, table.k_factor[ancestor]), deltas);
        }
      }
    }
    const auto k = row_of(rec.k, t, table.k_factor[t]);
    const float v = load(rec.v, block.row(rec.v.stride, t, at.head) + owned);
    const float u = pair_sum<Tr, Tr::most_warps>(pair, turn, {tile.dot(k), 0.0f}).u;  // (2)
    const float delta = fmaf(-table.alpha[t], u, v) * table.beta[t];                  // (3)
    if (tile.stores_owned()) {
      d_log[t * d_stride + owned] = delta;
      if (shares_deltas<Tr>) s_deltas[t * p.columns + owned - block.at.column0] = delta;
    }
    float deltas[Tr::columns];
    tile.spread(delta, deltas);
    tile.update(table.alpha[t], k, deltas);  // (4)
    const float o =
        pair_sum<Tr, Tr::most_warps>(pair, turn, {0.0f, tile.dot(row_of(rec.q, t, table.q_factor[t]))}).o;  // (5)
    if (tile.stores_owned()) store(rec.o, block.row(rec.o.stride, t, at.head) + owned, o * rec.scale);
    // The log of this token is there for whoever replays it: the pair's other warp, or this warp's other lanes.
    if constexpr (!shares_deltas<Tr>) {
      if constexpr (Tr::paired) {
        sync_block();
      } else {
        sync_warp();
      }
    }
  }
}

}  // namespace

const char* verify_tree(const RecurrenceParams& params, const StepLaunch& how, void* stream) {
  StepParams p = {};
  p.rec = params;
  return with_tile_traits<StepTraits>(
      params.heads.key_dim, tile_access(params.state_in), params.state_in.in_vectors(), [&](auto traits) {
        using Tr = decltype(traits);
        return launch_by_sequences(p.rec.shape.sequences, [&](int first, unsigned count) {
          p.first_n = first;
          LaunchShape shape = divide_step<Tr, StepMode::verify>(p, how, count);
          if (shares_deltas<Tr>) shape.shared_bytes = static_cast<int>(p.rec.shape.tokens) * p.columns * 4;
          return launch_kernel(verify_tree_kernel<Tr>, shape, p, stream);
        });
      });
}

}  // namespace gdn::gpu
