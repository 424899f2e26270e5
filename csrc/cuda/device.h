// The one header that knows the vendor: everything else under cuda/ is written in what CUDA and HIP share, and in the
// names below. It comes first in a kernel file: the runtime header brings __device__, which core/exact_math.h uses.
#pragma once

#if defined(__HIPCC__)
#include <hip/hip_runtime.h>
#if !defined(__grid_constant__)
#define __grid_constant__  // CUDA's: a parameter that no thread changes need not be copied
#endif
#else
#include <cuda_runtime.h>
#endif

#include <cstdint>
#include <stdexcept>
#include <string>

#include "core/half.h"
#include "core/params.h"

namespace gdn::gpu {

// What the registry decides by.
struct Properties {
  std::string arch;                 // "sm_90", "gfx1151"
  int32_t multiprocessors = 0;      // SMs; on RDNA, as HIP counts, work-group processors of two CUs each
  int64_t shared_memory_bytes = 0;  // what a block may have: opt-in shared memory or LDS
};

#if defined(__HIPCC__)

using Stream = hipStream_t;
using Error = hipError_t;
constexpr Error success = hipSuccess;

inline Error last_error() { return hipGetLastError(); }
inline const char* message(Error error) { return hipGetErrorString(error); }

inline Error query_properties(int32_t index, Properties* properties) {
  hipDeviceProp_t found;
  const Error error = hipGetDeviceProperties(&found, index);
  if (error != success) return error;
  const std::string name = found.gcnArchName;
  properties->arch = name.substr(0, name.find(':'));  // "gfx90a:sramecc+:xnack-" without its features
  properties->multiprocessors = found.multiProcessorCount;
  properties->shared_memory_bytes = static_cast<int64_t>(found.sharedMemPerBlock);
  return success;
}

#else

using Stream = cudaStream_t;
using Error = cudaError_t;
constexpr Error success = cudaSuccess;

inline Error last_error() { return cudaGetLastError(); }
inline const char* message(Error error) { return cudaGetErrorString(error); }

inline Error query_properties(int32_t index, Properties* properties) {
  int major = 0, minor = 0, multiprocessors = 0, shared_memory_bytes = 0;
  const struct {
    int* value;
    cudaDeviceAttr attribute;
  } wanted[] = {
      {&major, cudaDevAttrComputeCapabilityMajor},
      {&minor, cudaDevAttrComputeCapabilityMinor},
      {&multiprocessors, cudaDevAttrMultiProcessorCount},
      {&shared_memory_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin},
  };
  for (const auto& [value, attribute] : wanted) {
    const Error error = cudaDeviceGetAttribute(value, attribute, index);
    if (error != success) return error;
  }
  properties->arch = "sm_" + std::to_string(major) + std::to_string(minor);
  properties->multiprocessors = multiprocessors;
  properties->shared_memory_bytes = shared_memory_bytes;
  return success;
}

#endif

// Throws std::runtime_error where the runtime has no answer (no driver, or one too old).
inline Properties device_properties(int32_t index) {
  Properties properties;
  const Error error = query_properties(index, &properties);
  if (error != success) {
    static_cast<void>(last_error());  // forgets it: the next launch must not be blamed
    throw std::runtime_error("the GPU runtime cannot describe device " + std::to_string(index) + ": " + message(error));
  }
  return properties;
}

// What a launcher returns: nullptr where this thread's last launch was accepted, else why it was refused.
inline const char* launch_error() {
  const Error error = last_error();
  return error == success ? nullptr : message(error);
}

// From Hopper on the compiler fits the state kernels into fewer registers, the largest of them on Hopper alone.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kManyRegisters = false;
#else
constexpr bool kManyRegisters = true;
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
constexpr bool kHopper = true;
#else
constexpr bool kHopper = false;
#endif

#if defined(__HIPCC__)
constexpr bool kRdna = true;
#else
constexpr bool kRdna = false;
#endif

constexpr int kWarp = 32;  // RDNA kernels are compiled for wave32

#if defined(__HIPCC__)
// A word of the lane whose index differs in the bits of `mask`, a constant once loops are unrolled: by DPP, which the
// compiler makes a modifier of the addition that reads it, or across a row's 16 lanes. Neither goes through LDS.
__device__ __forceinline__ int word_of_other_lane(int word, int mask) {
  constexpr int all = 0xf;  // rows, banks
  constexpr bool zero_where_none = true;
#define GDN_DPP(control) __builtin_amdgcn_update_dpp(0, word, control, all, all, zero_where_none)
  switch (mask) {
    case 1: return GDN_DPP(0xb1);   // quad_perm:[1,0,3,2]
    case 2: return GDN_DPP(0x4e);   // quad_perm:[2,3,0,1]
    case 4: return GDN_DPP(0x164);  // row_xmask:4
    case 8: return GDN_DPP(0x168);  // row_xmask:8
    case 16: return __builtin_amdgcn_permlanex16(0, word, 0x76543210, 0xfedcba98, false, zero_where_none);
    default: return __shfl_xor(word, mask, kWarp);
  }
#undef GDN_DPP
}

// f(word) of each 32-bit word.
template <class T, class F>
__device__ __forceinline__ T each_word(T x, F f) {
  static_assert(sizeof(T) % sizeof(int) == 0, "whole words");
  int word[sizeof(T) / sizeof(int)];
  __builtin_memcpy(word, &x, sizeof x);
#pragma unroll
  for (int& w : word) w = f(w);
  __builtin_memcpy(&x, word, sizeof x);
  return x;
}
#endif

// The value of the lane whose index differs in the bits of `mask`; every lane of the warp takes part.
template <class T>
__device__ __forceinline__ T shuffle_xor(T x, int mask) {
#if defined(__HIPCC__)
  return each_word(x, [mask](int word) { return word_of_other_lane(word, mask); });
#else
  return __shfl_xor_sync(0xffffffffu, x, mask);
#endif
}
// That of a lane which is the same for all.
template <class T>
__device__ __forceinline__ T shuffle(T x, int lane) {
#if defined(__HIPCC__)
  return each_word(x, [lane](int word) { return __builtin_amdgcn_readlane(word, lane); });
#else
  return __shfl_sync(0xffffffffu, x, lane);
#endif
}

// A value that all lanes of a warp have in common, as the compiler knows it then: branches on it do not diverge, and
// what lies between them and a shuffle is not compiled a second time for a warp that has come apart.
__device__ __forceinline__ int uniform(int x) {
#if defined(__HIPCC__)
  return __builtin_amdgcn_readfirstlane(x);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xffffffffu, x);
#else
  return __shfl_sync(0xffffffffu, x, 0);
#endif
}

