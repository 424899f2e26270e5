// api/launch.h for the runner, in place of csrc/api/launch.cpp: whatever its dispatch key, an op runs on the GPU that
// the runner plays, whose memory is the CPU's. Everything else of csrc/api is compiled as it is.
#include "api/launch.h"

#include <torch/csrc/stable/ops.h>

#include <stdexcept>
#include <string>

namespace gdn::api {
namespace {

policy::Device g_device;

}  // namespace

Parallel torch_parallel() { throw std::logic_error("no kernel of the CPU runs under the runner"); }

Launch::Launch(const char* op, Backend, int32_t device_index, const policy::Request& request)
    : op_(op),
      backend_(Backend::cuda),
      device_index_(device_index),
      request_(request),
      device_(g_device),
      decision_(policy::require(op, request, device_, policy::current_overrides())) {}

void* Launch::stream() const { return nullptr; }

void Launch::accepted(const char* error) const {
  if (error != nullptr) throw std::runtime_error(std::string(op_) + ": the launch was refused: " + error);
}

}  // namespace gdn::api

extern "C" {

// The device that the registry decides for.
__attribute__((visibility("default"))) void rdna_ops_set_device(const char* arch, int multiprocessors,
                                                                int64_t shared_bytes) {
  gdn::api::g_device = {arch, multiprocessors, shared_bytes};
}

// A registry switch such as GDN_STEP; a null value takes it back.
__attribute__((visibility("default"))) int64_t rdna_ops_push_override(const char* name, const char* value) {
  gdn::policy::Assignment assignment{name, std::nullopt};
  if (value != nullptr) assignment.value = value;
  return gdn::policy::push_overrides({assignment});
}
__attribute__((visibility("default"))) void rdna_ops_pop_override(int64_t id) { gdn::policy::pop_overrides(id); }
}
