// Copies from global to shared memory that no thread waits for, and barriers in shared memory that count arrivals and
// copied bytes (sm_80 or newer).
#pragma once

#include "cuda/device.h"

namespace gdn::gpu {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define GDN_ASYNC_COPY 1
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define GDN_BULK_COPY 1
#endif

__device__ __forceinline__ uint32_t shared_address(const void* s_x) {
#if defined(GDN_ASYNC_COPY)
  return static_cast<uint32_t>(__cvta_generic_to_shared(s_x));
#else
  return 0;
#endif
}

// A barrier's phase ends when `arrivals` have come, and every copy that was announced.
__device__ __forceinline__ void init_barrier(uint64_t* s_barrier, int arrivals) {
#if defined(GDN_ASYNC_COPY)
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(s_barrier)), "r"(arrivals) : "memory");
#endif
}
// After init_barrier, by the same thread and before the block's other threads go on.
__device__ __forceinline__ void publish_barriers() {
#if defined(GDN_BULK_COPY)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
__device__ __forceinline__ void arrive(uint64_t* s_barrier) {
#if defined(GDN_ASYNC_COPY)
  asm volatile("{\n .reg .b64 state;\n mbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(shared_address(s_barrier))
               : "memory");
#endif
}
// Until the phase whose number is `parity`, modulo two, has ended.
__device__ __forceinline__ void wait(uint64_t* s_barrier, uint32_t parity) {
#if defined(GDN_BULK_COPY)
  asm volatile(
      "{\n .reg .pred done;\nagain:\n mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n @!done bra again;\n}" ::"r"(
          shared_address(s_barrier)),
      "r"(parity)
      : "memory");
#elif defined(GDN_ASYNC_COPY)
  asm volatile(
      "{\n .reg .pred done;\nagain:\n mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n @!done bra again;\n}" ::
          "r"(shared_address(s_barrier)),
      "r"(parity)
      : "memory");
#endif
}

// What a group of threads, whole warps, copies before a phase of a barrier ends: announced with all its bytes, then
// copied part by part, then closed. Parts are whole vectors of 16 bytes. From sm_90 on one thread starts the copies,
// but all compute the addresses: what a warp has in common costs it less than one thread alone.
template <int threads>
class GroupCopy {
 public:
#if defined(GDN_BULK_COPY)
  static constexpr int arrivals = 1;
#else
  static constexpr int arrivals = threads;
#endif

  __device__ __forceinline__ GroupCopy(uint64_t* s_barrier, uint32_t bytes) : barrier_(shared_address(s_barrier)) {
#if defined(GDN_BULK_COPY)
    if (thread() == 0) {
      asm volatile("{\n .reg .b64 state;\n mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(barrier_),
                   "r"(bytes)
                   : "memory");
    }
#else
    (void)bytes;
#endif
  }
  template <int floats>
  __device__ __forceinline__ void part(float* s_to, const float* from) const {
    static_assert(floats % 4 == 0, "whole vectors");
#if defined(GDN_BULK_COPY)
    if (thread() == 0) {
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                       shared_address(s_to)),
                   "l"(from), "n"(floats * 4), "r"(barrier_)
                   : "memory");
    }
#elif defined(GDN_ASYNC_COPY)
#pragma unroll 8
    for (int i = 4 * thread(); i < floats; i += 4 * threads) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(s_to + i)), "l"(from + i)
                   : "memory");
    }
#endif
  }
  __device__ __forceinline__ void close() const {
#if defined(GDN_ASYNC_COPY) && !defined(GDN_BULK_COPY)
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier_) : "memory");
#endif
  }

 private:
  static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x) % threads; }
  uint32_t barrier_;
};

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
