// The part of HIP that csrc/cuda uses, for a compiler without ROCm (clang -x hip -nogpuinc -nogpulib): the language's
// keywords, its built-in variables, a few device functions, and the host functions that engine/hip_runtime.cpp serves.
// Device functions that ROCm defines otherwise than here have its results: shuffles read any lane of the wave. What
// ROCm has no correctly rounded version of, __fsqrt_rn for one, is not here: csrc/cuda does without.
#pragma once

#include <cstddef>
#include <cstdint>

// A C++ compiler sees the host functions alone.
#if defined(__HIP__)
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
// As HIP reads them: threads of a block, and the waves of a SIMD that registers must leave room for.
#define GDN_BOUNDS_OF(threads, waves, ...) \
  __attribute__((amdgpu_flat_work_group_size(1, threads), amdgpu_waves_per_eu(waves)))
#define __launch_bounds__(...) GDN_BOUNDS_OF(__VA_ARGS__, 1, )

#else
#define __host__
#define __device__
#endif

struct dim3 {
  uint32_t x, y, z;
  constexpr __host__ __device__ dim3(uint32_t x = 1, uint32_t y = 1, uint32_t z = 1) : x(x), y(y), z(z) {}
};

struct alignas(16) float4 {
  float x, y, z, w;
};

// Host ---------------------------------------------------------------------------------------------------------------

enum hipError_t { hipSuccess = 0, hipErrorInvalidValue = 1, hipErrorLaunchFailure = 719 };
enum hipFuncAttribute { hipFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum hipDeviceAttribute_t { hipDeviceAttributeMultiprocessorCount = 63 };
using hipStream_t = struct ihipStream_t*;

struct hipDeviceProp_t {
  char gcnArchName[256];
  int multiProcessorCount;
  size_t sharedMemPerBlock;
};

extern "C" {
hipError_t hipGetLastError();
const char* hipGetErrorString(hipError_t error);
hipError_t hipGetDevice(int* device);
hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device);
hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device);
hipError_t hipFuncSetAttribute(const void* function, hipFuncAttribute attribute, int value);
hipError_t hipLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                           hipStream_t stream);
hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, hipStream_t stream);
hipError_t __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, hipStream_t* stream);
}

// Launchers ask how many blocks are worth their while: for the runner one a multiprocessor is as good as any number.
template <class Kernel>
hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int, size_t) {
  *blocks = 1;
  return hipSuccess;
}

#if defined(__HIP__)

// Device -------------------------------------------------------------------------------------------------------------

// A built-in variable's three components, each read where it is used.
#define GDN_BUILTIN_VARIABLE(name, builtin)                                  \
  struct name##_t {                                                          \
    __declspec(property(get = get_x)) uint32_t x;                            \
    __declspec(property(get = get_y)) uint32_t y;                            \
    __declspec(property(get = get_z)) uint32_t z;                            \
    __device__ __forceinline__ uint32_t get_x() const { return builtin(x); } \
    __device__ __forceinline__ uint32_t get_y() const { return builtin(y); } \
    __device__ __forceinline__ uint32_t get_z() const { return builtin(z); } \
  };                                                                         \
  extern const __device__ __attribute__((weak)) name##_t name

#define GDN_THREAD(axis) __builtin_amdgcn_workitem_id_##axis()
#define GDN_BLOCK(axis) __builtin_amdgcn_workgroup_id_##axis()
#define GDN_BLOCK_SIZE(axis) __builtin_amdgcn_workgroup_size_##axis()
// The hidden arguments begin with the number of blocks along each axis.
#define GDN_GRID_SIZE(axis) ((const uint32_t*)__builtin_amdgcn_implicitarg_ptr())[GDN_AXIS_##axis]
#define GDN_AXIS_x 0
#define GDN_AXIS_y 1
#define GDN_AXIS_z 2
GDN_BUILTIN_VARIABLE(threadIdx, GDN_THREAD);
GDN_BUILTIN_VARIABLE(blockIdx, GDN_BLOCK);
GDN_BUILTIN_VARIABLE(blockDim, GDN_BLOCK_SIZE);
GDN_BUILTIN_VARIABLE(gridDim, GDN_GRID_SIZE);

__device__ __forceinline__ void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

__device__ __forceinline__ float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
__device__ __forceinline__ int __ffs(int bits) { return __builtin_ffs(bits); }

// Any type of whole 32-bit words, read from another lane.
template <class T>
__device__ __forceinline__ T __shfl(T value, int lane, int) {
  static_assert(sizeof(T) % sizeof(int) == 0, "whole words");
  constexpr int words = sizeof(T) / sizeof(int), lane_bytes = 4;
  int word[words];
  __builtin_memcpy(word, &value, sizeof value);
#pragma unroll
  for (int& w : word) w = __builtin_amdgcn_ds_bpermute(lane * lane_bytes, w);
  __builtin_memcpy(&value, word, sizeof value);
  return value;
}
template <class T>
__device__ __forceinline__ T __shfl_xor(T value, int mask, int width) {
  const auto lane = static_cast<int>(__builtin_amdgcn_mbcnt_lo(~0u, 0u));
  return __shfl(value, lane ^ mask, width);
}

#endif  // __HIP__
