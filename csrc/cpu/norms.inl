// The sum of a head's squares in the exact order (docs/contract.md), and the kernels that are that sum and little else.

constexpr int kSumLanes = 32;
constexpr int kMaxHeadElements = 256;

// Every lane adds its partner's sum at distance 16, 8, 4, 2, 1. A lane and its partner get the same bits, so half of
// the lanes is enough at each step.
inline float butterfly(const float (&sum)[kSumLanes]) {
  Quad x[kSumLanes / 4];
  for (int i = 0; i < kSumLanes / 4; ++i) x[i] = load_quad(sum + 4 * i);
  const Quad y = ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
  return (y[0] + y[2]) + (y[1] + y[3]);
}

// x holds `count` vectors of elements e_0, e_1, ...; afterwards the first half holds those with even index, the second
// half those with odd index, and so on `levels` times in each half.
template <int count, int levels>
__attribute__((always_inline)) inline void deinterleave(Vec* x) {
  if constexpr (levels > 0) {
    Vec even_half[count / 2], odd_half[count / 2];
#pragma GCC unroll 64
    for (int i = 0; i < count / 2; ++i) {
      even_half[i] = even(x[2 * i], x[2 * i + 1]);
      odd_half[i] = odd(x[2 * i], x[2 * i + 1]);
    }
#pragma GCC unroll 64
    for (int i = 0; i < count / 2; ++i) {
      x[i] = even_half[i];
      x[count / 2 + i] = odd_half[i];
    }
    deinterleave<count / 2, levels - 1>(x);
    deinterleave<count / 2, levels - 1>(x + count / 2);
  }
}

// Lane l of 32 holds the n/32 = 2^levels consecutive elements from l n/32: a chain of their squares, then a butterfly.
template <int levels>
inline float sum_of_squares(const float* x) {
  constexpr int per_lane = 1 << levels, lane_vectors = kSumLanes / kLanes;
  Vec elements[per_lane * lane_vectors];
#pragma GCC unroll 64
  for (int i = 0; i < per_lane * lane_vectors; ++i) elements[i] = load(x + i * kLanes);
  deinterleave<per_lane * lane_vectors, levels>(elements);
  alignas(64) float sum[kSumLanes];
#pragma GCC unroll 8
  for (int i = 0; i < lane_vectors; ++i) {
    Vec chain = {};
#pragma GCC unroll 8
    for (int j = 0; j < per_lane; ++j) {
      int place = 0;  // deinterleaving leaves element j of a lane where j's bits, reversed, say
      for (int bit = 0; bit < levels; ++bit) place |= (j >> bit & 1) << (levels - 1 - bit);
      const Vec e = elements[place * lane_vectors + i];
      chain = fma(e, e, chain);
    }
    store(sum + i * kLanes, chain);
  }
  return butterfly(sum);
}
inline float sum_of_squares(const float* x, int64_t n) {
  switch (n) {
    case 64: return sum_of_squares<1>(x);
    case 128: return sum_of_squares<2>(x);
    default: return sum_of_squares<3>(x);
  }
}

inline void l2_normalise(float* x, int64_t n, float eps) {
  const Vec factor = broadcast(1.0f / __builtin_sqrtf(sum_of_squares(x, n) + eps));
  for (int64_t i = 0; i < n; i += kLanes) store(x + i, load(x + i) * factor);
}

// Offset of row `index` of a [size0, size1, size2, n] tensor.
inline int64_t row_offset(const int64_t (&size)[3], const int64_t (&stride)[4], int64_t index) {
  const int64_t i2 = index % size[2], i1 = index / size[2] % size[1], i0 = index / size[2] / size[1];
  return i0 * stride[0] + i1 * stride[1] + i2 * stride[2];
}

void l2norm_rows(const L2NormParams& p, int64_t begin, int64_t end) {
  float x[kMaxHeadElements];
  for (int64_t row = begin; row < end; ++row) {
    widen(p.x, row_offset(p.size, p.x.stride, row), p.x.stride[3], p.n, x);
    l2_normalise(x, p.n, p.eps);
    narrow(p.y, row_offset(p.size, p.y.stride, row), p.y.stride[3], p.n, x);
  }
}

void norm_rows(const NormParams& p, int64_t begin, int64_t end) {
  float x[kMaxHeadElements], z[kMaxHeadElements], weight[kMaxHeadElements];
  widen(p.weight, 0, p.weight.stride[0], p.n, weight);
  for (int64_t row = begin; row < end; ++row) {
    widen(p.o, row_offset(p.size, p.o.stride, row), p.o.stride[3], p.n, x);
    widen(p.z, row_offset(p.size, p.z.stride, row), p.z.stride[3], p.n, z);
    const float mean = sum_of_squares(x, p.n) / static_cast<float>(p.n);
    const float factor = 1.0f / __builtin_sqrtf(mean + p.eps);
    if (p.activation == Activation::silu) {
      for (int64_t i = 0; i < p.n; ++i) x[i] = x[i] * factor * weight[i] * exact::silu(z[i]);
    } else {
      for (int64_t i = 0; i < p.n; ++i) x[i] = x[i] * factor * weight[i] * exact::sigmoid(z[i]);
    }
    narrow(p.y, row_offset(p.size, p.y.stride, row), p.y.stride[3], p.n, x);
  }
}

constexpr int kGateHeads = 64;  // heads done at a time

void gate_rows(const GatesParams& p, int64_t begin, int64_t end) {
  float rate[kGateHeads], bias[kGateHeads], a[kGateHeads], b[kGateHeads];
  for (int64_t h = 0; h < p.value_heads; h += kGateHeads) {
    const int64_t n = min64(kGateHeads, p.value_heads - h);
    widen(p.A_log, h * p.A_log.stride[0], p.A_log.stride[0], n, rate);
    widen(p.dt_bias, h * p.dt_bias.stride[0], p.dt_bias.stride[0], n, bias);
    for (int64_t i = 0; i < n; ++i) rate[i] = exact::exp(rate[i]);
    for (int64_t row = begin; row < end; ++row) {
      widen(p.a, row_offset(p.size, p.a.stride, row) + h * p.a.stride[3], p.a.stride[3], n, a);
      widen(p.b, row_offset(p.size, p.b.stride, row) + h * p.b.stride[3], p.b.stride[3], n, b);
      for (int64_t i = 0; i < n; ++i) {
        const float softplus = exact::softplus(a[i] + bias[i]);
        // An infinite rate times a softplus of 0 is a decay of 0, not NaN.
        a[i] = softplus == 0.0f ? 0.0f : -(rate[i] * softplus);
        b[i] = exact::sigmoid(b[i]);
      }
      if (p.allow_neg_eigval) {
        for (int64_t i = 0; i < n; ++i) b[i] = b[i] * 2.0f;
      }
      narrow(p.g, row_offset(p.size, p.g.stride, row) + h * p.g.stride[3], p.g.stride[3], n, a);
      narrow(p.beta, row_offset(p.size, p.beta.stride, row) + h * p.beta.stride[3], p.beta.stride[3], n, b);
    }
  }
}
