// step: decode tokens on states in place or out of place (step.cuh).
#include "cuda/step.cuh"

namespace gdn::gpu {

const char* step(const RecurrenceParams& params, const StepLaunch& how, void* stream) {
  StepParams p = {};
  return launch_step<StepMode::step>(p, params, how, stream);
}

}  // namespace gdn::gpu
