// verify_norm: a chain of draft tokens of a fused layer and the gated norm of their outputs (step.cuh).
#include "cuda/step.cuh"

namespace gdn::gpu {

const char* verify_norm(const RecurrenceParams& params, const NormParams& norm, const StepLaunch& how, void* stream) {
  StepParams p = {};
  p.norm = output_norm(norm);
  return launch_step<StepMode::verify_norm>(p, params, how, stream);
}

}  // namespace gdn::gpu
