// The part of chunk_fp32 that walks: a block takes its columns of its value heads from chunk to chunk of a window
// (docs/math.md (9) to (11)). docs/kernels/chunk_fp32.md: roofline, schedule, error bound, what was tried.
//
//   tensor   shape                            strides                      dtype
//   v, o     [B, T, HV, V]                    last 1, others any           float32, bfloat16 or float16
//   state    [S, HV, K, V] or [S, HV, V, K]   last 1, others any           float32
//   work     chunk_prep.cuh
//
// Grid: x = V / head columns, y = H * (HV/H) / heads, z = sequences. 256 threads, two groups of four warps, one warp of
// each on every scheduler:
//   chain    u = S'k, the corrections D and the state's update: what the next chunk waits for
//   output   S'q and o, and the copies of the next chunk's keys, queries, coefficients and gates
// The two run the same code for the product with the state and for that with a triangle of coefficients, M or P. A lane
// has n of the block's columns, n / heads of each value head; after a sum over the eight lanes of a split it has one
// token, the low quad's or the high quad's of its warp: quads 0 and 7, 1 and 6, 2 and 5, or 3 and 4, so that every warp
// has as much of a triangle. Shared memory: ChunkScanShared, with the state in it. Precision: float32.
// The output group is half a chunk behind: its product with the state runs beside the chain's triangle and update, its
// own triangle beside the chain's next product. Sync contract:
//   chain         r = v - e^gamma u is complete; r has been read; the corrections are; the new state is, and next keys
//   output        queries have been read; coefficients and gates have been; the next ones are there, and queries
//   keys done     chain to output: the state is the chunk's, and the keys before the chunk's have been read
//   coefficients  output to chain: the chunk's coefficients and gates are there, and D before it has been read
//   corrections   both: D is complete, the chain has read coefficients and gates, the output group the state before the
//                 chunk; the next keys are there
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/chunk_order.cuh"
#include "cuda/chunk_products.cuh"
#include "cuda/pack.cuh"

namespace gdn::gpu {

template <int key_dim, int block_heads>
struct ChunkScanTraits {
  static constexpr int K = key_dim;
  static constexpr int C = chunk::kTokens;
  static constexpr int heads = block_heads;
  static constexpr int lane_columns = chunk::lane_columns(heads);  // of a value head
  static constexpr int n = heads * lane_columns;                   // of a lane
  static constexpr int head_columns = chunk::block_columns(heads);
  static constexpr int columns = heads * head_columns;
  static constexpr int group_warps = 4;
  static constexpr int group_threads = group_warps * kWarp;
  static constexpr int threads = 2 * group_threads;
  static constexpr int quad = 4;
  static constexpr int quad_stride = quad * columns + quad;  // of the state: split lanes are in different banks
  static constexpr int row_stride = columns + quad;
  // The update's tile: quads of rows a lane over half of the tokens; of a pair of quads each of two lanes keeps one.
  static constexpr int quads = K / (group_warps * 4 * quad);
  static constexpr int kept = quads > 1 ? quads / 2 : 1;

