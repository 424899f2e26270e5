#include "sm_holder.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace gdn::rec_parity {
namespace {

constexpr size_t kReleased = 0, kExpired = 1, kFlags = 2;
constexpr int kThreads = 32;
constexpr int kSmallBlocksAnSm = 16, kSmallSharedBytes = 1024;
constexpr unsigned kPollNanoseconds = 100'000;  // the flag is across the bus
constexpr unsigned kProbeNanoseconds = 20'000;  // that a small block stays, so that the others spread
constexpr uint64_t kNanosecondsASecond = 1'000'000'000;
constexpr uint64_t kHoldLimit = static_cast<uint64_t>(kHoldLimitSeconds) * kNanosecondsASecond;
constexpr uint64_t kProbeLimit = 2 * kNanosecondsASecond;
constexpr auto kStartLimit = std::chrono::seconds(5);

__device__ uint32_t this_sm() {
  uint32_t sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm;
}

__device__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void hold_kernel(volatile uint32_t* flags, volatile uint32_t* at, uint64_t limit) {
  if (threadIdx.x != 0) return;
  const uint64_t start = nanoseconds();
  at[blockIdx.x] = this_sm() + 1;
  __threadfence_system();
  while (flags[kReleased] == 0) {
    if (nanoseconds() - start > limit) {
      flags[kExpired] = 1;
      __threadfence_system();
      return;
    }
    __nanosleep(kPollNanoseconds);
  }
}

// all_at_once: a block stays until all have arrived, so that each needs room of its own.
__global__ void probe_kernel(volatile uint32_t* at, uint32_t* arrived, bool all_at_once, uint64_t limit) {
  if (threadIdx.x != 0) return;
  const uint64_t start = nanoseconds();
  at[blockIdx.x] = this_sm() + 1;
  atomicAdd(arrived, 1u);
  if (!all_at_once) __nanosleep(kProbeNanoseconds);
  while (all_at_once && *static_cast<volatile uint32_t*>(arrived) < gridDim.x && nanoseconds() - start < limit) {
    __nanosleep(kProbeNanoseconds);
  }
}

int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

template <class Kernel>
void allow_shared_memory(Kernel kernel, int bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
}

}  // namespace

SmHolder::SmHolder()
    : sms_(attribute(cudaDevAttrMultiProcessorCount)),
      shared_bytes_(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)),
      flags_(kFlags),
      held_at_(static_cast<size_t>(sms_)),
      probe_at_(static_cast<size_t>(sms_) * kSmallBlocksAnSm),
      arrived_(sizeof(uint32_t)) {
  allow_shared_memory(hold_kernel, shared_bytes_);
  allow_shared_memory(probe_kernel, shared_bytes_);
  int blocks = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, hold_kernel, kThreads, shared_bytes_),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  if (blocks != 1) throw std::runtime_error("the held blocks do not fill a multiprocessor each");
  hold(sms_);
  release();
  probe(stream_);
}

SmHolder::~SmHolder() {
  flags_[kReleased] = 1;
  cudaStreamSynchronize(stream_);
}

void SmHolder::hold(int count) {
  held_at_.fill(0);
  flags_.fill(0);
  held_ = count;
  held_sms_.clear();
  if (count == 0) return;
  hold_kernel<<<static_cast<unsigned>(count), kThreads, static_cast<size_t>(shared_bytes_), stream_>>>(
      flags_.device(), held_at_.device(), kHoldLimit);
  check(cudaGetLastError(), "hold_kernel");
  const auto give_up = std::chrono::steady_clock::now() + kStartLimit;
  for (int i = 0; i < count; ++i) {
    while (held_at_[i] == 0) {
      if (std::chrono::steady_clock::now() > give_up) {
        release();
        throw std::runtime_error("only " + std::to_string(i) + " of " + std::to_string(count) +
                                 " multiprocessors could be held");
      }
      std::this_thread::yield();
    }
    held_sms_.insert(held_at_[i] - 1);
  }
  if (static_cast<int>(held_sms_.size()) != count) {
    release();
    throw std::runtime_error("two held blocks share a multiprocessor");
  }
}

bool SmHolder::release() {
  flags_[kReleased] = 1;
  stream_.wait();
  held_ = 0;
  held_sms_.clear();
  return flags_[kExpired] == 0;
}

std::set<uint32_t> SmHolder::probed(cudaStream_t stream, int blocks, int shared_bytes, bool all_at_once, int* on_held) {
  probe_at_.fill(0);
  check(cudaMemsetAsync(arrived_.as<void>(), 0, arrived_.bytes(), stream), "cudaMemsetAsync");
  probe_kernel<<<static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(shared_bytes), stream>>>(
      probe_at_.device(), arrived_.as<uint32_t>(), all_at_once, kProbeLimit);
  check(cudaGetLastError(), "probe_kernel");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  std::set<uint32_t> found;
  for (int i = 0; i < blocks; ++i) {
    const uint32_t sm = probe_at_[i] - 1;
    found.insert(sm);
    *on_held += static_cast<int>(held_sms_.count(sm));
  }
  return found;
}

Landing SmHolder::probe(cudaStream_t stream) {
  Landing landing;
  const int free = sms_ - held_;
  landing.held = held_;
  landing.alone = static_cast<int>(probed(stream, free, shared_bytes_, true, &landing.on_held).size());
  landing.small =
      static_cast<int>(probed(stream, free * kSmallBlocksAnSm, kSmallSharedBytes, false, &landing.on_held).size());
  return landing;
}

}  // namespace gdn::rec_parity
