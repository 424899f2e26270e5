// The part of chunk_fp32 that walks: a block takes its columns of its value heads from chunk to chunk of a window
// (docs/math.md (9) to (11)). docs/kernels/chunk_fp32.md: roofline, schedule, error bound, what was tried.
//
//   tensor   shape                            strides                      dtype
//   v, o     [B, T, HV, V]                    last 1, others any           float32, bfloat16 or float16
//   state    [S, HV, K, V] or [S, HV, V, K]   last 1, others any           float32
//   work     chunk_prep.cuh
//
// Grid: x = V / 16, y = H * (HV/H) / heads, z = sequences. A block is one chain or two (core/chunk_shapes.h) of four
// warps each, one warp of a chain on every scheduler. A chain has half of the block's columns, and the other one only
// waits for it to have multiplied with the state: what is small or waits, of one, runs beside that product of the
// other. A lane has n of a chain's columns, n / heads of each value head; after a sum over the eight lanes of a split
// it has one token, the low quad's or the high quad's of its warp: quads 0 and 7, 1 and 6, 2 and 5, or 3 and 4, so that
// every warp has as much of a triangle. Shared memory: ChunkScanShared, with the states in it. Precision: float32.
//
// Sync contract:
//   full    of a stage: the chunk's part of the work buffer is there
//   empty   of a stage: all chains have read it; the last one fills it again, with the next chunk but `stages` - 1
//   turns   a chain has multiplied with its state, and the other one may
//   chain   four times a chunk: r = v - e^gamma u is there; r has been read; D and its decayed form are there; the next
//           state is there, and D and decayed D have been read
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/chunk_order.cuh"
#include "cuda/chunk_products.cuh"
#include "cuda/pack.cuh"

namespace gdn::gpu {

template <int key_dim, int value_heads>
struct ChunkScanTraits {
  static constexpr int K = key_dim;
  static constexpr int C = chunk::kTokens;
  static constexpr int block_heads = value_heads;
  static constexpr int chains = chunk::chains(block_heads);
  static constexpr int heads = chunk::chain_heads(block_heads);      // of a chain
  static constexpr int columns = chunk::chain_columns(block_heads);  // and its columns
  static constexpr int n = columns / chunk::kLanesAcross;            // of a lane
  static constexpr int lane_columns = n / heads;                     // and of one of its heads
  static constexpr int head_columns = columns / heads;
  static constexpr bool every_head = heads == block_heads;  // of the block's, or the one of the chain's number
  static constexpr int warps = 4;                           // of a chain
  static constexpr int chain_threads = warps * kWarp;
  static constexpr int threads = chains * chain_threads;
  static constexpr int quad = 4;
  // The update's tile: quads of rows a lane over half of the tokens; of a pair of quads each of two lanes keeps one.
  static constexpr int quads = K / (warps * 4 * quad);
  static constexpr int kept = quads > 1 ? quads / 2 : 1;
  static GDN_HD constexpr int row_offset(int row) { return static_cast<int>(chunk::row_offset(row, columns)); }

