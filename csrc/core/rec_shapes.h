// How rec_columns (one value head a thread) and rec_keyhead (two to four) can be launched, and where a multiprocessor
// has room for the blocks that a shape counts on. Here, so that a decision needs no GPU runtime; rec_launch.cuh
// compares the shared memory with the kernel's own, tests/test_resources.py all of it with the compiler's report.
#pragma once

#include <cstdint>

namespace gdn::policy {

// Value heads a thread, value columns a block, blocks that a multiprocessor holds at once, the K it is built for, and
// what a token then takes there (measured at K = 128: benchmarks/prompt_h200.json, in ns, and for four resident blocks
// the ratio in benchmarks/rec_bands_h200.json; only ratios matter, and K scales them all). A block works on `heads`
// value heads of one key head.
struct RecShape {
  int32_t heads, columns, resident;
  int64_t least_key_dim, most_key_dim;
  double token_ns;
};
inline constexpr RecShape kRecShapes[] = {{1, 8, 1, 128, 128, 137}, {1, 16, 1, 64, 256, 156}, {1, 16, 2, 64, 128, 261},
                                          {2, 16, 1, 64, 256, 196}, {3, 16, 1, 64, 128, 260}, {4, 16, 1, 64, 128, 321}};

// The shared memory of a block.
struct RecBlockShared {
  int32_t heads, columns;
  int64_t key_dim;
  int32_t bytes;
};
inline constexpr RecBlockShared kRecBlockShared[] = {{1, 8, 128, 44032},  {1, 16, 64, 36352}, {1, 16, 128, 53248},
                                                     {1, 16, 256, 44544}, {2, 16, 64, 54784}, {2, 16, 128, 71680},
                                                     {2, 16, 256, 53760}, {3, 16, 64, 73216}, {3, 16, 128, 90112},
                                                     {4, 16, 64, 46080},  {4, 16, 128, 54784}};

// 0: no such instance.
constexpr int32_t rec_shared_bytes(int32_t heads, int32_t columns, int64_t key_dim) {
  for (const RecBlockShared& s : kRecBlockShared) {
    if (s.heads == heads && s.columns == columns && s.key_dim == key_dim) return s.bytes;
  }
  return 0;
}

// The shared memory that a block may opt in to; an architecture that is not listed has that of the nearest older one.
struct OptIn {
  int32_t first_arch;  // of CUDA's numbers
  int64_t bytes;
};
inline constexpr OptIn kOptIn[] = {
    {75, 64 * 1024}, {80, 163 * 1024}, {86, 99 * 1024}, {90, 227 * 1024}, {120, 99 * 1024}};

constexpr int64_t opt_in_bytes(int32_t arch) {
  int64_t bytes = 0;
  for (const OptIn& o : kOptIn) {
    if (arch >= o.first_arch) bytes = o.bytes;
  }
  return bytes;
}

inline constexpr int64_t kLdsBytes = 64 * 1024;  // of a work-group on RDNA

inline constexpr int32_t kRecLaneColumns = 16;  // of a block of rec_lanes for each column of a lane

// Whether a multiprocessor has shared memory for so many blocks at once: the opt-in limit of one block and the driver's
// part of it; each further block brings the driver's part too.
constexpr bool has_room(int64_t blocks, int64_t shared_bytes, int64_t opt_in) {
  constexpr int64_t driver_bytes = 1024;
  return blocks * (shared_bytes + driver_bytes) <= opt_in + driver_bytes;
}

// Whether the shape has an instance for this K, and a multiprocessor room for the blocks that it counts on.
constexpr bool has_room(const RecShape& shape, int64_t key_dim, int64_t opt_in) {
  return key_dim >= shape.least_key_dim && key_dim <= shape.most_key_dim &&
         has_room(shape.resident, rec_shared_bytes(shape.heads, shape.columns, key_dim), opt_in);
}

}  // namespace gdn::policy
