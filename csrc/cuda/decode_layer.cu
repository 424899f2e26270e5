// decode_layer: decode tokens of a whole layer, states and windows in place (layer.cuh).
#include "cuda/layer.cuh"

namespace gdn::gpu {

const char* decode_layer(const ConvParams& conv, const GatesParams& gates, const RecurrenceParams& params,
                         const NormParams& norm, const StepLaunch& how, void* stream) {
  return launch_layer<StepMode::decode_layer>(conv, gates, params, norm, how, stream);
}

}  // namespace gdn::gpu
