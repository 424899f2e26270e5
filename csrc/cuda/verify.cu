// verify: a chain of draft tokens; the state is read, the logs of a replay are written (step.cuh).
#include "cuda/step.cuh"

namespace gdn::gpu {

const char* verify(const RecurrenceParams& params, const StepLaunch& how, void* stream) {
  StepParams p = {};
  return launch_step<StepMode::verify>(p, params, how, stream);
}

}  // namespace gdn::gpu
