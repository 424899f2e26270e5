// What the registry asks of the GPU runtime.
#pragma once

#include <cstdint>

#include "core/policy.h"

namespace gdn::gpu {

// Asked of the runtime once a device. Throws std::runtime_error where it has no answer.
policy::Device device(int32_t index);

}  // namespace gdn::gpu
