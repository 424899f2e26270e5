// The gate of the output norm: y = x SiLU(z), or x sigmoid(z) (docs/math.md, norms), narrowed to y's dtype. What
// gated_rms_norm.cu and the step's epilogue (output_norm.cuh) share.
#pragma once

#include "cuda/device.h"

#include "core/exact_math.h"
#include "core/quick_silu.h"
#include "cuda/pack.cuh"

namespace gdn::gpu {

__device__ __forceinline__ float gate(float z, Activation activation) {
  return activation == Activation::silu ? exact::silu(z) : exact::sigmoid(z);
}

// Neighbouring elements of y from o / sqrt(...) * weight and z.
template <class Element, int elements>
__device__ __forceinline__ Pack<Element, elements> gated(const float (&x)[elements], const float (&z)[elements],
                                                         Activation activation) {
  Pack<Element, elements> y;
  if constexpr (sizeof(Element) == 2) {
    bool decided = true;
    float quick_y[elements];
#pragma unroll
    for (int i = 0; i < elements; ++i) {
      const float sigmoid = quick::sigmoid(z[i], Approximate{});
      const float quick_gate = activation == Activation::silu ? z[i] * sigmoid : sigmoid;
      decided = decided && quick::in_range(z[i]) && quick::keeps_precision(quick_gate);
      quick_y[i] = x[i] * quick_gate;
    }
#pragma unroll
    for (int w = 0; w < elements / 2; ++w) {
      const quick::Rounded both = quick::round_both<Element>(quick_y[2 * w], quick_y[2 * w + 1]);
      y.word[w] = both.word;
      decided = both.decided && decided;
    }
    if (__builtin_expect(decided, true)) return y;
  }
  float exact_y[elements];
#pragma unroll
  for (int i = 0; i < elements; ++i) exact_y[i] = x[i] * gate(z[i], activation);
  y.narrow(exact_y);
  return y;
}

}  // namespace gdn::gpu
