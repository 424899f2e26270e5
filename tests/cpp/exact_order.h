// The exact order of docs/contract.md, written once more as plain scalar loops: the oracle that every kernel is
// compared with bit for bit. One sequence and one head (or one row, or one channel block) at a time on contiguous
// float32 arrays; widening the inputs and rounding the outputs to 16 bits is the caller's.
//
// It shares only core/exact_math.h (exp, log1p, fma) with the library, which has its own exhaustive test.
// Compile with -ffp-contract=off and no fast-math.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/exact_math.h"

namespace gdn::exact_order {

// ---- sums ----------------------------------------------------------------------------------------------------------

// sum over i of S[i][c] x[i], S [K, V]: eight groups of rows, one fma chain a group, three pairwise additions.
inline float column_dot(const float* S, const float* x, int64_t c, int64_t K, int64_t V) {
  float p[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
  for (int64_t i = 0; i < K; ++i) {
    const int64_t group = (i / 4) % 8;
    p[group] = fma_f32(S[i * V + c], x[i], p[group]);
  }
  return ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
}

// sum over n elements of x^2, n a multiple of 32: 32 lanes of consecutive elements, then a butterfly.
inline float sum_of_squares(const float* x, int64_t n) {
  const int64_t elements = n / 32;
  float lane[32];
  for (int64_t l = 0; l < 32; ++l) {
    lane[l] = 0.0f;
    for (int64_t j = 0; j < elements; ++j) lane[l] = fma_f32(x[l * elements + j], x[l * elements + j], lane[l]);
  }
  for (int64_t distance = 16; distance >= 1; distance /= 2) {
    float next[32];
    for (int64_t l = 0; l < 32; ++l) next[l] = lane[l] + lane[l ^ distance];
    for (int64_t l = 0; l < 32; ++l) lane[l] = next[l];
  }
  return lane[0];
}

// ---- pointwise ops -------------------------------------------------------------------------------------------------

// y [n] = x / sqrt(sum x^2 + eps)
inline void l2norm(const float* x, int64_t n, float eps, float* y) {
  const float factor = 1.0f / std::sqrt(sum_of_squares(x, n) + eps);
  for (int64_t j = 0; j < n; ++j) y[j] = x[j] * factor;
}

// y [n] = o / sqrt(mean o^2 + eps) * weight * act(z), act = sigmoid or SiLU
inline void gated_rms_norm(const float* o, const float* z, const float* weight, int64_t n, float eps, bool sigmoid,
                           float* y) {
  const float factor = 1.0f / std::sqrt(sum_of_squares(o, n) / static_cast<float>(n) + eps);
  for (int64_t j = 0; j < n; ++j) {
    const float gate = sigmoid ? exact::sigmoid(z[j]) : exact::silu(z[j]);
    y[j] = o[j] * factor * weight[j] * gate;
  }
}

// One value head: g = -exp(A_log) softplus(a + dt_bias), +0 where softplus is 0; beta = sigmoid(b), or twice that.
inline void gates(float a, float b, float A_log, float dt_bias, bool allow_neg_eigval, float* g, float* beta) {
  const float s = exact::softplus(a + dt_bias);
  *g = s == 0.0f ? 0.0f : -exact::exp(A_log) * s;
  *beta = allow_neg_eigval ? exact::sigmoid(b) * 2.0f : exact::sigmoid(b);
}

// ---- recurrence ----------------------------------------------------------------------------------------------------

// S [K, V] becomes alpha S + k d^T, the product rounded first.
inline void update_state(float* S, const float* k, const float* d, float alpha, int64_t K, int64_t V) {
  for (int64_t i = 0; i < K; ++i) {
    for (int64_t c = 0; c < V; ++c) {
      const float product = k[i] * d[c];
      S[i * V + c] = fma_f32(alpha, S[i * V + c], product);
    }
  }
}

// One token: the state S [K, V] moves on in place; d [V] gets the corrections, o [V] the output. q, k as used
// (normalised).
inline void step(float* S, const float* q, const float* k, const float* v, float g, float beta, float scale, int64_t K,
                 int64_t V, float* d, float* o) {
  const float alpha = exact::exp(g);
  for (int64_t c = 0; c < V; ++c) {
    const float u = column_dot(S, k, c, K, V);
    d[c] = fma_f32(-alpha, u, v[c]) * beta;
  }
  update_state(S, k, d, alpha, K, V);
  for (int64_t c = 0; c < V; ++c) o[c] = column_dot(S, q, c, K, V) * scale;
}

// The inputs of T tokens of one sequence and value head.
struct Tokens {
  const float* q;     // [T, K]
  const float* k;     // [T, K]
  const float* v;     // [T, V]
  const float* g;     // [T]
  const float* beta;  // [T]
  int64_t T;
  int64_t K;  // a multiple of 32
  int64_t V;
  float scale;
  bool qk_l2norm;
  float l2_eps;
};

inline std::vector<float> used_row(const Tokens& in, const float* rows, int64_t t) {
  std::vector<float> row(rows + t * in.K, rows + (t + 1) * in.K);
  if (in.qk_l2norm) l2norm(rows + t * in.K, in.K, in.l2_eps, row.data());
  return row;
}

// Prompt or decode: S [K, V] is read and written, o [T, V].
inline void recurrence(const Tokens& in, float* S, float* o) {
  std::vector<float> d(in.V);
  for (int64_t t = 0; t < in.T; ++t) {
    const std::vector<float> q = used_row(in, in.q, t);
    const std::vector<float> k = used_row(in, in.k, t);
    step(S, q.data(), k.data(), in.v + t * in.V, in.g[t], in.beta[t], in.scale, in.K, in.V, d.data(), o + t * in.V);
  }
}

// A parent outside [-1, t) counts as -1, the committed state; without parents the tokens are a chain.
inline int64_t parent_of(const int64_t* parents, int64_t t) {
  if (parents == nullptr) return t - 1;
  return parents[t] >= 0 && parents[t] < t ? parents[t] : -1;
}

// Verify: S [K, V] is only read, every token keeps its own state. k_log [T, K], d_log [T, V], o [T, V].
inline void verify(const Tokens& in, const float* S, const int64_t* parents, float* o, float* k_log, float* d_log) {
  const int64_t size = in.K * in.V;
  std::vector<std::vector<float>> after(in.T);
  for (int64_t t = 0; t < in.T; ++t) {
    const int64_t parent = parent_of(parents, t);
    after[t] = parent < 0 ? std::vector<float>(S, S + size) : after[parent];
    const std::vector<float> q = used_row(in, in.q, t);
    const std::vector<float> k = used_row(in, in.k, t);
    step(after[t].data(), q.data(), k.data(), in.v + t * in.V, in.g[t], in.beta[t], in.scale, in.K, in.V,
         d_log + t * in.V, o + t * in.V);
    for (int64_t i = 0; i < in.K; ++i) k_log[t * in.K + i] = k[i];
  }
}

// The rows of a window of T tokens that are replayed: `accepted` clamped to [0, T]; a path entry outside [0, T) ends
// it.
inline std::vector<int64_t> accepted_rows(const int64_t* path, int64_t accepted, int64_t T) {
  std::vector<int64_t> rows;
  for (int64_t j = 0; j < accepted && j < T; ++j) {
    const int64_t row = path == nullptr ? j : path[j];
    if (row < 0 || row >= T) break;
    rows.push_back(row);
  }
  return rows;
}

// Commit: S [K, V] becomes the state after the accepted tokens. k_log [T, K], d_log [T, V], g_log [T].
inline void commit(float* S, const float* k_log, const float* d_log, const float* g_log, const int64_t* path,
                   int64_t accepted, int64_t T, int64_t K, int64_t V) {
  for (const int64_t t : accepted_rows(path, accepted, T)) {
    update_state(S, k_log + t * K, d_log + t * V, exact::exp(g_log[t]), K, V);
  }
}

// ---- convolution ---------------------------------------------------------------------------------------------------

// Column `age` tokens before token t along its branch (0: t itself), for channel c; older than the root: the window.
inline float tap(const float* x, const float* window, const int64_t* parents, int64_t t, int64_t age, int64_t c,
                 int64_t C, int64_t L) {
  for (; age > 0 && t >= 0; --age) t = parent_of(parents, t);
  return t >= 0 ? x[t * C + c] : window[c * L + (L - 1 - age)];
}

// x [T, C], weight [C, W], bias [C] or null, window [C, L] with L >= W - 1 and the newest column last, y [T, C].
// The window is only read. parents [T] or null.
inline void convolution(const float* x, const float* weight, const float* bias, const float* window, int64_t T,
                        int64_t C, int64_t W, int64_t L, bool silu, const int64_t* parents, float* y) {
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t c = 0; c < C; ++c) {
      float sum = bias == nullptr ? 0.0f : bias[c];
      for (int64_t j = 0; j < W; ++j) {
        sum = fma_f32(weight[c * W + j], tap(x, window, parents, t, W - 1 - j, c, C, L), sum);
      }
      y[t * C + c] = silu ? exact::silu(sum) : sum;
    }
  }
}

// window [C, L] slides over the accepted rows of x [T, C].
inline void slide_window(const float* x, float* window, const int64_t* path, int64_t accepted, int64_t T, int64_t C,
                         int64_t L) {
  for (const int64_t t : accepted_rows(path, accepted, T)) {
    for (int64_t c = 0; c < C; ++c) {
      for (int64_t j = 0; j + 1 < L; ++j) window[c * L + j] = window[c * L + j + 1];
      if (L > 0) window[c * L + L - 1] = x[t * C + c];
    }
  }
}

}  // namespace gdn::exact_order
