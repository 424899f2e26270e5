// From a checked request to a kernel: the device, the registry's decision, and what a launcher needs of torch.
#pragma once

#include <torch/csrc/stable/accelerator.h>

#include <cstdint>
#include <optional>

#include "core/launch.h"
#include "core/policy.h"

namespace gdn::api {

// Which dispatch key an op was called under. CUDA is also ROCm's.
enum class Backend : int32_t { cpu, cuda };

// torch's thread pool, as many threads as torch.set_num_threads allows now.
Parallel torch_parallel();

class Launch {
 public:
  // Asks the registry. Throws where no kernel can serve the request; nothing has been allocated or changed by then.
  Launch(const char* op, Backend backend, int32_t device_index, const policy::Request& request);

  bool on_cpu() const { return backend_ == Backend::cpu; }
  const policy::Decision& decision() const { return decision_; }
  const char* op() const { return op_; }
  policy::Isa isa() const { return decision_.isa; }
  void* stream() const;  // CUDA: torch's current stream on the device
  // What a GPU launcher returned: an error becomes an exception.
  void accepted(const char* error) const;
  void count() const { policy::count_served(request_, device_, decision_); }

 private:
  const char* op_;
  Backend backend_;
  int32_t device_index_;
  const policy::Request& request_;
  policy::Device device_;
  policy::Decision decision_;
  std::optional<torch::stable::accelerator::DeviceGuard> current_;  // CUDA: the tensors' device is the current one
};

}  // namespace gdn::api
