// The part of chunk_fp32 that needs no state: for each chunk and key head the normalised keys and scaled queries in
// float32, and for each of its value heads the decays, P and M of the chunked form (docs/math.md (6) to (9)).
//
//   tensor   shape              strides               dtype
//   q, k     [B, T, H, K]       last 1, others any    float32, bfloat16 or float16
//   g, beta  [B, T, HV]         any                   float32; any of the three
//   work     a chunk: chunk::layout                   float32
//              rows          [H][2][32][K]            k_t, then scale q_t
//              coefficients  [H][HV/H][32][32]        [i][t],       i <= t: P_ti = e^(gamma_t - gamma_i) scale q_t.k_i
//                                                     [31-i][31-t], i <  t: M_ti beta_i
//              gates         [H][HV/H][3][32]         e^gamma_t, e^(gamma_last - gamma_t), beta_t
//
// Grid: x = a window's chunks, y = H. 256 threads. The products k.k and q.k serve all value heads of the key head.
// Then, for up to four value heads at a time: a warp has four rows t of (7), (8) and P, lane i column i. The decay from
// i to t is a sum of g over the tokens between, never a difference of two sums, which would lose what large decays have
// rounded away. Then a warp has a value head and a lane a column of M, by forward substitution. Rows past the
// sequence's end are zero keys, queries, g and beta: they change nothing.
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
  static constexpr int head_rows = C / warps;  // of a warp

  static_assert(C == kWarp, "a lane a token");
  static_assert(rows == warps * kTileRows, "a warp has eight rows of the products");
};

template <class Tr>
struct ChunkPrepShared {
  float rows[Tr::rows][Tr::K];                             // keys, then queries
  float products[Tr::rows][Tr::C + Tr::products_pad];      // k.k, then q.k
  float triangles[Tr::heads][Tr::C][Tr::triangle_stride];  // A below the diagonal, in the end the coefficients
};

template <class Tr>
constexpr int chunk_prep_shared_bytes = static_cast<int>(sizeof(ChunkPrepShared<Tr>));

// A warp's rows of one tensor, every eighth: all on their way at once. Rows past the end are read as the last one.
template <class Tr>
struct ChunkRows {
  static constexpr int rows = Tr::C / Tr::warps;
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
        const int t = warp + r * Tr::warps;
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
  __device__ __forceinline__ void store(int64_t count, bool normalise, float eps, float scale, float (*s_rows)[Tr::K],
                                        float* work) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const int t = warp + r * Tr::warps;
      float squares = 0.0f;
#pragma unroll
      for (int i = 0; i < Tr::lane_elements; ++i) squares = fmaf(value[r][i], value[r][i], squares);
      const float factor = normalise ? reciprocal_root(warp_sum(squares) + eps) : 1.0f;
      Pack<float, Tr::lane_elements> part;
#pragma unroll
      for (int i = 0; i < Tr::lane_elements; ++i) {
        part.word[i] = bits_of(t < count ? value[r][i] * factor * scale : 0.0f);
      }
      using Part = Pack<float, Tr::lane_elements>;
      *reinterpret_cast<Part*>(&s_rows[t][lane * Tr::lane_elements]) = part;
      *reinterpret_cast<Part*>(work + t * Tr::K + lane * Tr::lane_elements) = part;
    }
  }
};

// k.k and q.k
template <class Tr>
__device__ __forceinline__ void multiply_rows(ChunkPrepShared<Tr>& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, split = split_lane(), across = across_lane();
  float tile[kTileRows][Tr::tile_columns];
  clear(tile);
#pragma unroll 1
  for (int i = split * 4; i < Tr::K; i += kSplit * 4) {
    float4 a[kTileRows], b[Tr::tile_columns];
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      a[r] = *reinterpret_cast<const float4*>(&shared.rows[warp * kTileRows + (r ^ split)][i]);
    }
#pragma unroll
    for (int c = 0; c < Tr::tile_columns; ++c) {
      b[c] = *reinterpret_cast<const float4*>(&shared.rows[across * Tr::tile_columns + c][i]);
    }
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
#pragma unroll
      for (int c = 0; c < Tr::tile_columns; ++c) {
        tile[r][c] = fmaf(a[r].x, b[c].x, tile[r][c]);
        tile[r][c] = fmaf(a[r].y, b[c].y, tile[r][c]);
        tile[r][c] = fmaf(a[r].z, b[c].z, tile[r][c]);
        tile[r][c] = fmaf(a[r].w, b[c].w, tile[r][c]);
      }
    }
  }
  add_halves<kTileRows / 2>(tile);
  store_words(&shared.products[warp * kTileRows + split][across * Tr::tile_columns], tile[0]);
}

