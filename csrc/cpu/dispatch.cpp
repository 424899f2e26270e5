// The CPU launchers: count the work units, hand each worker its scratch, run the instruction set's kernels.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "cpu/cpu.h"
#include "cpu/float_environment.h"
#include "cpu/kernels.h"

namespace gdn::cpu {
namespace {

const Kernels& kernels_of(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::avx512: return kernels_avx512;
    case Isa::avx2: return kernels_avx2;
    case Isa::baseline: break;
  }
#else
  (void)isa;
#endif
  return kernels_baseline;
}

// `parallel` with the float environment of the exact order in each worker.
template <class Body>
void run(const Parallel& parallel, int64_t count, int64_t grain, const Body& body) {
  parallel(count, grain, [&](int64_t begin, int64_t end) {
    const FloatEnvironment exact;
    body(begin, end);
  });
}

constexpr std::align_val_t kCacheLine{64};

// A worker's uninitialised scratch memory, on cache line boundaries.
struct Scratch {
  struct Free {
    void operator()(float* p) const { ::operator delete[](p, kCacheLine); }
  };
  std::unique_ptr<float[], Free> data;

  explicit Scratch(int64_t floats) : data(new (kCacheLine) float[static_cast<size_t>(floats)]) {}
};

// Asks the system for huge pages where [data, data + bytes) holds whole ones: a prompt's output is fresh memory, and
// with small pages a good part of the time goes into faults. Only a hint: where the system has none to give, nothing
// changes.
void prefer_huge_pages(void* data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes)) / kHugePage * kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data;
  (void)bytes;
#endif
}

// Row bounds of the packed sequences, each clamped into [the one before, T]; empty without cu_seqlens.
std::vector<int64_t> clamped_bounds(const SequenceShape& shape) {
  std::vector<int64_t> bounds;
  if (!shape.cu_seqlens) return bounds;
  int64_t previous = 0;
  for (int64_t n = 0; n <= shape.sequences; ++n) {
    const int64_t offset = n * shape.cu_seqlens.stride[0];
    const int64_t bound = shape.cu_seqlens.is_int64 ? static_cast<const int64_t*>(shape.cu_seqlens.data)[offset]
                                                    : static_cast<const int32_t*>(shape.cu_seqlens.data)[offset];
    previous = std::clamp(bound, previous, shape.tokens);
    bounds.push_back(previous);
  }
  return bounds;
}

Rows rows_of(const SequenceShape& shape, const std::vector<int64_t>& bounds) {
  return {bounds.empty() ? nullptr : bounds.data(), shape.tokens};
}

size_t bytes_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

// Packed rows that no sequence covers are zero. `row` zeroes one.
template <class ZeroRow>
void zero_uncovered(const std::vector<int64_t>& bounds, int64_t tokens, ZeroRow row) {
  if (bounds.empty()) return;
  for (int64_t t = 0; t < bounds.front(); ++t) row(t);
  for (int64_t t = bounds.back(); t < tokens; ++t) row(t);
}

void zero_elements(void* data, DType dtype, int64_t offset, int64_t n) {
  const size_t bytes = bytes_of(dtype);
  std::fill_n(static_cast<char*>(data) + offset * static_cast<int64_t>(bytes), static_cast<size_t>(n) * bytes, '\0');
}

// From the first byte of a [size0, size1, size2, size3] tensor to its last one.
int64_t extent_bytes(const OutView<4>& view, const int64_t (&size)[4]) {
  int64_t last = 0;
  for (int i = 0; i < 4; ++i) {
    if (size[i] == 0) return 0;
    last += (size[i] - 1) * view.stride[i];
  }
  return (last + 1) * static_cast<int64_t>(bytes_of(view.dtype));
}

