// A tile of a state in a warp's registers, 64 values a lane: what decode, verify and commit share.
// docs/kernels/step.md: roofline, why this shape, what was tried.
//
// Lane = groups * place + group. A lane has the rows of one row group (docs/contract.md: row i is in group (i div 4)
// mod 8) of `columns` neighbouring columns; the places lie side by side. Where columns are contiguous and K = 128 a
// warp has four of the eight groups and its neighbour the others ("paired"), so that what eight places read of a row is
// a whole 128-byte line; elsewhere a warp has all eight, and four places. The two sums over K are a chain in a lane,
// exchanges between the lanes of a place, and for a pair one exchange through shared memory (pair_sum.cuh).
#pragma once

#include <algorithm>
#include <type_traits>

#include "cuda/pack.cuh"

namespace gdn::gpu {

// Along what neighbouring values of a state lie: its last dimension, columns ("kv") or rows ("vk").
enum class TileAccess : int32_t { along_columns, along_rows };

inline TileAccess tile_access(const StateView& state) {
  return state.value_stride == 1 ? TileAccess::along_columns : TileAccess::along_rows;
}
// aligned: four neighbouring values of a state may be one access (StateView::in_vectors). Known when compiled: where it
// is told at run time, the two ways' loads end in moves, and a warp waits for its state before it has asked for its
// tokens.
template <int key_dim, TileAccess tile_access, bool tile_aligned>
struct TileTraits {
  static constexpr int K = key_dim;
  static constexpr TileAccess access = tile_access;
  static constexpr bool aligned = tile_aligned;
  static constexpr int all_groups = 8;
  static constexpr bool paired = K == 128 && access == TileAccess::along_columns;
  static constexpr int tile_warps = paired ? 2 : 1;  // that share their columns
  static constexpr int groups = all_groups / tile_warps;
  static constexpr int quad = 4;  // consecutive rows of a group
  static constexpr int quads = K / (all_groups * quad);
  static constexpr int lane_values = 64;
  static constexpr int columns = lane_values / (quads * quad);  // of a lane: 8, 4 or 2
  static constexpr int places = kWarp / groups;
  static constexpr int tile_columns = places * columns;  // of tile_warps warps
  static constexpr int vector = columns < 4 ? columns : 4;

  static_assert(K % (all_groups * quad) == 0, "a group has whole quads of rows");
  static_assert(kWarp * lane_values == kTileValues, "the registry counts on as many columns a warp");
  static_assert(columns <= groups, "each column's sum ends in a lane of its own");
};

// f(Traits<K, access, aligned>{})
template <template <int, TileAccess, bool> class Traits, bool aligned, class F>
const char* with_tile_traits(int64_t key_dim, TileAccess access, F f) {
  const auto with_access = [&](auto key) {
    constexpr int K = decltype(key)::value;
    return access == TileAccess::along_columns ? f(Traits<K, TileAccess::along_columns, aligned>{})
                                               : f(Traits<K, TileAccess::along_rows, aligned>{});
  };
  switch (key_dim) {
    case 64: return with_access(std::integral_constant<int, 64>{});
    case 128: return with_access(std::integral_constant<int, 128>{});
    default: return with_access(std::integral_constant<int, 256>{});
  }
}
template <template <int, TileAccess, bool> class Traits, class F>
const char* with_tile_traits(int64_t key_dim, TileAccess access, bool aligned, F f) {
  return aligned ? with_tile_traits<Traits, true>(key_dim, access, f)
                 : with_tile_traits<Traits, false>(key_dim, access, f);
}

// Warps that a head's columns keep busy, and of these how many a block has where `wanted` are asked for.
struct TileWarps {
  int head, block;
};
template <class Tr>
TileWarps tile_warps(int64_t value_dim, int wanted) {
  const auto head = static_cast<int>(value_dim / Tr::tile_columns) * Tr::tile_warps;
  return {head, std::max(Tr::tile_warps, std::min({wanted, head, Tr::most_warps}))};
}

template <class Tr>
class Tile {
 public:
  __device__ Tile()
      : lane_group_(threadIdx.x % Tr::groups),
        group_(threadIdx.x / kWarp % Tr::tile_warps * Tr::groups + lane_group_),
        place_(threadIdx.x % kWarp / Tr::groups) {}