  static_assert(C == warps * kTileRows, "a warp has eight tokens");
};

template <class Tr>
struct ChunkStage {
  float k[Tr::C][Tr::K];
  float columns[2][Tr::K][Tr::C];  // of keys, then of queries
  float coefficients[Tr::block_heads][Tr::C][Tr::C];
  float gates[Tr::block_heads][chunk::kGateRows][Tr::C];
};

template <class Tr>
struct ChunkChain {
  float state[Tr::row_offset(Tr::K)];
  float r[Tr::row_offset(Tr::C)];  // v - e^gamma u, then the decayed corrections
  float d[Tr::row_offset(Tr::C)];
};

template <class Tr>
struct ChunkScanShared {
  ChunkChain<Tr> chain[Tr::chains];
  uint64_t full[2], empty[2];  // of a stage
  ChunkStage<Tr> stage[1];     // or two
};

template <class Tr>
constexpr int chunk_scan_shared_bytes = static_cast<int>(sizeof(ChunkScanShared<Tr>));  // with one stage
template <class Tr>
constexpr int chunk_scan_stage_bytes = static_cast<int>(sizeof(ChunkStage<Tr>));

template <class Tr>
class ChunkScan {
 public:
  __device__ ChunkScan(const ChunkParams& params, ChunkScanShared<Tr>& shared)
      : params_(params),
        shared_(shared),
        chain_(uniform(static_cast<int>(threadIdx.x) / Tr::chain_threads)),
        warp_(uniform(static_cast<int>(threadIdx.x) % Tr::chain_threads / kWarp)),
        split_(split_lane()),
        across_(across_lane()),
        mine_(shared.chain[chain_]) {
    const RecurrenceParams& p = params.p;
    const int64_t n = blockIdx.z, group = p.heads.value_heads / p.heads.key_heads, subgroups = group / Tr::block_heads;
    const int64_t key_head = blockIdx.y / subgroups, in_group = blockIdx.y % subgroups * Tr::block_heads;
    const bool grouped = p.heads.head_map == HeadMap::grouped;
    first_head_ = grouped ? key_head * group + in_group : key_head + in_group * p.heads.key_heads;
    head_step_ = grouped ? 1 : p.heads.key_heads;
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
    if (first_window) write_uncovered(skipped);
    const bool works = uniform(begin_ < end_ ? 1 : 0) != 0;
    if (skipped || (!works && !(first_window && chunks_.count == 0))) return;
    if (threadIdx.x == 0) {
      for (int s = 0; s < 2; ++s) {
        init_barrier(&shared_.full[s], CopyGroup::arrivals);
        init_barrier(&shared_.empty[s], Tr::chains);
      }
      publish_barriers();
    }
    load_states();
    sync_block();
    if (copies()) {
      for (int64_t j = begin_; j < end_ && j < begin_ + params_.stages; ++j) copy_chunk(j);
    }
#pragma unroll 1
    for (int64_t j = begin_; j < end_; ++j) walk(j);
    sync_block();
    save_states();
  }

 private:
  using CopyGroup = GroupCopy<Tr::chain_threads>;

  __device__ __forceinline__ bool copies() const { return chain_ == Tr::chains - 1; }
  __device__ __forceinline__ int stage_of(int64_t j) const {
    return static_cast<int>(j - begin_) & (params_.stages - 1);
  }
  // Of the phases of a stage's barriers, modulo two.
  __device__ __forceinline__ uint32_t phase_of(int64_t j) const {
    return static_cast<uint32_t>(j - begin_) >> (params_.stages - 1) & 1;
  }
  __device__ __forceinline__ void copy_chunk(int64_t j) const {
    const int s = stage_of(j);
    ChunkStage<Tr>& stage = shared_.stage[s];
    const float* work = params_.window.work + (chunks_.number(j) - params_.window.first) * params_.window.layout.floats;
    const CopyGroup copy(&shared_.full[s], sizeof stage);
    copy.template part<3 * Tr::C * Tr::K>(stage.k[0], work + rows_);
    copy.template part<Tr::block_heads * chunk::kCoefficients>(stage.coefficients[0][0], work + coefficients_);
    copy.template part<Tr::block_heads * chunk::kGateRows * Tr::C>(stage.gates[0][0], work + gates_);
    copy.close();
  }
  // The chain has read chunk j. Once all have, its stage is filled again.
  __device__ __forceinline__ void release_chunk(int64_t j) const {
    if (threadIdx.x % Tr::chain_threads == 0) arrive(&shared_.empty[stage_of(j)]);
    if (!copies() || j + params_.stages >= end_) return;
    wait(&shared_.empty[stage_of(j)], phase_of(j));
    copy_chunk(j + params_.stages);
  }

  enum Barrier { kFirst = 1, kSecond, kFirstTurn, kSecondTurn };

  __device__ __forceinline__ void chain_barrier() const {
    if (chain_ == 0) {
      named_barrier<kFirst, Tr::chain_threads>();
    } else {
      named_barrier<kSecond, Tr::chain_threads>();
    }
  }
  // Chains multiply with the state in turns: the other one's small products and exchanges run beside it.
  __device__ __forceinline__ void begin_turn(int64_t j) const {
    if constexpr (Tr::chains > 1) {
      if (chain_ == 0 && j > begin_) named_barrier<kFirstTurn, Tr::threads>();
      if (chain_ == 1) named_barrier<kSecondTurn, Tr::threads>();
    }
  }
  __device__ __forceinline__ void end_turn(int64_t j) const {
    if constexpr (Tr::chains > 1) {
      if (chain_ == 0) named_arrive<kSecondTurn, Tr::threads>();
      if (chain_ == 1 && j + 1 < end_) named_arrive<kFirstTurn, Tr::threads>();
    }
  }

