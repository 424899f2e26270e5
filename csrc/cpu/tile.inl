// The recurrence on a tile: K rows by kColumns value columns of one head's state, in the exact order of
// docs/contract.md. A tile is scratch memory, or the state itself.
//
// Rows fall into eight groups, row i in group (i / 4) % 8. A group is one chain of fused multiply-adds in ascending i;
// the eight sums meet in ((p0+p1)+(p2+p3))+((p4+p5)+(p6+p7)). Columns are independent: a strip of kStripVectors vectors
// keeps enough chains in flight to hide the latency of the fma.

constexpr int kGroups = 8;
constexpr int kGroupRows = 4;  // consecutive rows of a group
constexpr int kPeriod = kGroups * kGroupRows;
constexpr int kStrip = kStripVectors * kLanes;
static_assert(kColumns % kStrip == 0, "a tile is a whole number of strips");

// Row 32 m + 4 group + j lies at data + group * group_stride + m * period_stride + j * row_stride.
struct Tile {
  float* data;
  int64_t row_stride;
  int64_t group_stride;
  int64_t period_stride;

  Tile after_groups(int64_t groups) const {
    return {data + groups * group_stride, row_stride, group_stride, period_stride};
  }
  Tile after_columns(int64_t columns) const { return {data + columns, row_stride, group_stride, period_stride}; }
};

// Rows in memory order: the state itself.
inline Tile tile_in_place(float* data, int64_t row_stride) {
  return {data, row_stride, kGroupRows * row_stride, kPeriod * row_stride};
}
// Rows in the order in which a step walks them: the walk is sequential, and no row is loaded just after another one
// that is a multiple of 4 KB away was stored (the processor would take the load for a reader of that store).
inline Tile tile_in_scratch(float* data, int64_t K) {
  return {data, kColumns, K / kGroups * kColumns, kGroupRows * kColumns};
}
template <class F>
inline void for_each_row(const Tile& tile, int64_t K, F&& f) {
  for (int64_t i = 0; i < K; ++i) {
    f(i, tile.data + i / kGroupRows % kGroups * tile.group_stride + i / kPeriod * tile.period_stride +
             i % kGroupRows * tile.row_stride);
  }
}

inline Vec sum_of_groups(const Vec (&p)[kGroups]) {
  return ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
}

// out = Sᵀ x
template <int K>
void tile_dot(Tile tile, const float* x, float* out) {
  for (int c = 0; c < kColumns; c += kStrip) {
    Vec sums[kStripVectors][kGroups];
    for (int group = 0; group < kGroups; ++group) {
      Vec p[kStripVectors] = {};
      const float* period = tile.data + group * tile.group_stride + c;
      for (int i = group * kGroupRows; i < K; i += kPeriod, period += tile.period_stride) {
        const float* row = period;
#pragma GCC unroll 4
        for (int j = 0; j < kGroupRows; ++j, row += tile.row_stride) {
          const Vec xi = broadcast(x[i + j]);
#pragma GCC unroll 8
          for (int n = 0; n < kStripVectors; ++n) p[n] = fma(load(row + n * kLanes), xi, p[n]);
        }
      }
      for (int n = 0; n < kStripVectors; ++n) sums[n][group] = p[n];
    }
    for (int n = 0; n < kStripVectors; ++n) store(out + c + n * kLanes, sum_of_groups(sums[n]));
  }
}

struct StripSums {
  Vec o[kStripVectors], u[kStripVectors];
};

#if defined(GDN_SOFT_FMA)
#define GDN_INLINE_STEP __attribute__((noinline))  // fma() is long: inlined eight times over it costs a tenth
#else
#define GDN_INLINE_STEP __attribute__((always_inline)) inline
#endif

// A strip's sums over `groups` groups from the tiles' first one on, added in pairs, the pairs in pairs: so few of them
// wait at a time that they stay in registers. The last group comes first: where a state is larger than the first-level
// cache, its last rows are the ones still there from tile_dot.
template <int K, bool has_next, bool prefetches, int groups>
GDN_INLINE_STEP StripSums step_groups(const Tile& from, const Tile& to, int64_t ahead, Vec a, const float* k,
                                      const Vec (&d)[kStripVectors], const float* q, const float* k_next) {
  StripSums sums = {};
  if constexpr (groups == 1) {
    const float* period = from.data;
    float* new_period = to.data;
#pragma GCC unroll 1
    for (int i = 0; i < K; i += kPeriod, period += from.period_stride, new_period += to.period_stride) {
#pragma GCC unroll 4
      for (int j = 0; j < kGroupRows; ++j) {
        const float* row = period + j * from.row_stride;
        float* new_row = new_period + j * to.row_stride;
        if (prefetches) {
#pragma GCC unroll 8
          for (int n = 0; n < kStripVectors; ++n) __builtin_prefetch(row + ahead + n * kLanes);
        }
        const Vec ki = broadcast(k[i + j]), qi = broadcast(q[i + j]);
        const Vec ui = has_next ? broadcast(k_next[i + j]) : Vec{};
#pragma GCC unroll 8
        for (int n = 0; n < kStripVectors; ++n) {
          const Vec s = fma(a, load(row + n * kLanes), ki * d[n]);
          store(new_row + n * kLanes, s);
          sums.o[n] = fma(s, qi, sums.o[n]);
          if (has_next) sums.u[n] = fma(s, ui, sums.u[n]);
        }
      }
    }
  } else {
    constexpr int half = groups / 2, row = half * kGroupRows;
    const StripSums last =
        step_groups<K, has_next, prefetches, half>(from.after_groups(half), to.after_groups(half), ahead, a, k + row, d,
                                                   q + row, has_next ? k_next + row : nullptr);
    const StripSums first = step_groups<K, has_next, prefetches, half>(from, to, ahead, a, k, d, q, k_next);
#pragma GCC unroll 8
    for (int n = 0; n < kStripVectors; ++n) {
      sums.o[n] = first.o[n] + last.o[n];
      if (has_next) sums.u[n] = first.u[n] + last.u[n];
    }
  }
  return sums;
}