// A kernel's only parameter, `const __grid_constant__ Params GDN_GIVEN(p)`, is `p` after GDN_IN_PLACE(Params, p). On
// RDNA that is where the launch has put it: read as an argument it would be copied to a lane's scratch memory as soon
// as its address is kept in an object.
#if defined(__HIPCC__)
#define GDN_GIVEN(p) p##_given
#if defined(__HIP_DEVICE_COMPILE__)
#define GDN_IN_PLACE(Params, p) const Params& p = *(const Params*)__builtin_amdgcn_kernarg_segment_ptr()
#else
#define GDN_IN_PLACE(Params, p) const Params& p = GDN_GIVEN(p)
#endif
#else
#define GDN_GIVEN(p) p
#define GDN_IN_PLACE(Params, p) static_assert(true)
#endif

// The compiler moves nothing over it: loads that it would start earlier take registers.
__device__ __forceinline__ void keep_order() {
#if defined(__HIP_DEVICE_COMPILE__)
  __builtin_amdgcn_sched_barrier(0);
#endif
}

// Ends the kernel with an error, which the next synchronisation reports.
__device__ __forceinline__ void trap() {
#if defined(__HIPCC__)
  __builtin_trap();
#else
  __trap();
#endif
}

// The sum over a warp's lanes, added at distances 16, 8, 4, 2, 1 (docs/contract.md), in every lane.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) x += shuffle_xor(x, distance);
  return x;
}

