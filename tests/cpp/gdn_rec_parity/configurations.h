// How the recurrence can be launched on a GPU: the one table of what serves what.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/params.h"
#include "cuda/launch.h"

namespace gdn::rec_parity {

struct Configuration {
  const char* kernel;
  int heads;                        // value heads a thread
  int columns;                      // value columns a block
  std::array<int64_t, 3> key_dims;  // K; 0: none

  bool serves(const HeadShape& shape) const {
    const bool has_dim = std::find(key_dims.begin(), key_dims.end(), shape.key_dim) != key_dims.end();
    return has_dim && shape.value_heads / shape.key_heads % heads == 0;
  }
  // "rec_columns/8", "rec_keyhead/3": the number in which a kernel's configurations differ.
  std::string name() const { return std::string(kernel) + "/" + std::to_string(heads > 1 ? heads : columns); }
  const char* launch(const RecurrenceParams& params, bool packed_rows, void* stream) const {
    const gpu::RecLaunch how = {heads, columns, packed_rows, true};
    return heads > 1 ? gpu::rec_keyhead(params, how, stream) : gpu::rec_columns(params, how, stream);
  }
};

constexpr Configuration kConfigurations[] = {
    {"rec_columns", 1, 8, {128}},      {"rec_columns", 1, 16, {64, 128, 256}}, {"rec_keyhead", 2, 16, {64, 128, 256}},
    {"rec_keyhead", 3, 16, {64, 128}}, {"rec_keyhead", 4, 16, {64, 128}},
};

// Those of the wanted kernels (all if none is named) that can serve a shape.
inline std::vector<Configuration> serving(const HeadShape& shape, const std::vector<std::string>& kernels) {
  std::vector<Configuration> found;
  for (const Configuration& c : kConfigurations) {
    const bool wanted = kernels.empty() || std::find(kernels.begin(), kernels.end(), c.kernel) != kernels.end();
    if (wanted && c.serves(shape)) found.push_back(c);
  }
  return found;
}

}  // namespace gdn::rec_parity
