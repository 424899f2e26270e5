// core/quick_silu.h with the GPU's own exp2 and reciprocal, over all float32 inputs: what it decides is what the exact
// function rounds to, for SiLU and sigmoid, bfloat16 and float16.
//
//   test_quick_silu_gpu     returns 0, 1, or 77 where there is no GPU
#include "cuda/device.h"

#include <cstdint>
#include <cstdio>

#include "core/exact_math.h"
#include "core/quick_silu.h"

namespace {

using namespace gdn;

constexpr int block_threads = 256, blocks = 4096;

struct Tally {
  unsigned long long in_range, decided, wrong;
};

template <class Element, bool silu>
__global__ void visit_all(Tally* tally) {
  Tally mine = {};
  constexpr uint64_t threads = uint64_t{block_threads} * blocks;
  for (uint64_t bits = uint64_t{blockIdx.x} * block_threads + threadIdx.x; bits < (uint64_t{1} << 32);
       bits += threads) {
    const float x = float_of(static_cast<uint32_t>(bits));
    const float sigmoid = quick::sigmoid(x, gpu::Approximate{}), gate = silu ? x * sigmoid : sigmoid;
    if (!quick::in_range(x)) continue;
    ++mine.in_range;
    const auto [word, decided] = quick::round_both<Element>(gate, gate);
    if (!decided) continue;
    ++mine.decided;
    const float exact = silu ? exact::silu(x) : exact::sigmoid(x);
    if (word != pack2<Element>(exact, exact)) ++mine.wrong;
  }
  atomicAdd(&tally->in_range, mine.in_range);
  atomicAdd(&tally->decided, mine.decided);
  atomicAdd(&tally->wrong, mine.wrong);
}

}  // namespace

int main() {
  constexpr int skipped = 77;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return skipped;
  Tally* tally;
  if (cudaMallocManaged(&tally, sizeof *tally) != cudaSuccess) return 1;
  const struct {
    const char* name;
    void (*kernel)(Tally*);
  } cases[] = {{"SiLU, bfloat16", visit_all<bf16, true>},
               {"SiLU, float16", visit_all<f16, true>},
               {"sigmoid, bfloat16", visit_all<bf16, false>},
               {"sigmoid, float16", visit_all<f16, false>}};
  int failures = 0;
  for (const auto& [name, kernel] : cases) {
    *tally = {};
    kernel<<<blocks, block_threads>>>(tally);
    if (cudaDeviceSynchronize() != cudaSuccess) return 1;
    const bool passed = tally->wrong == 0 && tally->decided > tally->in_range / 2;
    std::printf("  %-20s %s: %llu in range, %llu decided, %llu wrong\n", name, passed ? "ok" : "FAILED",
                tally->in_range, tally->decided, tally->wrong);
    failures += passed ? 0 : 1;
  }
  return failures == 0 ? 0 : 1;
}
