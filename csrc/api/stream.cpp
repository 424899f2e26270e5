#include "api/stream.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace gdn::api {
namespace {

// Of torch's C interface (torch/csrc/inductor/aoti_torch/c/shim.h, where only a CUDA build of torch declares it): 0 and
// the stream, or an error. ROCm builds have it under the same name. It is in a library that a CPU build of torch lacks:
// looked up in what is loaded, it lets one extension serve CPU and CUDA builds.
using CurrentStream = int32_t (*)(int32_t device_index, void** stream);

CurrentStream find_current_stream() {
  for (const char* library : {"libtorch_cuda.so", "libtorch_hip.so"}) {
    void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    void* symbol = handle != nullptr ? dlsym(handle, "aoti_torch_get_current_cuda_stream") : nullptr;
    if (symbol != nullptr) return reinterpret_cast<CurrentStream>(symbol);
  }
  return nullptr;
}

}  // namespace

void* current_stream(int32_t device_index) {
  static const CurrentStream ask = find_current_stream();
  void* stream = nullptr;
  if (ask == nullptr || ask(device_index, &stream) != 0) {
    throw std::runtime_error("torch has no current stream on cuda:" + std::to_string(device_index));
  }
  return stream;
}

}  // namespace gdn::api
