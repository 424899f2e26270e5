// rec_lanes: the recurrence of a prompt on RDNA (cuda/rec_lanes.cuh) with one or two value columns a lane and short
// stages: two columns share every key and query value that a lane reads, and a short stage leaves local memory for more
// work-groups.
#include "cuda/launch.h"
#include "cuda/rec_launch.cuh"

namespace gdn::gpu {
namespace {

template <int key_dim, int lane_columns, class Element>
struct LanesTraits : RecGeometry<key_dim, 1, lane_columns * policy::kRecLaneColumns, Element, lane_columns,
                                 key_dim == 256 ? 4 : 8> {  // tokens of a stage
};

template <class Tr>
const char* launch_lanes(const RecurrenceParams& params, const RecLaunch& how, void* stream) {
  static_assert(rec_lanes_shared_bytes<Tr> <= policy::kLdsBytes, "two work-groups share a WGP");
  return launch_rec_lanes<Tr>(params, how, stream);
}

template <int key_dim, class Element>
const char* launch_columns(const RecurrenceParams& params, const RecLaunch& how, void* stream) {
  return how.columns == policy::kRecLaneColumns ? launch_lanes<LanesTraits<key_dim, 1, Element>>(params, how, stream)
                                                : launch_lanes<LanesTraits<key_dim, 2, Element>>(params, how, stream);
}

}  // namespace

const char* rec_lanes(const RecurrenceParams& params, const RecLaunch& how, void* stream) {
  return with_element(params.q.dtype, [&](auto element) {
    using Element = decltype(element);
    switch (params.heads.key_dim) {
      case 64: return launch_columns<64, Element>(params, how, stream);
      case 128: return launch_columns<128, Element>(params, how, stream);
      default: return launch_columns<256, Element>(params, how, stream);
    }
  });
}

}  // namespace gdn::gpu
