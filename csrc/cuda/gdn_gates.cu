// gdn_gates: the log decay and the write strength of every token and value head (docs/contract.md, "The exact order").
//
//   (15) g    = -exp(A_log) softplus(a + dt_bias)      +0 where softplus is 0, even if exp(A_log) is infinite
//   (16) beta = sigmoid(b)                             times 2 with allow_neg_eigval
//
//   tensor          shape                 strides  dtype
//   a, b            [n0, n1, n2, HV]      any      float32, bfloat16 or float16
//   A_log, dt_bias  [HV]                  any      float32, bfloat16 or float16
//   g, beta         [n0, n1, n2, HV]  contiguous   float32
//
// Grid: one dimension. A thread has one head in `rows` neighbouring rows, so that exp(A_log) serves them all; the
// threads of a block lie along the heads first. Shared memory: none. Barriers: none. Precision: float32, the functions
// of core/exact_math.h. Each element is computed by one thread from its own inputs, so that the result does not depend
// on the launch.
#include "cuda/device.h"

#include "core/exact_math.h"
#include "cuda/gate_math.cuh"
#include "cuda/launch.h"

namespace gdn::gpu {
namespace {

struct GatesTraits {
  static constexpr int block_threads = 256;
  static constexpr int rows = 4;  // of a thread
};

// Where the rows of a tensor [n0, n1, n2, HV] begin.
struct JoinedRows {  // one stride leads from each to the next
  int64_t stride;
  __device__ __forceinline__ int64_t operator()(int64_t row) const { return row * stride; }
};
struct AnyRows {
  int64_t size[3], stride[3];
  __device__ __forceinline__ int64_t operator()(int64_t row) const {
    const int64_t rest = row / size[2];
    return rest / size[1] * stride[0] + rest % size[1] * stride[1] + row % size[2] * stride[2];
  }
};

template <class Rows>
struct GatesInput {
  const void* data;
  int64_t head_stride;
  Rows first_of;
  DType dtype;
};
// What the kernel reads of GatesParams: a launch on a cold cache waits for every line of its arguments.
template <class Rows>
struct GatesKernelParams {
  GatesInput<Rows> a, b;
  View<1> A_log, dt_bias;
  float *g, *beta;  // contiguous
  int64_t rows;
  int32_t value_heads;
  bool allow_neg_eigval;
};

// `fixed`: the dtype of a and b, or any_dtype: they differ.
constexpr int any_dtype = -1;

template <class Rows, int fixed>
__global__ void __launch_bounds__(GatesTraits::block_threads) gdn_gates_kernel(GatesKernelParams<Rows> p) {
  constexpr int thread_rows = GatesTraits::rows;
  const DType a_type = fixed == any_dtype ? p.a.dtype : static_cast<DType>(fixed);
  const DType b_type = fixed == any_dtype ? p.b.dtype : static_cast<DType>(fixed);
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y) * thread_rows;
  const int head = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (head >= p.value_heads || first >= p.rows) return;
  const int count = p.rows - first < thread_rows ? static_cast<int>(p.rows - first) : thread_rows;
  // All loads are under way before the first value is needed. Rows past the last one are read as the first.
  const uint32_t A_log = load_raw(p.A_log.data, p.A_log.dtype, head * p.A_log.stride[0]);
  const uint32_t dt_bias = load_raw(p.dt_bias.data, p.dt_bias.dtype, head * p.dt_bias.stride[0]);
  uint32_t a[thread_rows], b[thread_rows];
#pragma unroll
  for (int i = 0; i < thread_rows; ++i) {
    const int64_t row = first + (i < count ? i : 0);
    a[i] = load_raw(p.a.data, a_type, p.a.first_of(row) + head * p.a.head_stride);
    b[i] = load_raw(p.b.data, b_type, p.b.first_of(row) + head * p.b.head_stride);
  }
  const float rate = exact::exp(widen(A_log, p.A_log.dtype)), bias = widen(dt_bias, p.dt_bias.dtype);
  float* g = p.g + first * p.value_heads + head;
  float* beta = p.beta + first * p.value_heads + head;
  float log_decays[thread_rows], betas[thread_rows];
#pragma unroll
  for (int i = 0; i < thread_rows; ++i) {
    log_decays[i] = log_decay(widen(a[i], a_type), rate, bias);          // (15)
    betas[i] = write_strength(widen(b[i], b_type), p.allow_neg_eigval);  // (16)
  }
#pragma unroll
  for (int i = 0; i < thread_rows; ++i) {
    if (i < count) {
      g[i * p.value_heads] = log_decays[i];
      beta[i * p.value_heads] = betas[i];
    }
  }
}

template <class Rows>
void launch(const GatesParams& p, int64_t rows, const Rows& a, const Rows& b, void* stream) {
  const auto input = [](const View<4>& view, const Rows& rows_of) {
    return GatesInput<Rows>{view.data, view.stride[3], rows_of, view.dtype};
  };
  const auto whole = [](int64_t count, int64_t size) { return static_cast<unsigned>((count + size - 1) / size); };
  const int64_t heads = p.value_heads < GatesTraits::block_threads ? p.value_heads : GatesTraits::block_threads;
  const int64_t groups = GatesTraits::block_threads / heads;
  const dim3 grid(whole(rows, groups * GatesTraits::rows), whole(p.value_heads, heads));
  const dim3 block(static_cast<unsigned>(heads), static_cast<unsigned>(groups));
  const auto kernel = [&] {
    if (p.a.dtype != p.b.dtype) return gdn_gates_kernel<Rows, any_dtype>;
    switch (p.a.dtype) {
      case DType::bf16: return gdn_gates_kernel<Rows, static_cast<int>(DType::bf16)>;
      case DType::f16: return gdn_gates_kernel<Rows, static_cast<int>(DType::f16)>;
      default: return gdn_gates_kernel<Rows, static_cast<int>(DType::f32)>;
    }
  }();
  kernel<<<grid, block, 0, static_cast<Stream>(stream)>>>(
      {input(p.a, a), input(p.b, b), p.A_log, p.dt_bias, static_cast<float*>(p.g.data),
       static_cast<float*>(p.beta.data), rows, static_cast<int32_t>(p.value_heads), p.allow_neg_eigval});
}

}  // namespace

const char* gdn_gates(const GatesParams& params, void* stream) {
  const int64_t rows = params.size[0] * params.size[1] * params.size[2];
  if (rows * params.value_heads == 0) return nullptr;
  GatesParams p = params;
  join_leading_dimensions(p.size, p.a, p.b);
  if (p.size[0] == 1 && p.size[1] == 1) {
    launch<JoinedRows>(p, rows, {p.a.stride[2]}, {p.b.stride[2]}, stream);
  } else {
    const auto any = [&](const View<4>& view) {
      return AnyRows{{p.size[0], p.size[1], p.size[2]}, {view.stride[0], view.stride[1], view.stride[2]}};
    };
    launch<AnyRows>(p, rows, any(p.a), any(p.b), stream);
  }
  return launch_error();
}

}  // namespace gdn::gpu
