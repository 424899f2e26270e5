// The launchers of the GPU kernels: params and a stream in, tensors written, nothing decided here and nothing waited
// for. One function a registry id. The stream is a cudaStream_t or a hipStream_t and belongs to the current device,
// which holds every tensor.
//
// nullptr: the launch was accepted. Otherwise the runtime's message (static storage): nothing was launched.
#pragma once

#include "core/params.h"

namespace gdn::gpu {

const char* gdn_gates(const GatesParams& params, void* stream);

}  // namespace gdn::gpu