  __device__ __forceinline__ void walk(int64_t j) const {
    const ChunkStage<Tr>& stage = shared_.stage[stage_of(j)];
    const bool exists = j * Tr::C + token() < chunks_.rows.count;
    RawPart<Tr::lane_columns> v[Tr::heads];
    if (exists) load_values(j, v);
    wait(&shared_.full[stage_of(j)], phase_of(j));

    float r[Tr::n], o[Tr::n];  // of the lane's token
    {
      float tile[2 * kTileRows][Tr::n];
      begin_turn(j);
      multiply_state(stage, tile);
      end_turn(j);
      add_halves<kTileRows / 2>(tile);
      add_halves<kTileRows / 2, kTileRows>(tile);
      decay_products(stage, tile[0], tile[kTileRows], exists, v, r, o);
    }
    float* s_r = mine_.r + Tr::row_offset(token()) + across_ * Tr::n;
    float* s_d = mine_.d + Tr::row_offset(token()) + across_ * Tr::n;
    store_words(s_r, r);
    chain_barrier();

    float d[Tr::n], decayed[Tr::n];
    multiply_triangle<true>(stage, mine_.r, d);
    correct(stage, r, d, decayed);
    chain_barrier();
    store_words(s_d, d);
    store_words(s_r, decayed);
    chain_barrier();

    float corrected[Tr::n];
    multiply_triangle<false>(stage, mine_.d, corrected);
#pragma unroll
    for (int c = 0; c < Tr::n; ++c) o[c] += corrected[c];  // (10)
    if (exists) store_outputs(j, o);
    update(stage);
    chain_barrier();
    release_chunk(j);
  }

  // A warp's rows 0 to 7: the tokens of its low and of its high quad.
  __device__ __forceinline__ int token() const {
    return (split_ < Tr::quad ? low_quad() : high_quad()) * Tr::quad + split_ % Tr::quad;
  }
  __device__ __forceinline__ int low_quad() const { return warp_; }
  __device__ __forceinline__ int high_quad() const { return Tr::C / Tr::quad - 1 - warp_; }
  // Where a quad of tokens is in a row of columns or coefficients whose number is the lane's split, modulo eight.
  __device__ __forceinline__ int place_of(int quad) const { return chunk::turned_quad(split_, quad) * Tr::quad; }

  // Rows r and 8 + r of the tile: the key and the query of token r ^ split times the state, over every eighth of K.
  __device__ __forceinline__ void multiply_state(const ChunkStage<Tr>& stage,
                                                 float (&tile)[2 * kTileRows][Tr::n]) const {
    clear(tile);
    const bool crossed = split_ >= Tr::quad;
    const float* first = stage.columns[0][split_] + place_of(crossed ? high_quad() : low_quad());
    const float* second = stage.columns[0][split_] + place_of(crossed ? low_quad() : high_quad());
    const float* state = mine_.state + Tr::row_offset(split_) + across_ * Tr::n;
    add_products<Tr::K / kSplit>(tile, [&](int m, float (&a)[2 * kTileRows], float (&b)[Tr::n]) {
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const int row = (x * Tr::K + m * kSplit) * Tr::C;
        load_words<Tr::quad>(first + row, a + x * kTileRows);
        load_words<Tr::quad>(second + row, a + x * kTileRows + Tr::quad);
      }
      load_words(state + Tr::row_offset(m * kSplit), b);
    });
  }

  // Of the chain's head h.
  __device__ __forceinline__ int head_in_block(int h) const { return Tr::every_head ? h : chain_ + h; }
  __device__ __forceinline__ float gate(const ChunkStage<Tr>& stage, int h, int which) const {
    return stage.gates[head_in_block(h)][which][token()];
  }

  __device__ __forceinline__ void decay_products(const ChunkStage<Tr>& stage, const float (&u)[Tr::n],
                                                 const float (&product)[Tr::n], bool exists,
                                                 const RawPart<Tr::lane_columns> (&v)[Tr::heads], float (&r)[Tr::n],
                                                 float (&o)[Tr::n]) const {
#pragma unroll
    for (int h = 0; h < Tr::heads; ++h) {
      const float decay = gate(stage, h, 0);
      float value[Tr::lane_columns] = {};
      if (exists) v[h].widen(params_.p.v.dtype, value);
#pragma unroll
      for (int c = 0; c < Tr::lane_columns; ++c) {
        const int at = h * Tr::lane_columns + c;
        r[at] = fmaf(-decay, u[at], value[c]);
        o[at] = decay * product[at];
      }
    }
  }