  static_assert(C == group_warps * kTileRows, "a warp has eight tokens");
  static_assert(n % quad == 0, "a lane's columns are whole vectors");
  static_assert(columns % (2 * kSplit) == 0, "the strides above avoid bank conflicts");
};

template <class Tr>
struct ChunkScanShared {
  float k[2][Tr::C][Tr::K];
  float q[Tr::C][Tr::K];
  float state[Tr::K / Tr::quad * Tr::quad_stride];
  float r[Tr::C][Tr::row_stride];  // v - e^gamma u, then the decayed corrections
  float d[Tr::C][Tr::row_stride];
  float coefficients[Tr::heads][Tr::C][Tr::C];  // row x is rotated by 4 x
  float gates[Tr::heads][chunk::kGateRows][Tr::C];
};

template <class Tr>
constexpr int chunk_scan_shared_bytes = static_cast<int>(sizeof(ChunkScanShared<Tr>));

template <class Tr>
class ChunkScan {
 public:
  __device__ ChunkScan(const ChunkParams& params, ChunkScanShared<Tr>& shared)
      : params_(params),
        shared_(shared),
        thread_(static_cast<int>(threadIdx.x) % Tr::group_threads),
        chain_(uniform(static_cast<int>(threadIdx.x) / Tr::group_threads) == 0),
        warp_(uniform(thread_ / kWarp)),
        split_(split_lane()),
        across_(across_lane()) {
    const RecurrenceParams& p = params.p;
    const int64_t n = blockIdx.z, group = p.heads.value_heads / p.heads.key_heads, subgroups = group / Tr::heads;
    const int64_t key_head = blockIdx.y / subgroups, in_group = blockIdx.y % subgroups * Tr::heads;
    const bool grouped = p.heads.head_map == HeadMap::grouped;
    first_head_ = grouped ? key_head * group + in_group : key_head + in_group * p.heads.key_heads;
    head_step_ = grouped ? 1 : p.heads.key_heads;
    column_ = static_cast<int64_t>(blockIdx.x) * Tr::head_columns;
    chunks_ = chunks_of_sequence(p.shape, n);
    begin_ = chunks_.not_below(params.window.first);
    end_ = chunks_.not_below(params.window.first + params.window.count);
    const int64_t slots = p.state_in.slots > p.state_out.slots ? p.state_in.slots : p.state_out.slots;
    slot_ = slot_of(p.state_indices, n, slots);
    const int64_t value_head = key_head * group + in_group;
    rows_ = key_head * params.window.layout.rows;
    coefficients_ = params.window.layout.coefficients + value_head * chunk::kCoefficients;
    gates_ = params.window.layout.gates + value_head * chunk::kGateRows * Tr::C;
  }

  __device__ void run() {
    const bool first_window = params_.window.first == 0;
    const bool skipped = uniform(slot_ < 0 ? 1 : 0) != 0;
    if (first_window && !chain_) write_uncovered(skipped);
    const bool works = uniform(begin_ < end_ ? 1 : 0) != 0;
    if (skipped || (!works && !(first_window && chunks_.count == 0))) return;
    load_state();
    if (!chain_ && works) {
      copy_keys(begin_);
      copy_queries(begin_);
      Coefficients first;
      first.load(*this, begin_);
      first.store(*this);
      wait_for_copies();
    }
    sync_block();
    if (works) {
      if (!chain_) both_arrive<kCoefficients>();
#pragma unroll 1
      for (int64_t j = begin_; j < end_; ++j) walk(j);
    }
    sync_block();
    save_state();
  }

 private:
  enum Barrier { kChain = 1, kOutput, kKeysDone, kCoefficients, kCorrections, kSeen };

  __device__ __forceinline__ void group_barrier() const {
    if (chain_) {
      named_barrier<kChain, Tr::group_threads>();
    } else {
      named_barrier<kOutput, Tr::group_threads>();
    }
  }
  template <Barrier id>
  __device__ __forceinline__ void both_arrive() const {
    named_arrive<id, Tr::threads>();
  }
  template <Barrier id>
  __device__ __forceinline__ void both_wait() const {
    named_barrier<id, Tr::threads>();
  }

  // Twice: racecheck of compute-sanitizer 2025.3 does not see the first.
  __device__ __forceinline__ void meet_for_corrections() const {
    both_wait<kCorrections>();
    both_wait<kSeen>();
  }

  __device__ __forceinline__ void walk(int64_t j) {
    const bool more = j + 1 < end_;
    const float (*keys)[Tr::K] = shared_.k[(j - begin_) % 2];
    const bool exists = j * Tr::C + token() < chunks_.rows.count;
    RawPart<Tr::lane_columns> v[Tr::heads];
    if (chain_) {
      load_values(j, exists, v);
    } else {
      both_wait<kKeysDone>();
      if (more) copy_keys(j + 1);
    }

    float mine[Tr::n];  // r of the lane's token, or e^gamma S'q
    {
      float tile[kTileRows][Tr::n];
      multiply_state(chain_ ? keys : shared_.q, tile);
      if (chain_) both_arrive<kKeysDone>();
      add_halves<kTileRows / 2>(tile);
      if (chain_) both_wait<kCoefficients>();
      decay_product(tile[0], exists, v, mine);
    }
    if (chain_) store_words(&shared_.r[token()][across_ * Tr::n], mine);
    group_barrier();
    Coefficients next;
    if (!chain_) {
      wait_for_copies();
      meet_for_corrections();
      if (more) copy_queries(j + 1);
      if (more) next.load(*this, j + 1);
    }

    float sum[Tr::n];
    multiply_triangle(chain_ ? shared_.r : shared_.d, sum);
    if (chain_) {
      float decayed[Tr::n], last[Tr::heads];
      correct(mine, sum, decayed);
#pragma unroll
      for (int h = 0; h < Tr::heads; ++h) last[h] = shared_.gates[h][0][Tr::C - 1];
      group_barrier();
      store_words(&shared_.d[token()][across_ * Tr::n], sum);
      store_words(&shared_.r[token()][across_ * Tr::n], decayed);
      meet_for_corrections();
      update(keys, last);
      group_barrier();
    } else {
      group_barrier();
      if (more) {
        next.store(*this);
        both_arrive<kCoefficients>();
      }
#pragma unroll
      for (int c = 0; c < Tr::n; ++c) sum[c] += mine[c];  // (10)
      if (exists) store_outputs(j, sum);
      wait_for_copies();
      group_barrier();
    }
  }

