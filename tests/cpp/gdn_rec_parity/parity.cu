#include "parity.h"

#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

#include "configurations.h"
#include "device_prompt.h"
#include "problem.h"
#include "runtime.h"

namespace gdn::rec_parity {
namespace {

constexpr int64_t kTokens[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 257, 1000, 4099};
constexpr int64_t kShortTokens = 64;
const std::vector<Pair> kHeads = {{3, 3}, {2, 4}, {2, 6}, {2, 8}, {1, 8}}, kLongHeads = {{1, 2}, {1, 3}};
const std::vector<Pair> kDims = {{128, 128}, {64, 128}, {128, 64}, {256, 64}, {128, 256}, {64, 64}},
                        kLongDims = {{128, 64}, {128, 128}};
const std::vector<DType> kDTypes = {DType::f32, DType::bf16, DType::f16};
constexpr int64_t kGap = 3;  // elements after a row, so that rows start anywhere

// What was asked for, or, in turn, one of what there is.
template <class T>
std::vector<T> choices(const std::vector<T>& given, const std::vector<T>& all, size_t turn) {
  return given.empty() ? std::vector<T>{all[turn % all.size()]} : given;
}

// Every length with all numbers of value heads a key head where it is short; what was not asked for takes turns.
std::vector<Shape> shapes(const Options& options) {
  std::vector<Shape> table;
  const std::vector<int64_t> lengths =
      options.tokens.empty() ? std::vector<int64_t>(std::begin(kTokens), std::end(kTokens)) : options.tokens;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const bool is_short = lengths[i] <= kShortTokens;
    const std::vector<Pair>& heads = !options.heads.empty() ? options.heads : is_short ? kHeads : kLongHeads;
    for (size_t j = 0; j < heads.size(); ++j) {
      const size_t turn = i + j;
      for (const auto& [K, V] : choices(options.dims, is_short ? kDims : kLongDims, turn)) {
        for (const DType dtype : choices(options.dtypes, kDTypes, i / 3 + j)) {
          Shape shape;
          shape.tokens = lengths[i];
          shape.heads = {heads[j].first, heads[j].second, K, V, turn / 2 % 2 == 0 ? HeadMap::grouped : HeadMap::tiled};
          shape.dtype = dtype;
          shape.value_major = turn % 2 == 1;
          shape.gap = turn % 3 == 2 ? kGap : 0;
          table.push_back(shape);
        }
      }
    }
  }
  return table;
}

std::string text(const Distance& distance) {
  std::string coordinate;
  for (const int64_t i : distance.at) coordinate += (coordinate.empty() ? "" : ",") + std::to_string(i);
  char number[32];
  std::snprintf(number, sizeof number, "%.1e", distance.largest);
  return std::string(number) + " at " + coordinate;
}

void compare(Counts& counts, const std::string& what, const void* actual, const void* expected, int64_t elements,
             DType dtype) {
  ++counts.checks;
  const Difference found = difference_in_bits(actual, expected, elements, dtype);
  if (found.count == 0) return;
  ++counts.failures;
  std::printf("FAILED %s: %lld of %lld elements differ from the CPU's, the first is %lld\n", what.c_str(),
              static_cast<long long>(found.count), static_cast<long long>(elements),
              static_cast<long long>(found.first));
}

}  // namespace

void compare(Counts& counts, const std::string& what, const Shape& shape, const Outputs& actual,
             const Outputs& expected) {
  const int64_t elements = shape.tokens * shape.output_row();
  compare(counts, what + ", o", actual.o.data(), expected.o.data(), elements, shape.dtype);
  compare(counts, what + ", state", actual.state.data(), expected.state.data(), shape.states(), DType::f32);
}

Counts parity(const Options& options) {
  const Stream stream;
  Counts counts;
  std::printf("%-52s %-14s  largest difference from float64 over the largest value\n", "prompt", "kernel");
  for (const Shape& shape : shapes(options)) {
    const std::vector<Configuration> configurations = serving(shape.heads, options.kernels);
    if (configurations.empty()) continue;
    const DevicePrompt prompt(shape);
    const Outputs expected = on_the_cpu(shape, prompt.inputs());
    const Exact exact = in_float64(shape, prompt.inputs());
    for (const Configuration& configuration : configurations) {
      const Outputs actual = prompt.run(configuration, shape.tokens, stream);
      std::printf("%-52s %-14s  o %-22s  state %s\n", shape.name().c_str(), configuration.name().c_str(),
                  text(output_distance(shape, actual.o, exact)).c_str(),
                  text(state_distance(shape, actual.state, exact)).c_str());
      compare(counts, shape.name() + ", " + configuration.name(), shape, actual, expected);
    }
  }
  return counts;
}

}  // namespace gdn::rec_parity
