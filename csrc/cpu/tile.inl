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

// to = α from + k δᵀ; o = toᵀ q; and u_next = toᵀ k_next where there is a next token: both chains read the same state.
template <int K, bool has_next>
void tile_step(Tile from, Tile to, float alpha, const float* k, const float* delta, const float* q, float* o,
               const float* k_next, float* u_next) {
  const Vec a = broadcast(alpha);
  for (int c = 0; c < kColumns; c += kStrip) {
    Vec d[kStripVectors];
    Vec o_sums[kStripVectors][kGroups], u_sums[kStripVectors][kGroups];
    for (int n = 0; n < kStripVectors; ++n) d[n] = load(delta + c + n * kLanes);
    for (int group = 0; group < kGroups; ++group) {
      Vec po[kStripVectors] = {}, pu[kStripVectors] = {};
      const float* period = from.data + group * from.group_stride + c;
      float* new_period = to.data + group * to.group_stride + c;
      for (int i = group * kGroupRows; i < K;
           i += kPeriod, period += from.period_stride, new_period += to.period_stride) {
        const float* row = period;
        float* new_row = new_period;
#pragma GCC unroll 4
        for (int j = 0; j < kGroupRows; ++j, row += from.row_stride, new_row += to.row_stride) {
          const Vec ki = broadcast(k[i + j]), qi = broadcast(q[i + j]);
          const Vec ui = has_next ? broadcast(k_next[i + j]) : Vec{};
#pragma GCC unroll 8
          for (int n = 0; n < kStripVectors; ++n) {
            const Vec s = fma(a, load(row + n * kLanes), ki * d[n]);
            store(new_row + n * kLanes, s);
            po[n] = fma(s, qi, po[n]);
            if (has_next) pu[n] = fma(s, ui, pu[n]);
          }
        }
      }
      for (int n = 0; n < kStripVectors; ++n) {
        o_sums[n][group] = po[n];
        if (has_next) u_sums[n][group] = pu[n];
      }
    }
    for (int n = 0; n < kStripVectors; ++n) {
      store(o + c + n * kLanes, sum_of_groups(o_sums[n]));
      if (has_next) store(u_next + c + n * kLanes, sum_of_groups(u_sums[n]));
    }
  }
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
