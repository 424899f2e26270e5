// The part of chunk_fp32 that needs no state: for each chunk and key head the normalised keys and scaled queries in
// float32, and for each of its value heads the decays, P and M of the chunked form (docs/math.md (6) to (9)).
//
//   tensor   shape              strides               dtype
//   q, k     [B, T, H, K]       last 1, others any    float32, bfloat16 or float16
//   g, beta  [B, T, HV]         any                   float32; any of the three
//   work     a chunk: chunk::layout                   float32
//              rows          [H][32][K]               k_t
//                            [H][2][K][32]            k, then scale q, by columns: token t at chunk::turned
//              coefficients  [H][HV/H][32][32]        [i][t],       i <= t: P_ti = e^(gamma_t - gamma_i) scale q_t.k_i
//                                                     [31-i][31-t], i <  t: M_ti beta_i; column t at chunk::turned
//              gates         [H][HV/H][3][32]         e^gamma_t, e^(gamma_last - gamma_t), beta_t
//
// Grid: x = a window's chunks, y = H. 256 threads. A warp has four tokens, which it turns into columns on the way to
// shared memory. The products k.k and q.k serve all value heads of the key head. Then, for up to four value heads at a
// time: a warp has four rows t of (7), (8) and P, lane i column i. The decay from i to t is a sum of g over the tokens
// between, never a difference of two sums, which would lose what large decays have rounded away. Then a warp has a
// value head and a lane a column of M, by forward substitution. Rows past the sequence's end are zero keys, queries, g
// and beta: they change nothing.
#pragma once

#include "cuda/chunk_order.cuh"
#include "cuda/chunk_products.cuh"
#include "cuda/pack.cuh"

#include "core/exact_math.h"

namespace gdn::gpu {

template <int key_dim>
struct ChunkPrepTraits {
  static constexpr int K = key_dim;
  static constexpr int C = chunk::kTokens;
  static constexpr int warps = 8;
  static constexpr int threads = warps * kWarp;
  static constexpr int rows = 2 * C;
  static constexpr int lane_elements = K / kWarp;
  static constexpr int products_pad = 4;
  static constexpr int tile_columns = C / chunk::kLanesAcross;
  static constexpr int heads = 4;  // at a time
  static constexpr int triangle_stride = C + 4;
  static constexpr int quad = C / warps;  // rows of a value head that a warp has

  static_assert(C == kWarp, "a lane a token");
  static_assert(rows == warps * kTileRows, "a warp has eight rows of the products");
  static_assert(quad == 4 && 2 * heads == warps, "half of the warps prepare the gates, a head each");
};

template <class Tr>
struct ChunkPrepShared {
  float columns[2][Tr::K][Tr::C];                          // of keys, then of queries, at chunk::turned
  float products[Tr::rows][Tr::C + Tr::products_pad];      // k.k, then q.k; of row t, column i is at product_place
  float triangles[Tr::heads][Tr::C][Tr::triangle_stride];  // A below the diagonal, in the end the coefficients
  float g[Tr::heads][Tr::C], beta[Tr::heads][Tr::C];
  float after[Tr::heads][Tr::C];      // sums of g over the tokens past one, to the end of its quad
  float quads[Tr::heads][Tr::C / 4];  // and over quads
};

template <class Tr>
constexpr int chunk_prep_shared_bytes = static_cast<int>(sizeof(ChunkPrepShared<Tr>));

// A warp's four rows of one tensor, neighbours: all on their way at once. Rows past the end are read as the last one.
template <class Tr>
struct ChunkRows {
  static constexpr int rows = Tr::C / Tr::warps;
  static_assert(rows == 4, "a quad of tokens");
  float value[rows][Tr::lane_elements];