  // For the lane's token t: the sum of M_ti beta_i x_i over i < t (mirrored), or of P_ti x_i over i <= t. Only the last
  // eight i of a quad of tokens are partly beyond.
  template <bool mirrored>
  __device__ __forceinline__ void multiply_triangle(const ChunkStage<Tr>& stage, const float* x,
                                                    float (&sum)[Tr::n]) const {
    float low[Tr::quad][Tr::n], high[Tr::quad][Tr::n];
    clear(low);
    clear(high);
    const int last_low = warp_ / 2, last_high = kSplit / 2 - 1 - warp_ / 2;
    if (last_low == 1) multiply_quad<mirrored, false>(stage, low_quad(), 0, x, low);
    multiply_quad<mirrored, true>(stage, low_quad(), last_low, x, low);
    multiply_quad<mirrored, false>(stage, high_quad(), 0, x, high);
    multiply_quad<mirrored, false>(stage, high_quad(), 1, x, high);
    if (last_high == 3) multiply_quad<mirrored, false>(stage, high_quad(), 2, x, high);
    multiply_quad<mirrored, true>(stage, high_quad(), last_high, x, high);
    add_halves<Tr::quad / 2>(low);
    add_halves<Tr::quad / 2>(high);
    const bool upper = split_ >= Tr::quad;
#pragma unroll
    for (int c = 0; c < Tr::n; ++c) {
      const float keep = upper ? high[0][c] : low[0][c], give = upper ? low[0][c] : high[0][c];
      sum[c] = keep + shuffle_xor(give, Tr::quad);
    }
  }
  // The terms i = 8 block + split. P_ti is in row i, M_ti in row 31 - i, at 31 - t.
  template <bool mirrored, bool partly>
  __device__ __forceinline__ void multiply_quad(const ChunkStage<Tr>& stage, int quad, int block, const float* x,
                                                float (&tile)[Tr::quad][Tr::n]) const {
    const int i = block * kSplit + split_, row = mirrored ? Tr::C - 1 - i : i;
    constexpr int mirror = mirrored ? chunk::turned_quad(kSplit - 1, kSplit - 1) : 0;
    const float* coefficients = stage.coefficients[head_in_block(0)][row] + place_of(quad ^ mirror);
    float b[Tr::n];
    load_words(&x[Tr::row_offset(i) + across_ * Tr::n], b);
#pragma unroll
    for (int h = 0; h < Tr::heads; ++h) {
      float a[Tr::quad];
      load_words(coefficients + h * chunk::kCoefficients, a);
      if (partly) {
#pragma unroll
        for (int r = 0; r < Tr::quad; ++r) {
          const int t = quad * Tr::quad + (r ^ (split_ % Tr::quad));
          a[r] = (mirrored ? i < t : i <= t) ? a[r] : 0.0f;
        }
      }
#pragma unroll
      for (int c = 0; c < Tr::lane_columns; ++c) {
        const int at = h * Tr::lane_columns + c;
#pragma unroll
        for (int r = 0; r < Tr::quad; ++r) tile[r][at] = fmaf(a[r], b[at], tile[r][at]);
      }
    }
  }

