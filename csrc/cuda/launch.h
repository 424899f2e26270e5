// The launchers of the GPU kernels: params and a stream in, tensors written, nothing decided here and nothing waited
// for. One function a registry id. The stream is a cudaStream_t or a hipStream_t and belongs to the current device,
// which holds every tensor.
//
// nullptr: the launch was accepted. Otherwise the runtime's message (static storage): nothing was launched.
#pragma once

#include "core/params.h"

namespace gdn::gpu {

// columns: value columns a block, 8 or 16. packed_rows: every row of q and k starts on a 16-byte boundary.
const char* rec_columns(const RecurrenceParams& params, int columns, bool packed_rows, void* stream);
// heads: value heads a thread, 2, 3 or 4; divides HV/H.
const char* rec_keyhead(const RecurrenceParams& params, int heads, bool packed_rows, void* stream);
const char* causal_conv1d(const ConvParams& params, void* stream);
const char* qk_l2norm(const L2NormParams& q, const L2NormParams& k, void* stream);
const char* gdn_gates(const GatesParams& params, void* stream);
const char* gated_rms_norm(const NormParams& params, void* stream);

}  // namespace gdn::gpu
