// Launches an instance of rec_lanes.cuh.
#pragma once

#include "cuda/launch.h"
#include "cuda/rec_lanes.cuh"

#include "core/rec_shapes.h"

namespace gdn::gpu {

// f(Element{}) for the dtype's element type.
template <class F>
const char* with_element(DType dtype, F f) {
  switch (dtype) {
    case DType::bf16: return f(bf16{});
    case DType::f16: return f(f16{});
    default: return f(float{});
  }
}

template <class Tr>
const char* launch_rec_lanes(const RecurrenceParams& p, const RecLaunch& how, void* stream) {
  constexpr int shared_bytes = rec_lanes_shared_bytes<Tr>;
  const int64_t subgroups = p.heads.value_heads / p.heads.key_heads / Tr::heads;
  const dim3 grid(static_cast<unsigned>(p.heads.value_dim / Tr::columns),
                  static_cast<unsigned>(p.heads.key_heads * subgroups), static_cast<unsigned>(p.shape.sequences));
  if (p.shape.sequences == 0) return nullptr;
  if (const char* refused = allow_shared_memory(rec_lanes_kernel<Tr>, shared_bytes)) return refused;
  rec_lanes_kernel<Tr>
      <<<grid, Tr::threads, shared_bytes, static_cast<Stream>(stream)>>>(p, how.packed_rows, how.pipelined);
  return launch_error();
}

// rec_columns and rec_keyhead.
template <class Tr>
const char* launch_rec(const RecurrenceParams& p, const RecLaunch& how, void* stream) {
  static_assert(rec_lanes_shared_bytes<Tr> == policy::rec_shared_bytes(Tr::heads, Tr::columns, Tr::K),
                "the registry counts on this much shared memory");
  return launch_rec_lanes<Tr>(p, how, stream);
}

}  // namespace gdn::gpu