  // A warp's rows 0 to 7: the tokens of its low and of its high quad.
  __device__ __forceinline__ int token_of(int row) const {
    return row < Tr::quad ? warp_ * Tr::quad + row : Tr::C - 2 * Tr::quad - warp_ * Tr::quad + row;
  }
  __device__ __forceinline__ int token() const { return token_of(split_); }

  // Row r of the tile: the product of the tokens' rows and the state, over the lane's quads of K.
  __device__ __forceinline__ void multiply_state(const float (*rows)[Tr::K], float (&tile)[kTileRows][Tr::n]) const {
    clear(tile);
    const float* row[kTileRows];
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) row[r] = rows[token_of(r ^ split_)] + split_ * Tr::quad;
    const float* state = shared_.state + split_ * Tr::quad_stride + across_ * Tr::n;
#pragma unroll 1
    for (int m = 0; m < Tr::K / (kSplit * Tr::quad); ++m) {
      float a[kTileRows][Tr::quad];
#pragma unroll
      for (int r = 0; r < kTileRows; ++r) load_words(row[r] + m * kSplit * Tr::quad, a[r]);
#pragma unroll
      for (int y = 0; y < Tr::quad; ++y) {
        float b[Tr::n];
        load_words(state + m * kSplit * Tr::quad_stride + y * Tr::columns, b);
#pragma unroll
        for (int c = 0; c < Tr::n; ++c) {
#pragma unroll
          for (int r = 0; r < kTileRows; ++r) tile[r][c] = fmaf(a[r][y], b[c], tile[r][c]);
        }
      }
    }
  }

  __device__ __forceinline__ void decay_product(const float (&u)[Tr::n], bool exists,
                                                const RawPart<Tr::lane_columns> (&v)[Tr::heads],
                                                float (&result)[Tr::n]) const {
#pragma unroll
    for (int h = 0; h < Tr::heads; ++h) {
      const float decay = shared_.gates[h][0][token()];
      float value[Tr::lane_columns] = {};
      if (chain_ && exists) v[h].widen(params_.p.v.dtype, value);
#pragma unroll
      for (int c = 0; c < Tr::lane_columns; ++c) {
        const int at = h * Tr::lane_columns + c;
        result[at] = fmaf(chain_ ? -decay : decay, u[at], value[c]);
      }
    }
  }