// The number of the lowest bit that is set.
__device__ __forceinline__ int lowest_bit(uint32_t bits) { return __ffs(static_cast<int>(bits)) - 1; }

// What lanes of a warp have written to memory before it is seen by its other lanes after it.
__device__ __forceinline__ void sync_warp() {
#if defined(__HIPCC__)
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
#else
  __syncwarp();
#endif
}

// A barrier of the whole block, for memory of every kind.
__device__ __forceinline__ void sync_block() { __syncthreads(); }

// A barrier of the whole block where threads exchange shared memory alone: on RDNA no other access has to be waited
// for.
__device__ __forceinline__ void sync_lds() {
#if defined(__HIPCC__) && defined(__GFX12__)
  asm volatile("s_wait_dscnt 0x0\n\ts_barrier_signal -1\n\ts_barrier_wait -1" ::: "memory");
#elif defined(__HIPCC__)
  asm volatile("s_waitcnt lgkmcnt(0)\n\ts_barrier" ::: "memory");
#else
  __syncthreads();
#endif
}

// The same of the block's `threads` threads, where warps reach it at different places of the program.
template <int threads>
__device__ __forceinline__ void block_barrier() {
#if defined(__HIPCC__)
  sync_lds();
#else
  asm volatile("barrier.sync 1, %0;" ::"n"(threads) : "memory");
#endif
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool kClusters = true;
#else
constexpr bool kClusters = false;
#endif
// A barrier of the blocks of a cluster in two halves (sm_90 or newer): what came before every thread's first half has
// been done when any thread's second half returns.
__device__ __forceinline__ void arrive_in_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait;" ::: "memory");
#endif
}

// Programmatic dependent launch (sm_90 or newer; elsewhere every kernel waits for the one before it). After the first
// the next kernel of the stream may start, if it was launched `early` (launch_kernel); after the second all that the
// kernels before this one have written is there.
__device__ __forceinline__ void trigger_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_prerequisites() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// 1 / sqrt(x), both correctly rounded. HIP's __fsqrt_rn is the processor's own root, which is not; the operators are.
__device__ __forceinline__ float reciprocal_root(float x) {
#if defined(__HIPCC__)
  return 1.0f / __builtin_sqrtf(x);
#else
  return __fdiv_rn(1.0f, __fsqrt_rn(x));
#endif
}

// The processor's own 2^x and 1/x, for core/quick_silu.h: what their last bits are does not reach a result.
struct Approximate {
  __device__ __forceinline__ float exp2(float x) const {
#if defined(__HIPCC__)
    return __builtin_amdgcn_exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
  }
  __device__ __forceinline__ float reciprocal(float x) const {
#if defined(__HIPCC__)
    return __builtin_amdgcn_rcpf(x);
#else
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
  }
};

// Lets a kernel have more dynamic shared memory than the 48 KB of every launch; nullptr, or why not. Asked for on the
// current device before each launch: the runtime keeps a number, and a note of our own would be one for every device.
template <class Kernel>
const char* allow_shared_memory(Kernel kernel, int bytes) {
#if defined(__HIPCC__)
  const Error error =
      hipFuncSetAttribute(reinterpret_cast<const void*>(kernel), hipFuncAttributeMaxDynamicSharedMemorySize, bytes);
#else
  const Error error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
#endif
  return error == success ? nullptr : message(error);
}

#if !defined(__HIPCC__)
// As much as the device gives: for a kernel whose launches need different amounts, as another thread may come between
// one launch's request and its launch.
template <class Kernel>
const char* allow_all_shared_memory(Kernel kernel) {
  int device = 0, bytes = 0;
  Error error = cudaGetDevice(&device);
  if (error == success) error = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return error == success ? allow_shared_memory(kernel, bytes) : message(error);
}
#endif