  __device__ __forceinline__ void load(const View<4>& x, const SequenceRows& chunk_rows, int64_t key_head,
                                       bool packed) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    const int last = static_cast<int>(chunk_rows.count) - 1;
    with_element_of(x.dtype, [&](auto element) {
      using Element = decltype(element);
      using Part = Pack<Element, Tr::lane_elements>;
      const auto* from = static_cast<const Element*>(x.data) + chunk_rows.batch * x.stride[0] +
                         chunk_rows.first * x.stride[1] + key_head * x.stride[2] + lane * Tr::lane_elements;
      const auto at = [&](int r) {
        const int t = warp * rows + r;
        return from + (t < last ? t : last) * x.stride[1];
      };
      Part part[rows];
      if (packed) {
#pragma unroll
        for (int r = 0; r < rows; ++r) part[r] = *reinterpret_cast<const Part*>(at(r));
      } else {
#pragma unroll
        for (int r = 0; r < rows; ++r) part[r].gather(at(r));
      }
#pragma unroll
      for (int r = 0; r < rows; ++r) part[r].widen(value[r]);
    });
  }

  // Normalised and times `scale`, zeros past the end.
  __device__ __forceinline__ void finish(int64_t count, bool normalise, float eps, float scale) {
    const int first = static_cast<int>(threadIdx.x) / kWarp * rows;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      float squares = 0.0f;
#pragma unroll
      for (int i = 0; i < Tr::lane_elements; ++i) squares = fmaf(value[r][i], value[r][i], squares);
      const float factor = normalise ? reciprocal_root(warp_sum(squares) + eps) : 1.0f;
#pragma unroll
      for (int i = 0; i < Tr::lane_elements; ++i) {
        value[r][i] = first + r < count ? value[r][i] * factor * scale : 0.0f;
      }
    }
  }

  __device__ __forceinline__ void store_rows(float* work) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, first = static_cast<int>(threadIdx.x) / kWarp * rows;
    using Part = Pack<float, Tr::lane_elements>;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      Part part;
#pragma unroll
      for (int i = 0; i < Tr::lane_elements; ++i) part.word[i] = bits_of(value[r][i]);
      *reinterpret_cast<Part*>(work + (first + r) * Tr::K + lane * Tr::lane_elements) = part;
    }
  }
  __device__ __forceinline__ void store_columns(float (*s_columns)[Tr::C]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, quad = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
    for (int e = 0; e < Tr::lane_elements; ++e) {
      const int i = lane * Tr::lane_elements + e;
      float x[rows];  // token r is at r ^ i % 4
#pragma unroll
      for (int r = 0; r < rows; ++r) x[r] = value[r ^ e % 4][e];
      if (i % 4 != e % 4) exchange(x[0], x[2]), exchange(x[1], x[3]);
      store_words(&s_columns[i][chunk::turned_quad(i, quad) * 4], x);
    }
  }

 private:
  static __device__ __forceinline__ void exchange(float& x, float& y) {
    const float before = x;
    x = y;
    y = before;
  }
};

// Both tensors' columns, as they are, for the scan.
template <class Tr>
__device__ __forceinline__ void write_columns(const ChunkPrepShared<Tr>& shared, float* work) {
  const auto* from = reinterpret_cast<const float4*>(&shared.columns[0][0][0]);
#pragma unroll
  for (int i = 0; i < 2 * Tr::K * Tr::C / 4; i += Tr::threads) {
    reinterpret_cast<float4*>(work)[i + threadIdx.x] = from[i + threadIdx.x];
  }
}

// Where product i of token t is in its row: the sum over the lanes of a split leaves it there.
__device__ __forceinline__ int product_place(int t, int i) { return i ^ t % 4; }

