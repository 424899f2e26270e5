// rec_keyhead: the recurrence with several value heads of one key head a thread (rec_lanes.cuh): a key or query row
// that is read feeds them all. K = 256: two heads, more do not fit a thread's registers.
#include "cuda/launch.h"
#include "cuda/rec_launch.cuh"

namespace gdn::gpu {
namespace {

template <int key_dim, class Element>
const char* launch_heads(const RecurrenceParams& params, const RecLaunch& how, void* stream) {
  switch (how.heads) {
    case 2: return launch_rec<RecTraits<key_dim, 2, 16, Element>>(params, how, stream);
    case 3: return launch_rec<RecTraits<key_dim, 3, 16, Element>>(params, how, stream);
    default: return launch_rec<RecTraits<key_dim, 4, 16, Element>>(params, how, stream);
  }
}

}  // namespace

const char* rec_keyhead(const RecurrenceParams& params, const RecLaunch& how, void* stream) {
  return with_element(params.q.dtype, [&](auto element) {
    using Element = decltype(element);
    switch (params.heads.key_dim) {
      case 64: return launch_heads<64, Element>(params, how, stream);
      case 128: return launch_heads<128, Element>(params, how, stream);
      default: return launch_rec<RecTraits<256, 2, 16, Element>>(params, how, stream);
    }
  });
}

}  // namespace gdn::gpu
