// commit_verify: a speculative round in one pass over the state: the last round's accepted tokens are replayed and
// stored, then this round's drafts verified (step.cuh).
#include "cuda/step.cuh"

namespace gdn::gpu {

const char* commit_verify(const CommitParams& commit, const RecurrenceParams& params, const StepLaunch& how,
                          void* stream) {
  StepParams p = {};
  p.window = commit.window;
  p.log_stride = log_strides(commit.layers[0].logs);
  p.logs = log_data(commit.layers[0].logs);
  return launch_step<StepMode::commit_verify>(p, params, how, stream);
}

}  // namespace gdn::gpu
