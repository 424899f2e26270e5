// What the ops on the recurrence share: their arguments checked and turned into RecurrenceParams.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api/launch.h"
#include "api/tensors.h"
#if defined(GDN_WITH_GPU)
#include "cuda/launch.h"
#endif

namespace gdn::api {

struct RecurrenceOptions {
  std::optional<double> scale;
  bool qk_l2norm = false;
  double l2_eps = 1e-6;
  std::string head_map = "grouped";
  std::string state_layout = "kv";
  std::string precision = "auto";
};

// Filled step by step, each step checking what it takes; nothing is allocated or changed before launch.
struct RecurrenceCall {
  Checks checks;
  TensorInfo q, k, v, g, beta;
  TensorInfo counted;  // says how many sequences there are: q or cu_seqlens
  RecurrenceParams params;
  policy::Request request;
  bool value_major = false;

  RecurrenceCall(const char* op, policy::Op row, const RecurrenceOptions& options, const TensorInfo& q,
                 const TensorInfo& k, const TensorInfo& v, const TensorInfo& g, const TensorInfo& beta);

  int64_t sequences() const { return params.shape.sequences; }
  // [N+1]; changes the number of sequences.
  void cu_seqlens(const std::optional<TensorInfo>& bounds);
  // A pool [S, HV, K, V] or [S, HV, V, K].
  void pool(const TensorInfo& state, const std::optional<TensorInfo>& state_indices, bool written);
  // A state a sequence, in that order.
  void initial_state(const TensorInfo& state);
  void has_initial_state(const std::optional<TensorInfo>& flags);
  void verify_window(const std::optional<TensorInfo>& parents);
  void output(const Tensor& o) { params.o = out_view<4>(o); }

 private:
  // [count, HV, K, V] or [count, HV, V, K], read.
  void states(const TensorInfo& state, Dim count);
};

struct Logs {
  Tensor k, d, g;
};
// [N, T, H, K], [N, T, HV, V], [N, T, HV] float32 on `like`'s device, and the call's views of them.
Logs allocate_logs(RecurrenceCall& call, const Tensor& like);

// Runs what the registry decided on, and counts it. If the allocator refuses a work buffer that a switch would have,
// the next kernel of the registry; one that the precision orders throws.
void run_prompt(const Launch& launch, Backend backend, RecurrenceCall& call, const Tensor& like);
// The same where no kernel needs a work buffer; not counted.
void run_recurrence(const Launch& launch, const RecurrenceCall& call);
void run_verify(const Launch& launch, const RecurrenceCall& call);
// The same with the output norm in the recurrence's kernel, where the decision says norm_fused: o is not written.
void run_normed(const Launch& launch, const RecurrenceCall& call, const NormParams& norm);
// Warps of a block of a CUDA kernel that holds states in tiles.
int tile_warps(const policy::Decision& decision, int64_t key_dim);

#if defined(GDN_WITH_GPU)
gpu::StepLaunch step_launch(const policy::Decision& decision, const policy::Request& request);
#endif

policy::Precision parse_precision(const Checks& checks, const std::string& precision);

// k_log, d_log and g_log of a verify, checked against each other and the pool, for a replay; `accepted`, `path` and
// `state_indices` are shared by all layers. Entries are checked for lists and for single tensors alike.
struct CommitCall {
  Checks checks;
  CommitParams params;
  policy::Request request;
  std::vector<CommitLayer> layers;

  CommitCall(const char* op, policy::Op row, const std::vector<TensorInfo>& states,
             const std::vector<TensorInfo>& k_logs, const std::vector<TensorInfo>& d_logs,
             const std::vector<TensorInfo>& g_logs, const TensorInfo& accepted,
             const std::optional<TensorInfo>& state_indices, const std::optional<TensorInfo>& path,
             const std::string& head_map, const std::string& state_layout);
  CommitCall(const CommitCall&) = delete;  // params points to layers
};

}  // namespace gdn::api
