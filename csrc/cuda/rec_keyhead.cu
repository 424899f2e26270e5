// rec_keyhead: the recurrence with several value heads of one key head a thread (rec_lanes.cuh): a key or query row
// that is read feeds them all. K = 128.
#include "cuda/launch.h"
#include "cuda/rec_launch.cuh"

namespace gdn::gpu {

const char* rec_keyhead(const RecurrenceParams& params, int heads, bool packed_rows, void* stream) {
  return with_element(params.q.dtype, [&](auto element) {
    using Element = decltype(element);
    switch (heads) {
      case 2: return launch_rec<RecTraits<128, 2, 16, Element>>(params, packed_rows, stream);
      case 3: return launch_rec<RecTraits<128, 3, 16, Element>>(params, packed_rows, stream);
      default: return launch_rec<RecTraits<128, 4, 16, Element>>(params, packed_rows, stream);
    }
  });
}

}  // namespace gdn::gpu
