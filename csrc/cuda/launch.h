// The launchers of the GPU kernels: params and a stream in, tensors written, nothing decided here and nothing waited
// for. One function a registry id. The stream is a cudaStream_t or a hipStream_t and belongs to the current device,
// which holds every tensor.
//
// nullptr: the launch was accepted. Otherwise the runtime's message (static storage): nothing was launched.
#pragma once

#include "core/params.h"

namespace gdn::gpu {

// How the recurrence of a prompt is launched.
struct RecLaunch {
  int heads;         // value heads a thread: 1 (rec_columns, rec_lanes), or 2, 3 or 4 (rec_keyhead), a divisor of HV/H
  int columns;       // value columns a block: 16, 8 (rec_columns, K = 128) or 32 (rec_lanes)
  bool packed_rows;  // every row of q and k starts on a 16-byte boundary
  bool pipelined;    // the next stage's loads are under way while this one computes
};
const char* rec_columns(const RecurrenceParams& params, const RecLaunch& how, void* stream);
const char* rec_keyhead(const RecurrenceParams& params, const RecLaunch& how, void* stream);
const char* rec_lanes(const RecurrenceParams& params, const RecLaunch& how, void* stream);  // RDNA
// How a prompt in the chunked form is launched (sm_80 or newer).
struct ChunkLaunch {
  int heads;              // value heads of a block: chunk::block_heads
  bool packed_rows;       // every row of q, k and v starts on a 16-byte boundary
  bool pipelined;         // the next chunk is copied while one is computed, into a second stage of shared memory
  int64_t window_chunks;  // chunks that `work` has room for, at least 1: chunk::layout(heads).floats each
  float* work;            // on a 16-byte boundary
};
const char* chunk_fp32(const RecurrenceParams& params, const ChunkLaunch& how, void* stream);
// How decode steps and speculative windows are launched.
struct StepLaunch {
  int warps;         // of a block, each with a tile of the same value head
  int heads;         // value heads of a block, one after another: a divisor of HV/H
  bool packed_rows;  // every row of q and k starts on a 16-byte boundary
  bool early;        // may start while the kernel before it runs (sm_90 or newer)
};
const char* step(const RecurrenceParams& params, const StepLaunch& how, void* stream);
const char* verify(const RecurrenceParams& params, const StepLaunch& how, void* stream);
// The fused layers' step and verify, of states in_vectors(): the norm's o is not written. `early`: they read states,
// the indices of slots, z and the weight at once, and what the kernel before them writes only after it has ended.
const char* step_norm(const RecurrenceParams& params, const NormParams& norm, const StepLaunch& how, void* stream);
const char* verify_norm(const RecurrenceParams& params, const NormParams& norm, const StepLaunch& how, void* stream);
// The fused layers in one launch, for states in_vectors() and a convolution of four taps. What the single ops leave for
// each other (q, k, v, g, beta and o) is not written. decode_layer: the value heads of a key head are a cluster of
// blocks, at most 8.
const char* decode_layer(const ConvParams& conv, const GatesParams& gates, const RecurrenceParams& params,
                         const NormParams& norm, const StepLaunch& how, void* stream);
const char* verify_layer(const ConvParams& conv, const GatesParams& gates, const RecurrenceParams& params,
                         const NormParams& norm, const StepLaunch& how, void* stream);
const char* verify_tree(const RecurrenceParams& params, const StepLaunch& how, void* stream);
const char* commit_verify(const CommitParams& commit, const RecurrenceParams& params, const StepLaunch& how,
                          void* stream);
const char* commit(const CommitParams& params, int warps, void* stream);
const char* conv_commit(const ConvCommitParams& params, void* stream);
const char* causal_conv1d(const ConvParams& params, void* stream);
// The convolution (SiLU) and the gates of a layer. The sequences are the batch's rows, of 1 to kMaxLayerTokens tokens,
// and gates.size is [1, N, T]: no cu_seqlens, no has_initial_state. Windows are given; state_out is absent or their own
// memory.
const char* conv_gates(const ConvParams& conv, const GatesParams& gates, void* stream);
// The same on RDNA, with the L2 norm of queries and keys: q and k [N, T, H, K] are float32, and of conv.y only v's
// channels are written.
const char* conv_l2(const ConvParams& conv, const GatesParams& gates, const HeadShape& heads, float l2_eps, float* q,
                    float* k, void* stream);
const char* qk_l2norm(const L2NormParams& q, const L2NormParams& k, void* stream);
const char* gdn_gates(const GatesParams& params, void* stream);
const char* gated_rms_norm(const NormParams& params, void* stream);

}  // namespace gdn::gpu
