// Which chunks there are, and in which order they lie in chunk_fp32's work buffer, a window of that order at a time.
// Sequences of a padded batch advance together: chunk j of sequence n is number j N + n. Packed sequences
// (cu_seqlens) follow each other. No chunk crosses a sequence.
#pragma once

#include "core/chunk_shapes.h"
#include "cuda/indices.cuh"

namespace gdn::gpu {

struct ChunkWindow {
  int64_t first, count;  // numbers [first, first + count)
  chunk::Layout layout;
  float* work;  // layout.floats a chunk
};

struct ChunkParams {
  RecurrenceParams p;
  ChunkWindow window;
  bool packed_rows;  // every row of q, k and v starts on a 16-byte boundary
  int stages;        // of the scan: 1, or 2, where the next chunk is copied while one is computed
};

// The chunks of one sequence: number `first` + j `step` for j in [0, count).
struct SequenceChunks {
  SequenceRows rows;
  int64_t first, step, count;

  __device__ int64_t number(int64_t j) const { return first + j * step; }
  // The first j whose number is not below `bound`.
  __device__ int64_t not_below(int64_t bound) const {
    const int64_t j = bound <= first ? 0 : (bound - first + step - 1) / step;
    return j < count ? j : count;
  }
};

__device__ __forceinline__ int64_t chunks_of(int64_t tokens) { return (tokens + chunk::kTokens - 1) / chunk::kTokens; }

// Walks over packed sequences until stop(n, chunks) is true for one: that sequence, in every lane. Called by whole
// warps; 32 bounds at a time.
template <class Stop>
__device__ __forceinline__ bool find_packed(const SequenceShape& shape, Stop stop, int64_t* n, SequenceChunks* found) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int64_t end_before = 0, chunks_before = 0;
  for (int64_t base = 0; base < shape.sequences; base += kWarp) {
    const int64_t i = base + lane;
    const bool exists = i < shape.sequences;
    if (base == 0) end_before = bound_at(shape, 0);
    int64_t end = exists ? bound_at(shape, i + 1) : 0;
    for (int distance = 1; distance < kWarp; distance *= 2) {  // the largest bound so far
      const int64_t other = shuffle(end, lane >= distance ? lane - distance : lane);
      end = other > end ? other : end;
    }
    end = end > end_before ? end : end_before;
    const int64_t left = shuffle(end, lane > 0 ? lane - 1 : 0);
    const int64_t begin = lane > 0 ? left : end_before;
    const int64_t mine = exists ? chunks_of(end - begin) : 0;
    int64_t sum = mine;
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int64_t other = shuffle(sum, lane >= distance ? lane - distance : lane);
      sum += lane >= distance ? other : 0;
    }
    const SequenceChunks chunks = {{0, begin, end - begin}, chunks_before + sum - mine, 1, mine};
    const uint32_t stops = __ballot_sync(0xffffffffu, exists && stop(i, chunks));
    if (stops != 0) {
      const int at = lowest_bit(stops);
      *n = base + at;
      *found = {{0, shuffle(chunks.rows.first, at), shuffle(chunks.rows.count, at)},
                shuffle(chunks.first, at),
                1,
                shuffle(chunks.count, at)};
      return true;
    }
    end_before = shuffle(end, kWarp - 1);
    chunks_before += shuffle(sum, kWarp - 1);
  }
  return false;
}

__device__ __forceinline__ SequenceChunks chunks_of_sequence(const SequenceShape& shape, int64_t wanted) {
  if (shape.cu_seqlens.data == nullptr) {
    return {{wanted, 0, shape.tokens}, wanted, shape.sequences, chunks_of(shape.tokens)};
  }
  SequenceChunks found = {};
  int64_t n;
  find_packed(shape, [&](int64_t i, const SequenceChunks&) { return i == wanted; }, &n, &found);
  return found;
}

// A chunk's first row and its rows: 1 to chunk::kTokens, or 0 where there is no chunk of that number.
__device__ __forceinline__ SequenceRows rows_of_chunk(const SequenceShape& shape, int64_t number) {
  int64_t n = 0;
  SequenceChunks found = {};
  if (shape.cu_seqlens.data == nullptr) {
    n = number % shape.sequences;
    found = chunks_of_sequence(shape, n);
    if (number / shape.sequences >= found.count) return {0, 0, 0};
  } else if (!find_packed(
                 shape,
                 [&](int64_t, const SequenceChunks& c) { return number >= c.first && number < c.first + c.count; }, &n,
                 &found)) {
    return {0, 0, 0};
  }
  const int64_t before = (number - found.first) / found.step * chunk::kTokens;
  const int64_t left = found.rows.count - before;
  return {found.rows.batch, found.rows.first + before, left < chunk::kTokens ? left : chunk::kTokens};
}

}  // namespace gdn::gpu
