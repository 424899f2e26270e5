// rec_columns: the recurrence with one value head a thread (rec_lanes.cuh), for every architecture, K and head count.
#include "cuda/launch.h"
#include "cuda/rec_launch.cuh"

namespace gdn::gpu {

const char* rec_columns(const RecurrenceParams& params, const RecLaunch& how, void* stream) {
  return with_element(params.q.dtype, [&](auto element) {
    using Element = decltype(element);
    switch (params.heads.key_dim) {
      case 64: return launch_rec<RecTraits<64, 1, 16, Element>>(params, how, stream);
      case 128:
        return how.columns == 8 ? launch_rec<RecTraits<128, 1, 8, Element>>(params, how, stream)
                                : launch_rec<RecTraits<128, 1, 16, Element>>(params, how, stream);
      default: return launch_rec<RecTraits<256, 1, 16, Element>>(params, how, stream);
    }
  });
}

}  // namespace gdn::gpu
