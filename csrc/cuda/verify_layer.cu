// verify_layer: a chain of draft tokens of a whole layer; states and windows are read, the logs of a replay are written
// (layer.cuh).
#include "cuda/layer.cuh"

namespace gdn::gpu {

const char* verify_layer(const ConvParams& conv, const GatesParams& gates, const RecurrenceParams& params,
                         const NormParams& norm, const StepLaunch& how, void* stream) {
  return launch_layer<StepMode::verify_layer>(conv, gates, params, norm, how, stream);
}

}  // namespace gdn::gpu
