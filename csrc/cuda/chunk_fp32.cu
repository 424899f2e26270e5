// chunk_fp32: a prompt in the chunked (WY) form in float32: what needs no state for a window of chunks
// (chunk_prep.cuh), then the walk through them (chunk_scan.cuh), window after window of the work buffer.
#include <algorithm>
#include <type_traits>

#include "cuda/chunk_prep.cuh"
#include "cuda/chunk_scan.cuh"
#include "cuda/launch.h"

namespace gdn::gpu {
namespace {

template <class Tr>
const char* launch_prep(const ChunkParams& params, void* stream) {
  constexpr int shared_bytes = chunk_prep_shared_bytes<Tr>;
  if (const char* refused = allow_shared_memory(chunk_prep_kernel<Tr>, shared_bytes)) return refused;
  const dim3 grid(static_cast<unsigned>(params.window.count), static_cast<unsigned>(params.p.heads.key_heads));
  return launch_kernel(chunk_prep_kernel<Tr>, {grid, Tr::threads, shared_bytes}, params, stream);
}

template <class Tr>
const char* launch_scan(const ChunkParams& params, void* stream) {
  constexpr int one_stage = chunk_scan_shared_bytes<Tr>, two_stages = one_stage + chunk_scan_stage_bytes<Tr>;
  static_assert(one_stage == chunk::scan_shared_bytes(Tr::K, Tr::block_heads, 1) &&
                    two_stages == chunk::scan_shared_bytes(Tr::K, Tr::block_heads, 2),
                "the registry counts on this much shared memory");
  const int shared_bytes = params.stages == 1 ? one_stage : two_stages;
  const HeadShape& heads = params.p.heads;
  if (const char* refused = allow_all_shared_memory(chunk_scan_kernel<Tr>)) return refused;
  const dim3 grid(static_cast<unsigned>(heads.value_dim / chunk::kBlockColumns),
                  static_cast<unsigned>(heads.value_heads / Tr::block_heads),
                  static_cast<unsigned>(params.p.shape.sequences));
  return launch_kernel(chunk_scan_kernel<Tr>, {grid, Tr::threads, shared_bytes}, params, stream);
}

// f(K) and f(K, heads) as constants.
template <class F>
const char* with_key_dim(int64_t key_dim, F f) {
  switch (key_dim) {
    case 64: return f(std::integral_constant<int, 64>{});
    case 128: return f(std::integral_constant<int, 128>{});
    default: return f(std::integral_constant<int, 256>{});
  }
}
template <class F>
const char* with_scan_shape(int64_t key_dim, int heads, F f) {
  return with_key_dim(key_dim, [&](auto K) {
    if constexpr (decltype(K)::value == 256) {
      return f(K, std::integral_constant<int, 1>{});
    } else {
      switch (heads) {
        case 1: return f(K, std::integral_constant<int, 1>{});
        case 2: return f(K, std::integral_constant<int, 2>{});
        default: return f(K, std::integral_constant<int, 3>{});
      }
    }
  });
}

}  // namespace

const char* chunk_fp32(const RecurrenceParams& params, const ChunkLaunch& how, void* stream) {
  if (params.shape.sequences == 0) return nullptr;
  const chunk::Layout layout = chunk::layout(params.heads);
  const int64_t chunks = chunk::most_chunks(params.shape);
  int64_t first = 0;
  do {  // where there is no chunk, states are still to be written
    const ChunkWindow window = {first, std::min(how.window_chunks, chunks - first), layout, how.work};
    const ChunkParams some = {params, window, how.packed_rows, how.pipelined ? 2 : 1};
    if (window.count > 0) {
      const char* refused = with_key_dim(
          params.heads.key_dim, [&](auto K) { return launch_prep<ChunkPrepTraits<decltype(K)::value>>(some, stream); });
      if (refused != nullptr) return refused;
    }
    const char* refused = with_scan_shape(params.heads.key_dim, how.heads, [&](auto K, auto heads) {
      using Traits = ChunkScanTraits<decltype(K)::value, decltype(heads)::value>;
      return launch_scan<Traits>(some, stream);
    });
    if (refused != nullptr) return refused;
    first += how.window_chunks;
  } while (first < chunks);
  return nullptr;
}

}  // namespace gdn::gpu
