// step: decode tokens on states in place or out of place (step.cuh).
#include "cuda/device.h"

#include "cuda/launch.h"
#include "cuda/step.cuh"

namespace gdn::gpu {

const char* step(const RecurrenceParams& params, const StepLaunch& how, void* stream) {
  StepParams p = {};
  p.rec = params;
  p.access = common_access(params.state_in, params.state_out);
  p.packed_rows = how.packed_rows;
  return launch_step<StepMode::step>(p, how.warps, stream);
}

}  // namespace gdn::gpu