  // (9): M's diagonal added, the corrections of the lane's token; and decayed to the chunk's end.
  __device__ __forceinline__ void correct(const ChunkStage<Tr>& stage, const float (&r)[Tr::n], float (&d)[Tr::n],
                                          float (&decayed)[Tr::n]) const {
#pragma unroll
    for (int h = 0; h < Tr::heads; ++h) {
      const float rest = gate(stage, h, 1), beta = gate(stage, h, 2);
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
  __device__ __forceinline__ void update(const ChunkStage<Tr>& stage) const {
    constexpr int apart = Tr::quads > 1 ? 4 * Tr::quad : 0, half_lane = kSplit / 2;
    const int half = split_ / half_lane, swap = half * apart;
    const int first_row = warp_ * (Tr::K / Tr::warps) + split_ % half_lane * Tr::quad;
    float last[Tr::heads], tile[Tr::quads * Tr::quad][Tr::n];
#pragma unroll
    for (int h = 0; h < Tr::heads; ++h) last[h] = stage.gates[head_in_block(h)][0][Tr::C - 1];
    clear(tile);
    const float *even = &stage.k[half][first_row + swap], *odd = &stage.k[half][first_row + apart - swap];
    const float* d = mine_.r + Tr::row_offset(half) + across_ * Tr::n;
    float* state = mine_.state + Tr::row_offset(first_row + swap) + across_ * Tr::n;
    float S[Tr::kept][Tr::quad][Tr::n];
#pragma unroll
    for (int q = 0; q < Tr::kept; ++q) {
#pragma unroll
      for (int y = 0; y < Tr::quad; ++y) load_words(state + Tr::row_offset(2 * apart * q + y), S[q][y]);
    }
    add_products<Tr::C / 2>(tile, [&](int t, float (&a)[Tr::quads* Tr::quad], float (&b)[Tr::n]) {
#pragma unroll
      for (int q = 0; q < Tr::quads; ++q) {
        load_words<Tr::quad>((q % 2 == 0 ? even : odd) + 2 * t * Tr::K + q / 2 * 2 * apart, a + q * Tr::quad);
      }
      load_words(d + Tr::row_offset(2 * t), b);
    });
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
      for (int y = 0; y < Tr::quad; ++y) store_words(state + Tr::row_offset(2 * apart * q + y), S[q][y]);
    }
  }

  // f(where a value of the block's states is in shared memory, and in the state's own): neighbouring threads have
  // neighbours in the latter.
  template <class F>
  __device__ __forceinline__ void for_each_value(const StateView& state, F f) const {
    constexpr int columns = Tr::block_heads * chunk::kBlockColumns;
    const bool along_rows = state.key_stride == 1;
#pragma unroll 4
    for (int e = static_cast<int>(threadIdx.x); e < Tr::K * columns; e += Tr::threads) {
      const int row = along_rows ? e % Tr::K : e / columns, c = along_rows ? e / Tr::K : e % columns;
      const int head = c / chunk::kBlockColumns, column = c % chunk::kBlockColumns, x = column % Tr::head_columns;
      const int chain = Tr::every_head ? column / Tr::head_columns : head;
      const int h = Tr::every_head ? head : 0;
      const int at = x / Tr::lane_columns * Tr::n + h * Tr::lane_columns + x % Tr::lane_columns;
      f(shared_.chain[chain].state[Tr::row_offset(row) + at],
        state.data + slot_ * state.slot_stride + (first_head_ + head * head_step_) * state.head_stride +
            row * state.key_stride + (block_column() + column) * state.value_stride);
    }
  }
  __device__ void load_states() const {
    const RecurrenceParams& p = params_.p;
    const bool goes_on = begin_ > 0;  // a window before this one has left its state
    const bool starts = p.state_in.data != nullptr && starts_from_state(p.has_initial_state, blockIdx.z);
    for_each_value(goes_on || !starts ? p.state_out : p.state_in,
                   [&](float& value, const float* from) { value = goes_on || starts ? *from : 0.0f; });
  }
  __device__ void save_states() const {
    for_each_value(params_.p.state_out, [](const float& value, float* to) { *to = value; });
  }

  __device__ __forceinline__ int64_t block_column() const {
    return static_cast<int64_t>(blockIdx.x) * chunk::kBlockColumns;
  }
  // Where the lane's columns of the chain's head h lie in v or o.
  __device__ __forceinline__ int64_t offset(const int64_t (&stride)[4], int64_t j, int h) const {
    const int column = (Tr::every_head ? chain_ * Tr::head_columns : 0) + across_ * Tr::lane_columns;
    return chunks_.rows.batch * stride[0] + (chunks_.rows.first + j * Tr::C + token()) * stride[1] +
           (first_head_ + head_in_block(h) * head_step_) * stride[2] + block_column() + column;
  }
  __device__ __forceinline__ void load_values(int64_t j, RawPart<Tr::lane_columns> (&v)[Tr::heads]) const {
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
    constexpr int columns = Tr::block_heads * chunk::kBlockColumns;
    const OutView<4>& o = params_.p.o;
    for (int64_t e = threadIdx.x; e < (end - begin) * columns; e += Tr::threads) {
      const int64_t t = begin + e / columns;
      const int c = static_cast<int>(e % columns);
      const int64_t head = first_head_ + c / chunk::kBlockColumns * head_step_;
      gpu::store(o,
                 chunks_.rows.batch * o.stride[0] + t * o.stride[1] + head * o.stride[2] + block_column() +
                     c % chunk::kBlockColumns,
                 0.0f);
    }
  }

  const ChunkParams& params_;
  ChunkScanShared<Tr>& shared_;
  int chain_;
  int warp_;  // in its chain
  int split_, across_;
  ChunkChain<Tr>& mine_;
  int64_t first_head_, head_step_;  // value heads of the block: first_head + h head_step
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
