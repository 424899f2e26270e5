// gdn_gates on the GPU against the CPU kernel, bit for bit: every dtype, strided views, special values, more elements
// than the grid has threads.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/half.h"
#include "cpu/cpu.h"
#include "cuda/launch.h"

namespace {

using namespace gdn;

constexpr int kSkipped = 77;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "test_gdn_gates: %s\n", what);
  std::exit(1);
}

void require_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "test_gdn_gates: %s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}

// The same floats on both sides, stored in a dtype.
class Buffer {
 public:
  Buffer(const std::vector<float>& values, DType dtype) {
    for (const float value : values) {
      switch (dtype) {
        case DType::f32: append(value); break;
        case DType::bf16: append(from_f32<bf16>(value)); break;
        case DType::f16: append(from_f32<f16>(value)); break;
      }
    }
    require_cuda(cudaMalloc(&device_, host_.size()), "cudaMalloc");
    require_cuda(cudaMemcpy(device_, host_.data(), host_.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { require_cuda(cudaFree(device_), "cudaFree"); }

  void* host() { return host_.data(); }
  void* device() { return device_; }

  std::vector<uint32_t> host_words() const { return words(host_); }
  std::vector<uint32_t> device_words() const {
    std::vector<unsigned char> bytes(host_.size());
    require_cuda(cudaMemcpy(bytes.data(), device_, bytes.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return words(bytes);
  }

 private:
  template <class T>
  void append(T value) {
    const size_t end = host_.size();
    host_.resize(end + sizeof value);
    std::memcpy(host_.data() + end, &value, sizeof value);
  }
  static std::vector<uint32_t> words(const std::vector<unsigned char>& bytes) {
    std::vector<uint32_t> result(bytes.size() / sizeof(uint32_t));
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }

  std::vector<unsigned char> host_;
  void* device_ = nullptr;
};

bool same(uint32_t x, uint32_t y) {
  const auto is_nan = [](uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; };
  return x == y || (is_nan(x) && is_nan(y));
}

struct Case {
  int64_t batch, tokens, heads;
  DType ab, parameters;
  bool packed;  // a and b are the halves of one [batch, tokens, 2 heads] tensor
  bool allow_neg_eigval;
};

std::vector<float> random_values(size_t count, std::mt19937& random) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float special[] = {0.0f,   -0.0f, infinity, -infinity, std::numeric_limits<float>::quiet_NaN(),
                           1e-40f, 20.0f, -90.0f};
  std::normal_distribution<float> normal(0.0f, 8.0f);
  std::vector<float> values(count);
  for (float& value : values) value = random() % 16 == 0 ? special[random() % 8] : normal(random);
  return values;
}

void run_serial(int64_t count, int64_t, Parallel::Body body, void* context) { body(0, count, context); }

void run(const Case& c) {
  std::mt19937 random(7);
  const int64_t rows = c.batch * c.tokens;
  const int64_t row_stride = c.packed ? 2 * c.heads : c.heads;
  Buffer ab(random_values(static_cast<size_t>(rows * 2 * c.heads), random), c.ab);
  Buffer A_log(random_values(static_cast<size_t>(c.heads), random), c.parameters);
  Buffer dt_bias(random_values(static_cast<size_t>(c.heads), random), c.parameters);
  const std::vector<float> unwritten(static_cast<size_t>(rows * c.heads), std::numeric_limits<float>::quiet_NaN());
  Buffer g(unwritten, DType::f32);
  Buffer beta(unwritten, DType::f32);

  const auto params_on = [&](void* (Buffer::*side)()) {
    const int64_t b_elements = c.packed ? c.heads : rows * c.heads;
    const int64_t element_bytes = c.ab == DType::f32 ? 4 : 2;
    GatesParams p;
    p.size[0] = 1;
    p.size[1] = c.batch;
    p.size[2] = c.tokens;
    p.value_heads = c.heads;
    p.a = {(ab.*side)(), c.ab, {0, c.tokens * row_stride, row_stride, 1}};
    p.b = p.a;
    p.b.data = static_cast<const unsigned char*>(p.a.data) + b_elements * element_bytes;
    p.A_log = {(A_log.*side)(), c.parameters, {1}};
    p.dt_bias = {(dt_bias.*side)(), c.parameters, {1}};
    p.g = {(g.*side)(), DType::f32, {0, c.tokens * c.heads, c.heads, 1}};
    p.beta = {(beta.*side)(), DType::f32, {0, c.tokens * c.heads, c.heads, 1}};
    p.allow_neg_eigval = c.allow_neg_eigval;
    return p;
  };
  cpu::gates_cpu(params_on(&Buffer::host), policy::Isa::baseline, Parallel{run_serial});
  const char* refused = gpu::gdn_gates(params_on(&Buffer::device), nullptr);
  require(refused == nullptr, refused);
  require_cuda(cudaDeviceSynchronize(), "gdn_gates");

  for (const Buffer* output : {&g, &beta}) {
    const std::vector<uint32_t> expected = output->host_words();
    const std::vector<uint32_t> got = output->device_words();
    for (size_t i = 0; i < expected.size(); ++i) {
      if (same(expected[i], got[i])) continue;
      std::fprintf(stderr, "test_gdn_gates: %s of element %zu of [%lld, %lld, %lld]: CPU %08x, GPU %08x\n",
                   output == &g ? "g" : "beta", i, static_cast<long long>(c.batch), static_cast<long long>(c.tokens),
                   static_cast<long long>(c.heads), expected[i], got[i]);
      std::exit(1);
    }
  }
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("test_gdn_gates: skipped: no GPU");
    return kSkipped;
  }
  const DType dtypes[] = {DType::f32, DType::bf16, DType::f16};
  int cases = 0;
  for (const DType ab : dtypes) {
    for (const DType parameters : dtypes) {
      for (const bool packed : {false, true}) {
        for (const bool allow_neg_eigval : {false, true}) {
          run({2, 17, 48, ab, parameters, packed, allow_neg_eigval});
          ++cases;
        }
      }
    }
  }
  run({1, 600000, 32, DType::bf16, DType::f32, true, false});  // more elements than the grid has threads
  GatesParams empty;
  require(gpu::gdn_gates(empty, nullptr) == nullptr, "an empty tensor must be accepted");
  std::printf("test_gdn_gates: %d cases agree\n", cases + 1);
  return 0;
}