// k.k and q.k: warps 0 to 3 have the keys' eight tokens each, 4 to 7 the queries'.
template <class Tr>
__device__ __forceinline__ void multiply_rows(ChunkPrepShared<Tr>& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, split = split_lane(), across = across_lane();
  const int quad = warp % 4 * 2, crossed = split / 4;
  const auto at = [&](int which, int q) { return &shared.columns[which][split][chunk::turned_quad(split, q) * 4]; };
  const float *first = at(warp / 4, quad + crossed), *second = at(warp / 4, quad + 1 - crossed);
  const float *low = at(0, across * 2), *high = at(0, across * 2 + 1);
  float tile[kTileRows][Tr::tile_columns];  // row r: token r ^ split of the warp's; column c: c ^ split % 4
  clear(tile);
  add_products<Tr::K / kSplit>(tile, [&](int m, float (&a)[kTileRows], float (&b)[Tr::tile_columns]) {
    const int row = m * kSplit * Tr::C;
    load_words<4>(first + row, a);
    load_words<4>(second + row, a + 4);
    load_words<4>(low + row, b);
    load_words<4>(high + row, b + 4);
  });
  add_halves<kTileRows / 2, 0, 3>(tile);
  store_words(&shared.products[warp * kTileRows + split][across * Tr::tile_columns], tile[0]);
}

// The gates of one value head, and sums of g. g and beta: of token `lane`.
template <class Tr>
__device__ __forceinline__ void sum_gates(ChunkPrepShared<Tr>& shared, int head, float g, float beta, float* gates) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, quad = lane / Tr::quad, in_quad = lane % Tr::quad;
  float upto = 0.0f, after = 0.0f;  // of the quad's tokens, to `lane` and past it
#pragma unroll
  for (int x = 0; x < Tr::quad; ++x) {
    const float g_x = shuffle(g, quad * Tr::quad + x);
    upto += x <= in_quad ? g_x : 0.0f;
    after += x > in_quad ? g_x : 0.0f;
  }
  const float of_quad = shuffle(upto, quad * Tr::quad + Tr::quad - 1);
  float gamma = 0.0f, rest = after;
#pragma unroll
  for (int q = 0; q < Tr::C / Tr::quad; ++q) {
    const float of_q = shuffle(of_quad, q * Tr::quad);
    gamma += q < quad ? of_q : 0.0f;
    rest += q > quad ? of_q : 0.0f;
  }
  shared.g[head][lane] = g;
  shared.beta[head][lane] = beta;
  shared.after[head][lane] = after;
  if (in_quad == 0) shared.quads[head][quad] = of_quad;
  gates[lane] = exact::exp(gamma + upto);
  gates[Tr::C + lane] = exact::exp(rest);
  gates[2 * Tr::C + lane] = beta;
}

// A warp's four rows of A and columns of P for one value head.
template <class Tr>
__device__ __forceinline__ void decay_rows(ChunkPrepShared<Tr>& shared, int head) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = uniform(static_cast<int>(threadIdx.x) / kWarp), first = warp * Tr::quad;
  float (*triangle)[Tr::triangle_stride] = shared.triangles[head];
  float since = lane < first ? shared.after[head][lane] : 0.0f;  // the sum of g over tokens lane + 1 to t
  for (int q = 0; q < warp; ++q) since += q > lane / Tr::quad ? shared.quads[head][q] : 0.0f;
#pragma unroll
  for (int x = 0; x < Tr::quad; ++x) {
    const int t = first + x, at = product_place(t, lane);
    since = lane < t ? since + shared.g[head][t] : 0.0f;
    const float decay = exact::exp(since);                                                    // (7)
    if (lane < t) triangle[t][lane] = shared.beta[head][t] * decay * shared.products[t][at];  // (8)
    if (lane <= t) triangle[lane][t] = decay * shared.products[Tr::C + t][at];
  }
}

// M of (9) = (I + A)^-1 by columns: M_t = -(A_t0 M_0 + ... + A_t,t-1 M_t-1) below the diagonal.
template <class Tr>
__device__ __forceinline__ void substitute(float (*s_triangle)[Tr::triangle_stride], float beta, float* coefficients) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float column[Tr::C];
#pragma unroll
  for (int t = 0; t < Tr::C; ++t) {
    float sum[4] = {};
#pragma unroll
    for (int i = 0; i < t; i += 4) {
      float a[4];
      load_words(&s_triangle[t][i], a);
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        if (i + x < t) sum[x] = fmaf(a[x], column[i + x], sum[x]);
      }
    }
    column[t] = lane < t ? -((sum[0] + sum[1]) + (sum[2] + sum[3])) : lane == t ? 1.0f : 0.0f;
  }
  sync_warp();
