// torch's current stream, as the GPU runtime knows it.
#pragma once

#include <cstdint>

namespace gdn::api {

// A cudaStream_t or a hipStream_t of the device cuda:device_index; nullptr is its default stream. Throws
// std::runtime_error where this torch has none.
void* current_stream(int32_t device_index);

}  // namespace gdn::api