void recurrence(const RecurrenceParams& params, const CommitParams* commit, Isa isa, const Parallel& parallel) {
  const Kernels& kernels = kernels_of(isa);
  const HeadShape& heads = params.heads;
  const std::vector<int64_t> bounds = clamped_bounds(params.shape);
  const Rows rows = rows_of(params.shape, bounds);
  const int64_t tiles = heads.value_heads * (heads.value_dim / kernels.columns), sequences = params.shape.sequences;
  const int64_t most = unit_tiles(heads.key_dim, kernels.columns), fewest_parts = (tiles + most - 1) / most;
  // A multiple of this many parts gives every thread as many units as the next one.
  const int64_t even = parallel.threads / std::gcd(parallel.threads, std::max<int64_t>(1, sequences));
  const int64_t parts = std::min(tiles, (fewest_parts + even - 1) / even * even);
  const int64_t scratch_floats = RecurrenceLayout(params, kernels.columns, (tiles + parts - 1) / parts).floats;
  const int64_t batches = bounds.empty() ? sequences : 1;
  prefer_huge_pages(params.o.data,
                    extent_bytes(params.o, {batches, params.shape.tokens, heads.value_heads, heads.value_dim}));
  run(parallel, sequences * parts, 1, [&](int64_t begin, int64_t end) {
    const Scratch scratch(scratch_floats);
    kernels.recurrence({&params, rows, commit, parts, scratch.data.get()}, begin, end);
  });
  zero_uncovered(bounds, params.shape.tokens, [&](int64_t t) {
    for (int64_t h = 0; h < heads.value_heads; ++h) {
      zero_elements(params.o.data, params.o.dtype, t * params.o.stride[1] + h * params.o.stride[2], heads.value_dim);
    }
  });
}

int64_t row_count(const int64_t (&size)[3]) { return size[0] * size[1] * size[2]; }

// Rows of a pointwise op are short: a thread is worth starting for a few thousand elements.
int64_t grain_of(int64_t elements) { return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, elements)); }

}  // namespace

void rec_cpu(const RecurrenceParams& params, Isa isa, const Parallel& parallel) {
  recurrence(params, nullptr, isa, parallel);
}

void verify_cpu(const RecurrenceParams& params, Isa isa, const Parallel& parallel) {
  recurrence(params, nullptr, isa, parallel);
}

void commit_verify_cpu(const CommitParams& commit, const RecurrenceParams& verify, Isa isa, const Parallel& parallel) {
  recurrence(verify, &commit, isa, parallel);
}

void commit_cpu(const CommitParams& params, Isa isa, const Parallel& parallel) {
  const Kernels& kernels = kernels_of(isa);
  const HeadShape& heads = params.heads;
  const int64_t units =
      params.num_layers * params.window.sequences * heads.value_heads * (heads.value_dim / kernels.columns);
  run(parallel, units, 1, [&](int64_t begin, int64_t end) {
    const Scratch scratch(heads.key_dim * kernels.columns);
    kernels.commit(params, scratch.data.get(), begin, end);
  });
}

void conv_cpu(const ConvParams& params, Isa isa, const Parallel& parallel) {
  const Kernels& kernels = kernels_of(isa);
  const std::vector<int64_t> bounds = clamped_bounds(params.shape);
  const Rows rows = rows_of(params.shape, bounds);
  const int64_t blocks = (params.channels + kConvChannels - 1) / kConvChannels;
  const int64_t scratch_floats =
      conv_scratch_floats(params.width, params.parents ? params.shape.tokens : kConvStageTokens);
  run(parallel, params.shape.sequences * blocks, 1, [&](int64_t begin, int64_t end) {
    const Scratch scratch(scratch_floats);
    kernels.conv(params, rows, scratch.data.get(), begin, end);
  });
  zero_uncovered(bounds, params.shape.tokens, [&](int64_t t) {
    zero_elements(params.y.data, params.y.dtype, t * params.y.stride[1], params.channels);
  });
}

void conv_commit_cpu(const ConvCommitParams& params, Isa isa, const Parallel& parallel) {
  const int64_t blocks = (params.channels + kConvChannels - 1) / kConvChannels;
  run(parallel, params.num_layers * params.accepted.sequences * blocks, 16,
      [&](int64_t begin, int64_t end) { kernels_of(isa).conv_commit(params, begin, end); });
}

void l2norm_cpu(const L2NormParams& params, Isa isa, const Parallel& parallel) {
  run(parallel, row_count(params.size), grain_of(params.n),
      [&](int64_t begin, int64_t end) { kernels_of(isa).l2norm(params, begin, end); });
}

void gates_cpu(const GatesParams& params, Isa isa, const Parallel& parallel) {
  run(parallel, row_count(params.size), grain_of(params.value_heads),
      [&](int64_t begin, int64_t end) { kernels_of(isa).gates(params, begin, end); });
}

void norm_cpu(const NormParams& params, Isa isa, const Parallel& parallel) {
  run(parallel, row_count(params.size), grain_of(params.n),
      [&](int64_t begin, int64_t end) { kernels_of(isa).norm(params, begin, end); });
}

}  // namespace gdn::cpu