#pragma unroll
  for (int t = 1; t < Tr::C; ++t) {
    if (lane < t) s_triangle[Tr::C - 1 - lane][Tr::C - 1 - t] = column[t] * beta;
  }
  sync_warp();
#pragma unroll
  for (int i = 0; i < Tr::C; ++i) coefficients[i * Tr::C + chunk::turned(i, lane)] = s_triangle[i][lane];
}

template <class Tr>
__global__ void __launch_bounds__(Tr::threads, 2) chunk_prep_kernel(const __grid_constant__ ChunkParams params) {
  extern __shared__ float4 s_memory[];
  ChunkPrepShared<Tr>& shared = *reinterpret_cast<ChunkPrepShared<Tr>*>(s_memory);
  const RecurrenceParams& p = params.p;
  const int64_t key_head = blockIdx.y;
  const SequenceRows rows = rows_of_chunk(p.shape, params.window.first + blockIdx.x);
  if (uniform(static_cast<int>(rows.count)) == 0) return;
  const chunk::Layout& layout = params.window.layout;
  float* work = params.window.work + blockIdx.x * layout.floats;
  float* row_work = work + key_head * layout.rows;
  const int group = static_cast<int>(p.heads.value_heads / p.heads.key_heads);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = uniform(static_cast<int>(threadIdx.x) / kWarp);
  const auto of_group = [&](int j) { return (key_head * group + j); };  // in the work buffer
  // The second half of the warps has a value head's gates each.
  const int gated = warp - Tr::heads;
  float g = 0.0f, beta = 0.0f;
  const auto load_gates = [&](int first) {
    const int64_t j = first + gated;
    if (gated < 0 || j >= group || lane >= rows.count) return;
    const int64_t head = p.heads.head_map == HeadMap::grouped ? key_head * group + j : key_head + j * p.heads.key_heads;
    g = load(p.g, rows.batch * p.g.stride[0] + (rows.first + lane) * p.g.stride[1] + head * p.g.stride[2]);
    beta =
        load(p.beta, rows.batch * p.beta.stride[0] + (rows.first + lane) * p.beta.stride[1] + head * p.beta.stride[2]);
  };
  const auto prepare_gates = [&](int first) {
    if (gated < 0 || first + gated >= group) return;
    sum_gates<Tr>(shared, gated, g, beta, work + layout.gates + of_group(first + gated) * chunk::kGateRows * Tr::C);
  };

  load_gates(0);
  ChunkRows<Tr> k, q;
  k.load(p.k, rows, key_head, params.packed_rows);
  q.load(p.q, rows, key_head, params.packed_rows);
  prepare_gates(0);
  k.finish(rows.count, p.qk_l2norm, p.l2_eps, 1.0f);
  k.store_rows(row_work);
  k.store_columns(shared.columns[0]);
  q.finish(rows.count, p.qk_l2norm, p.l2_eps, p.scale);
  q.store_columns(shared.columns[1]);
  sync_block();
  write_columns<Tr>(shared, row_work + Tr::C * Tr::K);
  multiply_rows<Tr>(shared);
  sync_block();
#pragma unroll 1
  for (int first = 0; first < group; first += Tr::heads) {
    const int heads = group - first < Tr::heads ? group - first : Tr::heads;
#pragma unroll 1
    for (int x = 0; x < heads; ++x) decay_rows<Tr>(shared, x);
    sync_block();
    if (warp < heads) {
      substitute<Tr>(shared.triangles[warp], shared.beta[warp][lane],
                     work + layout.coefficients + of_group(first + warp) * chunk::kCoefficients);
    }
    if (first + Tr::heads >= group) break;
    load_gates(first + Tr::heads);
    sync_block();
    prepare_gates(first + Tr::heads);
    sync_block();
  }
}

}  // namespace gdn::gpu