  // For the lane's token t: the sum of M_ti beta_i x_i over i < t, or of P_ti x_i over i <= t. Only the last eight i of
  // a quad of tokens are partly beyond.
  __device__ __forceinline__ void multiply_triangle(const float (*x)[Tr::row_stride], float (&sum)[Tr::n]) const {
    float low[Tr::quad][Tr::n], high[Tr::quad][Tr::n];
    clear(low);
    clear(high);
    const int last_low = warp_ / 2, last_high = kSplit / 2 - 1 - warp_ / 2;
    if (last_low == 1) multiply_quad<false>(0, 0, x, low);
    multiply_quad<true>(0, last_low, x, low);
    multiply_quad<false>(Tr::quad, 0, x, high);
    multiply_quad<false>(Tr::quad, 1, x, high);
    if (last_high == 3) multiply_quad<false>(Tr::quad, 2, x, high);
    multiply_quad<true>(Tr::quad, last_high, x, high);
    add_halves<Tr::quad / 2>(low);
    add_halves<Tr::quad / 2>(high);
    const bool upper = split_ >= Tr::quad;
#pragma unroll
    for (int c = 0; c < Tr::n; ++c) {
      const float keep = upper ? high[0][c] : low[0][c], give = upper ? low[0][c] : high[0][c];
      sum[c] = keep + shuffle_xor(give, Tr::quad);
    }
  }
  // The terms i = 8 block + split. P_ti is in row i, column t, M_ti in row 31 - i, column 31 - t.
  template <bool partly>
  __device__ __forceinline__ void multiply_quad(int first_row, int block, const float (*x)[Tr::row_stride],
                                                float (&tile)[Tr::quad][Tr::n]) const {
    constexpr int last = Tr::C - 1;
    const int i = block * kSplit + split_, row = chain_ ? last - i : i;
    const float* coefficients = shared_.coefficients[0][row];
    float b[Tr::n];
    load_words(&x[i][across_ * Tr::n], b);
#pragma unroll
    for (int r = 0; r < Tr::quad; ++r) {
      const int t = token_of(first_row + (r ^ (split_ % Tr::quad))), column = chain_ ? last - t : t;
      const float* at = coefficients + (column + Tr::quad * row) % Tr::C;
      const bool inside = !partly || (chain_ ? i < t : i <= t);
#pragma unroll
      for (int h = 0; h < Tr::heads; ++h) {
        const float coefficient = inside ? at[h * chunk::kCoefficients] : 0.0f;
#pragma unroll
        for (int c = 0; c < Tr::lane_columns; ++c) {
          float& to = tile[r][h * Tr::lane_columns + c];
          to = fmaf(coefficient, b[h * Tr::lane_columns + c], to);
        }
      }
    }
  }

  // (9): M's diagonal added, the corrections of the lane's token; and decayed to the chunk's end.
  __device__ __forceinline__ void correct(const float (&r)[Tr::n], float (&d)[Tr::n], float (&decayed)[Tr::n]) const {
#pragma unroll
    for (int h = 0; h < Tr::heads; ++h) {
      const float rest = shared_.gates[h][1][token()], beta = shared_.gates[h][2][token()];
#pragma unroll
      for (int c = 0; c < Tr::lane_columns; ++c) {
        const int at = h * Tr::lane_columns + c;
        d[at] = fmaf(beta, r[at], d[at]);
        decayed[at] = rest * d[at];
      }
    }
  }

  // (11). The lane's quads of rows are 16 rows apart. Of a pair of them the lane of the tokens' second half begins with
  // the second one, so that the two halves read different banks; each keeps the first that it has.
  __device__ __forceinline__ void update(const float (*k)[Tr::K], const float (&last)[Tr::heads]) const {
    constexpr int apart = 4 * Tr::quad, half_lane = kSplit / 2;
    const int half = split_ / half_lane, swap = Tr::quads > 1 ? half * apart : 0;
    const int first_row = warp_ * (Tr::K / Tr::group_warps) + split_ % half_lane * Tr::quad;
    float tile[Tr::quads * Tr::quad][Tr::n];
    clear(tile);
    const float *even = &k[half][first_row + swap], *odd = &k[half][first_row + apart - swap];
    const float* d = &shared_.r[half][across_ * Tr::n];
#pragma unroll 2
    for (int t = 0; t < Tr::C; t += 2) {
      float a[Tr::quads][Tr::quad], b[Tr::n];
#pragma unroll
      for (int q = 0; q < Tr::quads; ++q) load_words((q % 2 == 0 ? even : odd) + t * Tr::K + q / 2 * 2 * apart, a[q]);
      load_words(d + t * Tr::row_stride, b);
#pragma unroll
      for (int c = 0; c < Tr::n; ++c) {
#pragma unroll
        for (int q = 0; q < Tr::quads; ++q) {
#pragma unroll
          for (int y = 0; y < Tr::quad; ++y) {
            float& to = tile[q * Tr::quad + y][c];
            to = fmaf(a[q][y], b[c], to);
          }
        }
      }
    }
    float* state = shared_.state + (first_row + swap) / Tr::quad * Tr::quad_stride + across_ * Tr::n;
    constexpr int pair_stride = 2 * (apart / Tr::quad) * Tr::quad_stride;
    float S[Tr::kept][Tr::quad][Tr::n];
#pragma unroll
    for (int q = 0; q < Tr::kept; ++q) {
#pragma unroll
      for (int y = 0; y < Tr::quad; ++y) load_words(state + q * pair_stride + y * Tr::columns, S[q][y]);
    }
#pragma unroll
    for (int q = 0; q < Tr::kept; ++q) {
#pragma unroll
      for (int y = 0; y < Tr::quad; ++y) {
        const int kept = 2 * q * Tr::quad + y, given = Tr::quads > 1 ? kept + Tr::quad : kept;
#pragma unroll
        for (int c = 0; c < Tr::n; ++c) {
          const float added = tile[kept][c] + shuffle_xor(tile[given][c], half_lane);
          S[q][y][c] = fmaf(last[c / Tr::lane_columns], S[q][y][c], added);
        }
      }
    }
    if constexpr (Tr::quads == 1) sync_warp();  // both halves have read what one of them writes
    if (Tr::quads == 1 && half != 0) return;
#pragma unroll
    for (int q = 0; q < Tr::kept; ++q) {
#pragma unroll
      for (int y = 0; y < Tr::quad; ++y) store_words(state + q * pair_stride + y * Tr::columns, S[q][y]);
    }
  }

