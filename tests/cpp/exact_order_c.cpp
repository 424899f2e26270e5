// exact_order.h behind a C interface, for ctypes. All arrays are contiguous; float is float32, index arrays are int64;
// "or null" arguments may be a null pointer. Flags are int: 0 or 1.
//
//   g++ -O2 -std=c++17 -fPIC -shared -ffp-contract=off -I csrc tests/cpp/exact_order_c.cpp -o exact_order.so
#include "exact_order.h"

namespace order = gdn::exact_order;

extern "C" {

// One sequence and one value head. q, k [T, K], v [T, V], g, beta [T]; o [T, V] is written.
// Plain (parents, k_log and d_log all null): S [K, V] is read and written.
// Verify (any of the three given): S is only read; parents [T] or null (a chain); k_log [T, K] or null: the keys as
// used; d_log [T, V] or null: the corrections.
void gdn_order_recurrence(const float* q, const float* k, const float* v, const float* g, const float* beta, float* S,
                          int64_t T, int64_t K, int64_t V, float scale, int qk_l2norm, float l2_eps,
                          const int64_t* parents, float* o, float* k_log, float* d_log) {
  const order::Tokens tokens{q, k, v, g, beta, T, K, V, scale, qk_l2norm != 0, l2_eps};
  if (parents == nullptr && k_log == nullptr && d_log == nullptr) {
    order::recurrence(tokens, S, o);
    return;
  }
  std::vector<float> keys(T * K);
  std::vector<float> corrections(T * V);
  order::verify(tokens, S, parents, o, k_log != nullptr ? k_log : keys.data(),
                d_log != nullptr ? d_log : corrections.data());
}

// S [K, V] is read and written. k_log [T, K], d_log [T, V], g_log [T]; accepted is clamped to [0, T]; path [T] or null
// (rows 0, 1, 2, ...).
void gdn_order_commit(float* S, const float* k_log, const float* d_log, const float* g_log, const int64_t* path,
                      int64_t accepted, int64_t T, int64_t K, int64_t V) {
  order::commit(S, k_log, d_log, g_log, path, accepted, T, K, V);
}

// x [T, C], weight [C, W], bias [C] or null, window [C, L], y [T, C] is written. silu: 1, or 0 for no activation.
// Plain (parents null and update_window 1): the window is read, then slid over all of x. Verify: update_window 0,
// parents [T] or null (a chain).
void gdn_order_conv(const float* x, const float* weight, const float* bias, float* window, int64_t T, int64_t C,
                    int64_t W, int64_t L, int silu, const int64_t* parents, int update_window, float* y) {
  order::convolution(x, weight, bias, window, T, C, W, L, silu != 0, parents, y);
  if (update_window != 0) order::slide_window(x, window, nullptr, T, T, C, L);
}

// window [C, L] is read and written: it slides over the accepted rows of x [T, C]. path [T] or null.
void gdn_order_conv_commit(const float* x, float* window, const int64_t* path, int64_t accepted, int64_t T, int64_t C,
                           int64_t L) {
  order::slide_window(x, window, path, accepted, T, C, L);
}

// rows heads of n elements: x, y [rows, n].
void gdn_order_l2norm(const float* x, int64_t rows, int64_t n, float eps, float* y) {
  for (int64_t r = 0; r < rows; ++r) order::l2norm(x + r * n, n, eps, y + r * n);
}

// a, b, g, beta [rows, HV]; A_log, dt_bias [HV].
void gdn_order_gates(const float* a, const float* b, const float* A_log, const float* dt_bias, int64_t rows, int64_t HV,
                     int allow_neg_eigval, float* g, float* beta) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < HV; ++h) {
      const int64_t i = r * HV + h;
      order::gates(a[i], b[i], A_log[h], dt_bias[h], allow_neg_eigval != 0, g + i, beta + i);
    }
  }
}

// rows heads of n elements: o, z, y [rows, n]; weight [n]. sigmoid: 1 for sigmoid(z), 0 for SiLU(z).
void gdn_order_norm(const float* o, const float* z, const float* weight, int64_t rows, int64_t n, float eps,
                    int sigmoid, float* y) {
  for (int64_t r = 0; r < rows; ++r) {
    order::gated_rms_norm(o + r * n, z + r * n, weight, n, eps, sigmoid != 0, y + r * n);
  }
}

// y [n] = f(x [n]); function: 0 exp, 1 log1p, 2 sigmoid, 3 silu, 4 softplus.
void gdn_order_function(int function, const float* x, int64_t n, float* y) {
  float (*const functions[])(float) = {gdn::exact::exp, gdn::exact::log1p, gdn::exact::sigmoid, gdn::exact::silu,
                                       gdn::exact::softplus};
  for (int64_t i = 0; i < n; ++i) y[i] = functions[function](x[i]);
}

}  // extern "C"