// to = α from + k δᵀ; o = toᵀ q; and u_next = toᵀ k_next where there is a next token: both chains read the same state.
// The tile that lies `ahead` floats after `from` is prefetched.
template <int K, bool has_next, bool prefetches>
GDN_INLINE_STEP void tile_step(const Tile& from, const Tile& to, int64_t ahead, float alpha, const float* k,
                               const float* delta, const float* q, float* o, const float* k_next, float* u_next) {
  for (int c = 0; c < kColumns; c += kStrip) {
    Vec d[kStripVectors];
    for (int n = 0; n < kStripVectors; ++n) d[n] = load(delta + c + n * kLanes);
    const StripSums sums = step_groups<K, has_next, prefetches, kGroups>(from.after_columns(c), to.after_columns(c),
                                                                         ahead, broadcast(alpha), k, d, q, k_next);
    for (int n = 0; n < kStripVectors; ++n) {
      store(o + c + n * kLanes, sums.o[n]);
      if (has_next) store(u_next + c + n * kLanes, sums.u[n]);
    }
  }
}
// With strides that the compiler knows.
template <int K, bool has_next>
void scratch_step(float* tile, float alpha, const float* k, const float* delta, const float* q, float* o,
                  const float* k_next, float* u_next) {
  const Tile at = tile_in_scratch(tile, K);
  tile_step<K, has_next, false>(at, at, 0, alpha, k, delta, q, o, k_next, u_next);
}
// At the ends of a chain, which may be the pool.
template <int K, bool has_next>
void end_step(Tile from, Tile to, int64_t ahead, float alpha, const float* k, const float* delta, const float* q,
              float* o, const float* k_next, float* u_next) {
  tile_step<K, has_next, true>(from, to, ahead, alpha, k, delta, q, o, k_next, u_next);
}

// S = α S + k δᵀ
void tile_replay(const Tile& tile, int64_t K, float alpha, const float* k, const float* delta) {
  const Vec a = broadcast(alpha);
  for_each_row(tile, K, [&](int64_t i, float* row) {
    const Vec ki = broadcast(k[i]);
    for (int c = 0; c < kColumns; c += kLanes) store(row + c, fma(a, load(row + c), ki * load(delta + c)));
  });
}

void copy_columns(const float* from, float* to) {
  for (int c = 0; c < kColumns; c += kLanes) store(to + c, load(from + c));
}

// Between tiles in scratch memory.
void tile_copy(const Tile& from, const Tile& to, int64_t K) {
  for (int64_t i = 0; i < K; ++i) copy_columns(from.data + i * kColumns, to.data + i * kColumns);
}

void tile_zero(const Tile& tile, int64_t K) {
  __builtin_memset(tile.data, 0, static_cast<size_t>(K * kColumns) * sizeof(float));
}

inline Quad interleave_low(Quad a, Quad b) { return Quad{a[0], b[0], a[1], b[1]}; }
inline Quad interleave_high(Quad a, Quad b) { return Quad{a[2], b[2], a[3], b[3]}; }

// Four rows of four elements at `from` become four rows at `to`, transposed.
inline void transpose_quad(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  const Quad r0 = load_quad(from), r1 = load_quad(from + from_stride), r2 = load_quad(from + 2 * from_stride),
             r3 = load_quad(from + 3 * from_stride);
  const Quad a = interleave_low(r0, r2), b = interleave_high(r0, r2), c = interleave_low(r1, r3),
             d = interleave_high(r1, r3);
  store_quad(to, interleave_low(a, c));
  store_quad(to + to_stride, interleave_high(a, c));
  store_quad(to + 2 * to_stride, interleave_low(b, d));
  store_quad(to + 3 * to_stride, interleave_high(b, d));
}

// Columns [c0, c0 + kColumns) of one head's state in a pool. With V contiguous it is itself a tile.
struct StateTile {
  float* data;
  int64_t key_stride;
  int64_t value_stride;

  bool is_tile() const { return value_stride == 1; }
  Tile as_tile() const { return tile_in_place(data, key_stride); }
  void load(const Tile& tile, int64_t K) const {
    for_each_row(tile, K, [&](int64_t i, float* row) {
      if (is_tile()) {
        copy_columns(data + i * key_stride, row);
      } else if (i % kGroupRows == 0) {
        for (int c = 0; c < kColumns; c += 4)
          transpose_quad(data + i + c * value_stride, value_stride, row + c, kColumns);
      }
    });
  }
  void save(const Tile& tile, int64_t K) const {
    for_each_row(tile, K, [&](int64_t i, float* row) {
      if (is_tile()) {
        copy_columns(row, data + i * key_stride);
      } else if (i % kGroupRows == 0) {
        for (int c = 0; c < kColumns; c += 4)
          transpose_quad(row + c, kColumns, data + i + c * value_stride, value_stride);
      }
    });
  }
};

inline StateTile state_tile(const StateView& state, int64_t slot, int64_t head, int64_t c0) {
  return {state.data + slot * state.slot_stride + head * state.head_stride + c0 * state.value_stride, state.key_stride,
          state.value_stride};
}
