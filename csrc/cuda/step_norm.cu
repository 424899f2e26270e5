// step_norm: decode tokens of a fused layer, states in place, and the gated norm of their outputs (step.cuh).
#include "cuda/step.cuh"

namespace gdn::gpu {

const char* step_norm(const RecurrenceParams& params, const NormParams& norm, const StepLaunch& how, void* stream) {
  StepParams p = {};
  p.norm = output_norm(norm);
  return launch_step<StepMode::step_norm>(p, params, how, stream);
}

}  // namespace gdn::gpu