// For devices of sm_90 or newer:
//   early        the kernel may start before the one before it has ended, and calls wait_for_prerequisites() itself
//   cluster > 1  so many neighbouring blocks of a row of the grid are a cluster
struct LaunchShape {
  dim3 grid, block;
  int shared_bytes = 0;
  bool early = false;
  int cluster = 1;
};
template <class Params>
const char* launch_kernel(void (*kernel)(Params), const LaunchShape& shape, const Params& params, void* stream) {
#if defined(__HIPCC__)
  kernel<<<shape.grid, shape.block, shape.shared_bytes, static_cast<Stream>(stream)>>>(params);
  return launch_error();
#else
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  if (shape.early) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(shape.cluster);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  }
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = static_cast<Stream>(stream);
  config.attrs = attributes;
  cudaLaunchKernelEx(&config, kernel, params);
  return launch_error();
#endif
}

// An element as it lies in memory, and widened exactly. Two steps, so that a thread can have several loads under way:
// widening waits for the value. The dtype is the same for every thread: no branch diverges.
__device__ __forceinline__ uint32_t load_raw(const void* data, DType dtype, int64_t offset) {
  return dtype == DType::f32 ? static_cast<const uint32_t*>(data)[offset] : static_cast<const uint16_t*>(data)[offset];
}
__device__ __forceinline__ float widen(uint32_t raw, DType dtype) {
  const auto half_bits = static_cast<uint16_t>(raw);
  return dtype == DType::f32 ? float_of(raw) : dtype == DType::bf16 ? to_f32(bf16{half_bits}) : to_f32(f16{half_bits});
}

// Asks for the cache line of an element that will be read later.
__device__ __forceinline__ void prefetch([[maybe_unused]] const void* data, [[maybe_unused]] DType dtype,
                                         [[maybe_unused]] int64_t offset) {
#if !defined(__HIPCC__)
  const auto* address = static_cast<const char*>(data) + offset * (dtype == DType::f32 ? 4 : 2);
  asm volatile("prefetch.global.L1 [%0];" ::"l"(address));
#endif
}

template <int rank>
__device__ __forceinline__ float load(const View<rank>& view, int64_t offset) {
  return widen(load_raw(view.data, view.dtype, offset), view.dtype);
}

// The other way round.
template <int rank>
__device__ __forceinline__ void store(const OutView<rank>& view, int64_t offset, float x) {
  switch (view.dtype) {
    case DType::bf16: static_cast<bf16*>(view.data)[offset] = from_f32<bf16>(x); return;
    case DType::f16: static_cast<f16*>(view.data)[offset] = from_f32<f16>(x); return;
    default: static_cast<float*>(view.data)[offset] = x; return;
  }
}

// x as a dtype would keep it.
__device__ __forceinline__ float rounded(DType dtype, float x) {
  switch (dtype) {
    case DType::bf16: return to_f32(from_f32<bf16>(x));
    case DType::f16: return to_f32(from_f32<f16>(x));
    default: return x;
  }
}

// How many blocks the current device holds at once; 0 where the runtime has no answer (the launch will then say why).
template <class Kernel>
int64_t resident_blocks(Kernel kernel, int block_threads, int shared_bytes) {
  int device = 0, multiprocessors = 0, blocks = 0;
#if defined(__HIPCC__)
  const bool known =
      hipGetDevice(&device) == success &&
      hipDeviceGetAttribute(&multiprocessors, hipDeviceAttributeMultiprocessorCount, device) == success &&
      hipOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, block_threads, shared_bytes) == success;
#else
  const bool known =
      cudaGetDevice(&device) == success &&
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) == success &&
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, block_threads, shared_bytes) == success;
#endif
  return known ? static_cast<int64_t>(multiprocessors) * blocks : 0;
}

// A grid's third dimension has at most 65535 blocks: as many launches as `sequences` need there, launch(first, count)
// each, which returns nullptr or why it was refused.
template <class F>
const char* launch_by_sequences(int64_t sequences, F launch) {
  constexpr int64_t most = 65535;
  for (int64_t first = 0; first < sequences; first += most) {
    const int64_t left = sequences - first;
    if (const char* refused = launch(static_cast<int>(first), static_cast<unsigned>(left < most ? left : most))) {
      return refused;
    }
  }
  return nullptr;
}

}  // namespace gdn::gpu