  // f(where a value of the block's state is in shared memory, row of K, value head, column of V): neighbouring threads
  // have neighbours in the state's own memory.
  template <class F>
  __device__ __forceinline__ void for_each_value(const StateView& state, F f) const {
    const bool along_rows = state.key_stride == 1;
#pragma unroll 4
    for (int e = static_cast<int>(threadIdx.x); e < Tr::K * Tr::columns; e += Tr::threads) {
      const int row = along_rows ? e % Tr::K : e / Tr::columns, c = along_rows ? e / Tr::K : e % Tr::columns;
      const int head = c / Tr::head_columns, column = c % Tr::head_columns;
      const int at = column / Tr::lane_columns * Tr::n + head * Tr::lane_columns + column % Tr::lane_columns;
      f(row / Tr::quad * Tr::quad_stride + row % Tr::quad * Tr::columns + at,
        state.data + slot_ * state.slot_stride + (first_head_ + head * head_step_) * state.head_stride +
            row * state.key_stride + (column_ + column) * state.value_stride);
    }
  }
  __device__ void load_state() const {
    const RecurrenceParams& p = params_.p;
    const bool goes_on = begin_ > 0;  // a window before this one has left its state
    const bool starts = p.state_in.data != nullptr && starts_from_state(p.has_initial_state, blockIdx.z);
    for_each_value(goes_on || !starts ? p.state_out : p.state_in,
                   [&](int at, const float* from) { shared_.state[at] = goes_on || starts ? *from : 0.0f; });
  }
  __device__ void save_state() const {
    for_each_value(params_.p.state_out, [&](int at, float* to) { *to = shared_.state[at]; });
  }

  __device__ __forceinline__ const float* work(int64_t j) const {
    return params_.window.work + (chunks_.number(j) - params_.window.first) * params_.window.layout.floats;
  }
  __device__ __forceinline__ void copy_rows(float* s_to, const float* from) const {
    constexpr int step = Tr::quad * Tr::group_threads;
    s_to += Tr::quad * thread_;
    from += Tr::quad * thread_;
#pragma unroll
    for (int i = 0; i < Tr::C * Tr::K; i += step) copy_vector(s_to + i, from + i);
  }
  __device__ __forceinline__ void copy_keys(int64_t j) const {
    copy_rows(shared_.k[(j - begin_) % 2][0], work(j) + rows_);
  }
  __device__ __forceinline__ void copy_queries(int64_t j) const {
    copy_rows(shared_.q[0], work(j) + rows_ + Tr::C * Tr::K);
  }
  // A chunk's coefficients and gates on their way through a thread's registers: the buffer is free only when they are
  // needed.
  struct Coefficients {
    static constexpr int vectors = Tr::C / Tr::quad, rows = Tr::group_threads / vectors;  // a row, and rows at a time
    static constexpr int steps = Tr::heads * Tr::C / rows, gate_vectors = Tr::heads * chunk::kGateRows * vectors;
    static_assert(gate_vectors <= Tr::group_threads, "at most one a thread");
    static_assert(rows % vectors == 0, "a thread's rows are rotated alike");
    float4 part[steps], gates;

