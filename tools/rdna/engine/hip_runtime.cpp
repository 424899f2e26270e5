// A HIP runtime for the host side of csrc/cuda: one device, whose launches go to the runner and are over when they
// return.
#include <hip/hip_runtime.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "c_api.h"

namespace {

struct Configuration {
  dim3 grid, block;
  size_t shared_bytes;
  hipStream_t stream;
};

struct Device {
  std::string arch = "gfx0";
  int multiprocessors = 0;
  size_t shared_bytes = 0;
};

RdnaLauncher g_launcher = nullptr;
Device g_device;
thread_local std::vector<Configuration> g_configurations;
thread_local hipError_t g_last_error = hipSuccess;
thread_local std::string g_message;

std::map<const void*, std::string>& kernels() {
  static std::map<const void*, std::string> all;
  return all;
}

hipError_t remembered(hipError_t error) {
  if (error != hipSuccess) g_last_error = error;
  return error;
}

}  // namespace

extern "C" {

void rdna_set_launcher(RdnaLauncher launcher) { g_launcher = launcher; }
void rdna_refuse(const char* message) { g_message = message; }
void rdna_set_device(const char* arch, int multiprocessors, uint64_t shared_bytes) {
  g_device = {arch, multiprocessors, static_cast<size_t>(shared_bytes)};
}

hipError_t hipGetLastError() {
  const hipError_t error = g_last_error;
  g_last_error = hipSuccess;
  return error;
}

const char* hipGetErrorString(hipError_t error) {
  switch (error) {
    case hipSuccess: return "no error";
    case hipErrorInvalidValue: return "invalid value";
    case hipErrorLaunchFailure: return g_message.c_str();
  }
  return "unknown error";
}

hipError_t hipGetDevice(int* device) {
  *device = 0;
  return hipSuccess;
}

hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int) {
  std::strncpy(properties->gcnArchName, g_device.arch.c_str(), sizeof properties->gcnArchName - 1);
  properties->gcnArchName[sizeof properties->gcnArchName - 1] = 0;
  properties->multiProcessorCount = g_device.multiprocessors;
  properties->sharedMemPerBlock = g_device.shared_bytes;
  return hipSuccess;
}

hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t, int) {
  *value = g_device.multiprocessors;
  return hipSuccess;
}

hipError_t hipFuncSetAttribute(const void*, hipFuncAttribute, int value) {
  return remembered(static_cast<size_t>(value) > g_device.shared_bytes ? hipErrorInvalidValue : hipSuccess);
}

hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, hipStream_t stream) {
  g_configurations.push_back({grid, block, shared_bytes, stream});
  return hipSuccess;
}

hipError_t __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, hipStream_t* stream) {
  const Configuration c = g_configurations.back();
  g_configurations.pop_back();
  *grid = c.grid;
  *block = c.block;
  *shared_bytes = c.shared_bytes;
  *stream = c.stream;
  return hipSuccess;
}

hipError_t hipLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                           hipStream_t) {
  const auto kernel = kernels().find(function);
  if (kernel == kernels().end() || g_launcher == nullptr) {
    g_message = "no runner, or a kernel that was not registered";
    return remembered(hipErrorLaunchFailure);
  }
  const uint32_t grid_size[] = {grid.x, grid.y, grid.z}, block_size[] = {block.x, block.y, block.z};
  const int refused =
      g_launcher(kernel->second.c_str(), grid_size, block_size, arguments, static_cast<uint32_t>(shared_bytes));
  return remembered(refused != 0 ? hipErrorLaunchFailure : hipSuccess);
}

// What the compiler's constructors pass and call. The host objects are compiled without device code.
extern const char __hip_fatbin[1];
const char __hip_fatbin[1] = {};
void** __hipRegisterFatBinary(const void*) {
  static void* modules[1];
  return modules;
}
void __hipUnregisterFatBinary(void**) {}
void __hipRegisterFunction(void**, const void* host_function, char*, const char* device_name, unsigned, void*, void*,
                           void*, void*, int*) {
  kernels()[host_function] = device_name;
}
void __hipRegisterVar(void**, void*, char*, const char*, int, size_t, int, int) {}

}  // extern "C"
