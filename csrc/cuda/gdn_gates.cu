// gdn_gates: the log decay and the write strength of every token and value head (docs/contract.md, "The exact order").
//
//   (15) g    = -exp(A_log) softplus(a + dt_bias)      +0 where softplus is 0, even if exp(A_log) is infinite
//   (16) beta = sigmoid(b)                             times 2 with allow_neg_eigval
//
//   tensor          shape                 strides  dtype
//   a, b            [n0, n1, n2, HV]      any      float32, bfloat16 or float16
//   A_log, dt_bias  [HV]                  any      float32, bfloat16 or float16
//   g, beta         [n0, n1, n2, HV]      any      float32
//
// Grid: one dimension, a thread an element, each thread striding by the whole grid where that is not enough.
// Shared memory: none. Barriers: none.
// Precision: float32, the functions of core/exact_math.h. Each element is computed by one thread from its own inputs,
// so that the result does not depend on the launch.
#include "cuda/device.h"

#include "core/exact_math.h"
#include "cuda/launch.h"

namespace gdn::gpu {
namespace {

struct GatesTraits {
  static constexpr int block_threads = 256;
  static constexpr int64_t max_blocks = 65536;

  static_assert(block_threads % 64 == 0, "a block is whole warps on CUDA (32) and whole wavefronts on ROCm (32 or 64)");
  static_assert(max_blocks <= INT32_MAX, "a grid's first dimension has at most 2^31 - 1 blocks");
};

// Where the element with these coordinates lies.
template <class AnyView>
__device__ __forceinline__ int64_t offset_of(const AnyView& view, int64_t i0, int64_t i1, int64_t i2, int64_t head) {
  return i0 * view.stride[0] + i1 * view.stride[1] + i2 * view.stride[2] + head * view.stride[3];
}

// (15)
__device__ __forceinline__ float log_decay(float a, float A_log, float dt_bias) {
  const float step = exact::softplus(a + dt_bias);
  return step == 0.0f ? 0.0f : -exact::exp(A_log) * step;
}

// (16)
__device__ __forceinline__ float write_strength(float b, bool allow_neg_eigval) {
  const float beta = exact::sigmoid(b);
  return allow_neg_eigval ? 2.0f * beta : beta;
}

__global__ void __launch_bounds__(GatesTraits::block_threads) gdn_gates_kernel(GatesParams p, int64_t elements) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * GatesTraits::block_threads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * GatesTraits::block_threads + threadIdx.x;
  for (int64_t element = first; element < elements; element += stride) {
    const int64_t row = element / p.value_heads;
    const int64_t head = element - row * p.value_heads;
    int64_t i0 = 0, i1 = 0, i2 = row;
    if (p.size[0] != 1 || p.size[1] != 1) {
      i2 = row % p.size[2];
      i1 = row / p.size[2] % p.size[1];
      i0 = row / p.size[2] / p.size[1];
    }

    const float a = load(p.a, offset_of(p.a, i0, i1, i2, head));
    const float A_log = load(p.A_log, head * p.A_log.stride[0]);
    const float dt_bias = load(p.dt_bias, head * p.dt_bias.stride[0]);
    static_cast<float*>(p.g.data)[offset_of(p.g, i0, i1, i2, head)] = log_decay(a, A_log, dt_bias);  // (15)

    const float b = load(p.b, offset_of(p.b, i0, i1, i2, head));
    static_cast<float*>(p.beta.data)[offset_of(p.beta, i0, i1, i2, head)] =
        write_strength(b, p.allow_neg_eigval);  // (16)
  }
}

}  // namespace

const char* gdn_gates(const GatesParams& params, void* stream) {
  const int64_t elements = params.size[0] * params.size[1] * params.size[2] * params.value_heads;
  if (elements == 0) return nullptr;
  const int64_t needed = (elements + GatesTraits::block_threads - 1) / GatesTraits::block_threads;
  const auto blocks = static_cast<unsigned>(needed < GatesTraits::max_blocks ? needed : GatesTraits::max_blocks);
  GatesParams p = params;
  join_leading_dimensions(p.size, p.a, p.b, p.g, p.beta);
  gdn_gates_kernel<<<blocks, GatesTraits::block_threads, 0, static_cast<Stream>(stream)>>>(p, elements);
  return launch_error();
}

}  // namespace gdn::gpu
