// Copies from global to shared memory that a thread does not wait for (sm_80 or newer).
#pragma once

#include "cuda/device.h"

namespace gdn::gpu {

__device__ __forceinline__ void copy_async(float4* s_to, const float4* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(s_to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#endif
}
// The calling thread's copies are there; other threads see them after a barrier.
__device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Barriers of `threads` threads of a block, known by a number: whole warps come to them. (A number in a register is one
// that compute-sanitizer does not follow.)
template <int id, int threads>
__device__ __forceinline__ void named_barrier() {
  asm volatile("barrier.sync %0, %1;" ::"n"(id), "n"(threads) : "memory");
}
// Counts as having come, and goes on.
template <int id, int threads>
__device__ __forceinline__ void named_arrive() {
  asm volatile("barrier.arrive %0, %1;" ::"n"(id), "n"(threads) : "memory");
}

}  // namespace gdn::gpu
