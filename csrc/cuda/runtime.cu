#include "cuda/runtime.h"

#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#include "cuda/device.h"

namespace gdn::gpu {
namespace {

policy::Device ask(int32_t index) {
  const Properties properties = device_properties(index);
  return {properties.arch, properties.multiprocessors, properties.shared_memory_bytes};
}

}  // namespace

policy::Device device(int32_t index) {
  static std::mutex mutex;
  static std::map<int32_t, policy::Device> devices;
  const std::lock_guard lock(mutex);
  const auto known = devices.find(index);
  if (known != devices.end()) return known->second;
  return devices.emplace(index, ask(index)).first->second;
}

}  // namespace gdn::gpu