    __device__ __forceinline__ void load(const ChunkScan& scan, int64_t j) {
      const auto* from = reinterpret_cast<const float4*>(scan.work(j) + scan.coefficients_) + scan.thread_;
#pragma unroll
      for (int i = 0; i < steps; ++i) part[i] = from[i * Tr::group_threads];
      if (scan.thread_ < gate_vectors) {
        gates = reinterpret_cast<const float4*>(scan.work(j) + scan.gates_)[scan.thread_];
      }
    }
    __device__ __forceinline__ void store(const ChunkScan& scan) const {
      const int row = scan.thread_ / vectors, x = scan.thread_ % vectors;
      float* s_to = &scan.shared_.coefficients[0][row][(x + row) % vectors * Tr::quad];
#pragma unroll
      for (int i = 0; i < steps; ++i) *reinterpret_cast<float4*>(s_to + i * rows * Tr::C) = part[i];
      if (scan.thread_ < gate_vectors) reinterpret_cast<float4*>(&scan.shared_.gates[0][0][0])[scan.thread_] = gates;
    }
  };
  static __device__ __forceinline__ void copy_vector(float* s_to, const float* from) {
    copy_async(reinterpret_cast<float4*>(s_to), reinterpret_cast<const float4*>(from));
  }

  // Where the lane's columns of a head lie in v or o.
  __device__ __forceinline__ int64_t offset(const int64_t (&stride)[4], int64_t j, int head) const {
    return chunks_.rows.batch * stride[0] + (chunks_.rows.first + j * Tr::C + token()) * stride[1] +
           (first_head_ + head * head_step_) * stride[2] + column_ + across_ * Tr::lane_columns;
  }
  __device__ __forceinline__ void load_values(int64_t j, bool exists, RawPart<Tr::lane_columns> (&v)[Tr::heads]) const {
    if (!exists) return;
#pragma unroll
    for (int h = 0; h < Tr::heads; ++h) {
      v[h].load(params_.p.v, offset(params_.p.v.stride, j, h), params_.packed_rows);
    }
  }
  __device__ __forceinline__ void store_outputs(int64_t j, const float (&o)[Tr::n]) const {
    const OutView<4>& out = params_.p.o;
    with_element_of(out.dtype, [&](auto element) {
      using Element = decltype(element);
#pragma unroll
      for (int h = 0; h < Tr::heads; ++h) {
        float x[Tr::lane_columns];
#pragma unroll
        for (int c = 0; c < Tr::lane_columns; ++c) x[c] = o[h * Tr::lane_columns + c];
        Pack<Element, Tr::lane_columns> pack;
        pack.narrow(x);
        *reinterpret_cast<Pack<Element, Tr::lane_columns>*>(static_cast<Element*>(out.data) +
                                                            offset(out.stride, j, h)) = pack;
      }
    });
  }

  // Rows that no sequence has, and those of a skipped one.
  __device__ void write_uncovered(bool skipped) const {
    const SequenceShape& shape = params_.p.shape;
    const SequenceRows& rows = chunks_.rows;
    if (shape.cu_seqlens.data != nullptr) {
      if (blockIdx.z == 0) write_zeros(0, rows.first);
      if (blockIdx.z == shape.sequences - 1) write_zeros(rows.first + rows.count, shape.tokens);
    }
    if (skipped) write_zeros(rows.first, rows.first + rows.count);
  }
  __device__ void write_zeros(int64_t begin, int64_t end) const {
    const OutView<4>& o = params_.p.o;
    for (int64_t t = begin; t < end; ++t) {
      for (int e = thread_; e < Tr::columns; e += Tr::group_threads) {
        const int64_t head = first_head_ + e / Tr::head_columns * head_step_;
        gpu::store(
            o, chunks_.rows.batch * o.stride[0] + t * o.stride[1] + head * o.stride[2] + column_ + e % Tr::head_columns,
            0.0f);
      }
    }
  }

  const ChunkParams& params_;
  ChunkScanShared<Tr>& shared_;
  int thread_;  // in its group
  bool chain_;
  int warp_;  // in its group
  int split_, across_;
  int64_t first_head_, head_step_, column_;  // value heads first_head + h head_step; the block's first column of each
  SequenceChunks chunks_;
  int64_t begin_, end_;  // the window's of the sequence's chunks
  int64_t slot_;
  int64_t rows_, coefficients_, gates_;  // of a chunk's work: where the block's parts begin
};

template <class Tr>
__global__ void __launch_bounds__(Tr::threads, 1) chunk_scan_kernel(const __grid_constant__ ChunkParams params) {
  extern __shared__ float4 s_memory[];
  ChunkScan<Tr>(params, *reinterpret_cast<ChunkScanShared<Tr>*>(s_memory)).run();
}

}  // namespace gdn::gpu
