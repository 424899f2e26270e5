// The one header that knows the vendor: everything else under cuda/ is written in what CUDA and HIP share, and in the
// names below. It comes first in a kernel file: the runtime header brings __device__, which core/exact_math.h uses.
#pragma once

#if defined(__HIPCC__)
#include <hip/hip_runtime.h>
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
  int32_t multiprocessors = 0;      // SMs or CUs
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
    last_error();  // forgets it: the next launch must not be blamed
    throw std::runtime_error("the GPU runtime cannot describe device " + std::to_string(index) + ": " + message(error));
  }
  return properties;
}

// What a launcher returns: nullptr where this thread's last launch was accepted, else why it was refused.
inline const char* launch_error() {
  const Error error = last_error();
  return error == success ? nullptr : message(error);
}

// One element of a view, widened exactly. The dtype is the same for every thread, so the branch does not diverge.
template <int rank>
__device__ __forceinline__ float load(const View<rank>& view, int64_t offset) {
  switch (view.dtype) {
    case DType::bf16: return to_f32(static_cast<const bf16*>(view.data)[offset]);
    case DType::f16: return to_f32(static_cast<const f16*>(view.data)[offset]);
    default: return static_cast<const float*>(view.data)[offset];
  }
}

}  // namespace gdn::gpu