// Rows of A and columns of P for one value head. g and beta: of token `lane`. A warp's first row begins with sums over
// four tokens each.
template <class Tr>
__device__ __forceinline__ void decay_rows(ChunkPrepShared<Tr>& shared, float (*s_triangle)[Tr::triangle_stride],
                                           float g, float beta, float* gates) {
  constexpr int quad = Tr::head_rows;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = uniform(static_cast<int>(threadIdx.x) / kWarp) * quad;
  float after = 0.0f;  // of the quad's tokens past `lane`
#pragma unroll
  for (int x = 1; x < quad; ++x) {
    const float g_x = shuffle(g, lane / quad * quad + x);
    after += lane % quad < x ? g_x : 0.0f;
  }
  const float of_quad = shuffle(g, lane / quad * quad) + shuffle(after, lane / quad * quad);
  float since = lane < first ? after : 0.0f, gamma = 0.0f;  // sums of g over tokens lane + 1 to t, and 0 to t
#pragma unroll
  for (int t = 0; t < Tr::C - quad; t += quad) {
    const float g_t = shuffle(of_quad, t);
    gamma += t < first ? g_t : 0.0f;
    since += lane < t && t < first ? g_t : 0.0f;
  }
#pragma unroll
  for (int x = 0; x < Tr::head_rows; ++x) {
    const int t = first + x;
    const float g_t = shuffle(g, t), beta_t = shuffle(beta, t);
    gamma += g_t;
    since = lane < t ? since + g_t : 0.0f;
    const float decay = exact::exp(since);                                          // (7)
    if (lane < t) s_triangle[t][lane] = beta_t * decay * shared.products[t][lane];  // (8)
    if (lane <= t) s_triangle[lane][t] = decay * shared.products[Tr::C + t][lane];
    if (lane == t) gates[t] = exact::exp(gamma);
  }
  if (first + Tr::head_rows == Tr::C) {
    gates[Tr::C + lane] = exact::exp(since);
    gates[2 * Tr::C + lane] = beta;
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
  for (int i = 0; i < Tr::C; ++i) coefficients[i * Tr::C + lane] = s_triangle[i][lane];
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
  ChunkRows<Tr> k, q;
  k.load(p.k, rows, key_head, params.packed_rows);
  q.load(p.q, rows, key_head, params.packed_rows);
  k.store(rows.count, p.qk_l2norm, p.l2_eps, 1.0f, shared.rows, row_work);
  q.store(rows.count, p.qk_l2norm, p.l2_eps, p.scale, shared.rows + Tr::C, row_work + Tr::C * Tr::K);
  sync_block();
  multiply_rows<Tr>(shared);
  sync_block();

  const int group = static_cast<int>(p.heads.value_heads / p.heads.key_heads);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = uniform(static_cast<int>(threadIdx.x) / kWarp);
  const int64_t token = lane < rows.count ? lane : rows.count - 1;
#pragma unroll 1
  for (int first = 0; first < group; first += Tr::heads) {
    const int heads = group - first < Tr::heads ? group - first : Tr::heads;
    float g[Tr::heads], beta[Tr::heads];  // of token `lane`
#pragma unroll
    for (int x = 0; x < Tr::heads; ++x) {
      const int64_t j = first + (x < heads ? x : 0);
      const int64_t head =
          p.heads.head_map == HeadMap::grouped ? key_head * group + j : key_head + j * p.heads.key_heads;
      g[x] = load(p.g, rows.batch * p.g.stride[0] + (rows.first + token) * p.g.stride[1] + head * p.g.stride[2]);
      beta[x] = load(p.beta,
                     rows.batch * p.beta.stride[0] + (rows.first + token) * p.beta.stride[1] + head * p.beta.stride[2]);
    }
    float mine = 0.0f;  // beta of the warp's own value head
#pragma unroll
    for (int x = 0; x < Tr::heads; ++x) {
      if (x == heads) break;
      g[x] = lane < rows.count ? g[x] : 0.0f;
      beta[x] = lane < rows.count ? beta[x] : 0.0f;
      mine = x == warp ? beta[x] : mine;
      decay_rows<Tr>(shared, shared.triangles[x], g[x], beta[x],
                     work + layout.gates + (key_head * group + first + x) * chunk::kGateRows * Tr::C);
    }
    sync_block();
    if (warp < heads) {
      substitute<Tr>(shared.triangles[warp], mine,
                     work + layout.coefficients + (key_head * group + first + warp) * chunk::kCoefficients);
    }
    sync_block();
  }
}

}  // namespace gdn::gpu
