// verify: a chain of draft tokens; the state is read, the logs of a replay are written (step.cuh).
#include "cuda/device.h"

#include "cuda/launch.h"
#include "cuda/step.cuh"

namespace gdn::gpu {

const char* verify(const RecurrenceParams& params, const StepLaunch& how, void* stream) {
  StepParams p = {};
  p.rec = params;
  p.access = tile_access(params.state_in);
  p.packed_rows = how.packed_rows;
  return launch_step<StepMode::verify>(p, how.warps, stream);
}

}  // namespace gdn::gpu