  // The first of a block's columns that the warp's tile has.
  static __device__ int first_column() {
    return static_cast<int>(threadIdx.x) / (kWarp * Tr::tile_warps) * Tr::tile_columns;
  }
  // A lane's first column within the tile.
  __device__ int column() const { return place_ * Tr::columns; }
  // The column within the tile whose sum the lane owns. Where there are more groups than columns several lanes own the
  // same one; the first of them stores it.
  __device__ int owned_column() const {
    int at = 0;
#pragma unroll
    for (int distance = 1, half = Tr::columns / 2; half > 0; distance *= 2, half /= 2) {
      at += (lane_group_ & distance) != 0 ? half : 0;
    }
    return column() + at;
  }
  __device__ bool stores_owned() const { return group_ < Tr::columns; }

  __device__ void zero() {
#pragma unroll
    for (int m = 0; m < Tr::quads; ++m) {
#pragma unroll
      for (int i = 0; i < Tr::quad; ++i) {
#pragma unroll
        for (int c = 0; c < Tr::columns; ++c) S_[m][i][c] = 0.0f;
      }
    }
  }

  // `column0`: of the tile in its head.
  __device__ __forceinline__ void load(const StateView& state, int64_t slot, int64_t head, int64_t column0) {
    const float* from = first(state, slot, head, column0);
    for_each_vector(state, [&](auto offset, auto at) {
      Floats x;
      if constexpr (Tr::aligned) {
        x = *reinterpret_cast<const Floats*>(from + offset);
      } else {
#pragma unroll
        for (int j = 0; j < vector; ++j) x.value[j] = from[offset + j];
      }
      put(at, x);
    });
  }
  __device__ __forceinline__ void store(const StateView& state, int64_t slot, int64_t head, int64_t column0) const {
    float* to = first(state, slot, head, column0);
    for_each_vector(state, [&](auto offset, auto at) {
      Floats x;
#pragma unroll
      for (int j = 0; j < vector; ++j) x.value[j] = S_[at.m][at.row(j)][at.column(j)];
      if constexpr (Tr::aligned) {
        *reinterpret_cast<Floats*>(to + offset) = x;
      } else {
#pragma unroll
        for (int j = 0; j < vector; ++j) to[offset + j] = x.value[j];
      }
    });
  }

  // A group's values out of a row of K elements.
  struct Row {
    float value[Tr::quads][Tr::quad];
    __device__ __forceinline__ void scale(float factor) {
#pragma unroll
      for (int m = 0; m < Tr::quads; ++m) {
#pragma unroll
        for (int i = 0; i < Tr::quad; ++i) value[m][i] = value[m][i] * factor;
      }
    }
  };
  // packed: `from` is on a boundary of four elements.
  template <class Element>
  __device__ __forceinline__ Row row(const Element* from, bool packed = true) const {
    Row r;
#pragma unroll
    for (int m = 0; m < Tr::quads; ++m) {
      Pack<Element, Tr::quad> x;
      if (packed) {
        x = *reinterpret_cast<const Pack<Element, Tr::quad>*>(from + row_of(m, 0));
      } else {
        x.gather(from + row_of(m, 0));
      }
      x.widen(r.value[m]);
    }
    return r;
  }

  // Sum over the warp's groups of S x, for the column that the lane owns.
  __device__ __forceinline__ float dot(const Row& x) const {
    float sum[Tr::columns];
    chains(x, sum);
    return sum_groups<1, Tr::columns>(sum);
  }

  // From the lane that owns each column to all lanes of its place.
  __device__ __forceinline__ void spread(float mine, float (&all)[Tr::columns]) const {
    all[0] = mine;
    gather_at<Tr::columns / 2, 1>(all);
  }

  // (4)
  __device__ __forceinline__ void update(float alpha, const Row& k, const float (&delta)[Tr::columns]) {
    for_each_row([&](int m, int i) {
#pragma unroll
      for (int c = 0; c < Tr::columns; ++c) S_[m][i][c] = fmaf(alpha, S_[m][i][c], k.value[m][i] * delta[c]);
    });
  }

