#include "api/launch.h"

#include <torch/csrc/stable/ops.h>

#include <stdexcept>
#include <string>

#include "api/stream.h"

#if defined(GDN_WITH_GPU)
#include "cuda/runtime.h"
#endif

namespace gdn::api {
namespace {

policy::Device device_of(const char* op, Backend backend, int32_t device_index) {
  if (backend == Backend::cpu) return policy::cpu_device(policy::current_overrides());
#if defined(GDN_WITH_GPU)
  try {
    return gpu::device(device_index);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(std::string(op) + ": no GPU to run on: " + error.what());
  }
#else
  (void)device_index;
  throw std::runtime_error(
      std::string(op) +
      ": this build of strata_gdn has no GPU kernels (python -m strata_gdn info says what it has); "
      "reinstall it where a CUDA or ROCm compiler is, or pass CPU tensors");
#endif
}

}  // namespace

Parallel torch_parallel() {
  return {[](int64_t count, int64_t grain, Parallel::Body body, void* context) {
            torch::stable::parallel_for(0, count, grain,
                                        [&](int64_t begin, int64_t end) { body(begin, end, context); });
          },
          torch::stable::get_num_threads()};
}

Launch::Launch(const char* op, Backend backend, int32_t device_index, const policy::Request& request)
    : op_(op),
      backend_(backend),
      device_index_(device_index),
      request_(request),
      device_(device_of(op, backend, device_index)),
      decision_(policy::require(op, request, device_, policy::current_overrides())) {
  if (backend == Backend::cuda) current_.emplace(device_index);
}

void* Launch::stream() const {
  try {
    return current_stream(device_index_);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(std::string(op_) + ": " + error.what());
  }
}

void Launch::accepted(const char* error) const {
  if (error != nullptr) throw std::runtime_error(std::string(op_) + ": the launch was refused: " + error);
}

}  // namespace gdn::api