 private:
  static constexpr bool along_rows = Tr::access == TileAccess::along_rows;
  static constexpr int vector = along_rows ? Tr::quad : Tr::vector;  // neighbouring values of an access
  struct alignas(4 * vector) Floats {
    float value[vector];
  };

  // The group's chains.
  __device__ __forceinline__ void chains(const Row& x, float (&sum)[Tr::columns]) const {
#pragma unroll
    for (int c = 0; c < Tr::columns; ++c) sum[c] = 0.0f;
    for_each_row([&](int m, int i) {
#pragma unroll
      for (int c = 0; c < Tr::columns; ++c) sum[c] = fmaf(S_[m][i][c], x.value[m][i], sum[c]);
    });
  }

  template <class F>
  __device__ __forceinline__ void for_each_row(F f) const {
#pragma unroll
    for (int m = 0; m < Tr::quads; ++m) {
#pragma unroll
      for (int i = 0; i < Tr::quad; ++i) f(m, i);
    }
  }
  // Neighbouring values from quad m, row i and column c on.
  struct Values {
    int m, i, c;
    __device__ constexpr int row(int j) const { return along_rows ? i + j : i; }
    __device__ constexpr int column(int j) const { return along_rows ? c : c + j; }
  };
  template <class F>
  __device__ __forceinline__ void for_each_vector(const StateView& state, F f) const {
    using Offset = std::conditional_t<Tr::aligned, int32_t, int64_t>;
    const auto row_stride = static_cast<Offset>(state.key_stride),
               column_stride = static_cast<Offset>(state.value_stride);
#pragma unroll
    for (int m = 0; m < Tr::quads; ++m) {
#pragma unroll
      for (int i = 0; i < Tr::quad; i += along_rows ? vector : 1) {
#pragma unroll
        for (int c = 0; c < Tr::columns; c += along_rows ? 1 : vector) {
          f(along_rows ? row_of(m, i) + c * column_stride : row_of(m, i) * row_stride + c, Values{m, i, c});
        }
      }
    }
  }
  __device__ int row_of(int m, int i) const { return (m * Tr::all_groups + group_) * Tr::quad + i; }
  __device__ float* first(const StateView& state, int64_t slot, int64_t head, int64_t column0) const {
    return state.data + slot * state.slot_stride + head * state.head_stride + (column0 + column()) * state.value_stride;
  }

  // ((p0 + p1) + (p2 + p3)) + ((p4 + p5) + (p6 + p7)), or a pair's half of it: at each distance the two lanes share the
  // columns that they still have, until one is left; then both add it.
  template <int distance, int n>
  __device__ __forceinline__ float sum_groups(float (&x)[Tr::columns]) const {
    if constexpr (distance == Tr::groups) {
      return x[0];
    } else if constexpr (n == 1) {
      x[0] += shuffle_xor(x[0], distance);
      return sum_groups<2 * distance, 1>(x);
    } else {
      const bool upper = (lane_group_ & distance) != 0;
#pragma unroll
      for (int c = 0; c < n / 2; ++c) {
        const float keep = upper ? x[c + n / 2] : x[c], give = upper ? x[c] : x[c + n / 2];
        x[c] = keep + shuffle_xor(give, distance);
      }
      return sum_groups<2 * distance, n / 2>(x);
    }
  }
  // The way back: each exchange doubles the columns that a lane knows.
  template <int distance, int known>
  __device__ __forceinline__ void gather_at(float (&x)[Tr::columns]) const {
    if constexpr (distance > 0) {
      const bool upper = (lane_group_ & distance) != 0;
#pragma unroll
      for (int c = 0; c < known; ++c) {
        const float other = shuffle_xor(x[c], distance);
        const float mine = x[c];
        x[c] = upper ? other : mine;
        x[c + known] = upper ? mine : other;
      }
      gather_at<distance / 2, 2 * known>(x);
    }
  }

  __device__ __forceinline__ void put(const Values& at, const Floats& x) {
#pragma unroll
    for (int j = 0; j < vector; ++j) S_[at.m][at.row(j)][at.column(j)] = x.value[j];
  }

  int lane_group_, group_, place_;
  float S_[Tr::quads][Tr::quad][Tr::columns];
};

}  // namespace gdn::gpu
