// What gdn_rec_parity is made of, on any machine: that its comparisons find what they are there to find, its CPU side
// is the recurrence, its bands follow from the times, and wrong options are named.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/half.h"
#include "gdn_rec_parity/configurations.h"
#include "gdn_rec_parity/options.h"
#include "gdn_rec_parity/problem.h"
#include "gdn_rec_parity/timing.h"

namespace {

using namespace gdn::rec_parity;
using gdn::DType;

int checks = 0, failures = 0;

void require(bool holds, const std::string& what) {
  ++checks;
  if (holds) return;
  ++failures;
  std::printf("FAILED %s\n", what.c_str());
}

void test_bits() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> expected = {1.0f, -0.0f, nan, 4.0f};
  std::vector<float> actual = expected;
  actual[2] = -nan;
  const auto difference = [&] { return difference_in_bits(actual.data(), expected.data(), 4, DType::f32); };
  require(difference().count == 0, "a NaN equals any NaN");
  actual[1] = 0.0f;
  require(difference().count == 1 && difference().first == 1, "a zero of the other sign");
  actual[2] = 0.0f;
  actual[3] = std::nextafter(4.0f, 5.0f);
  require(difference().count == 3 && difference().first == 1, "a missing NaN and one bit");

  const uint16_t one = 0x3f80, next = 0x3f81, quiet = 0x7fc0, other = 0xffff;
  require(difference_in_bits(&one, &next, 1, DType::bf16).count == 1, "one bit of a bfloat16");
  require(difference_in_bits(&quiet, &other, 1, DType::bf16).count == 0, "two NaN of bfloat16");
  require(difference_in_bits(&quiet, &one, 1, DType::bf16).count == 1, "a NaN for a number");
}

Shape shape_of(int64_t tokens, DType dtype, bool value_major, gdn::HeadMap head_map, int64_t gap) {
  Shape shape;
  shape.tokens = tokens;
  shape.heads = {2, 6, 128, 64, head_map};
  shape.dtype = dtype;
  shape.value_major = value_major;
  shape.gap = gap;
  return shape;
}

void test_against_float64(const Shape& shape, double largest) {
  const Inputs inputs(shape);
  Outputs outputs = on_the_cpu(shape, inputs);
  const Exact exact = in_float64(shape, inputs);
  constexpr double kStateBound = 1e-6;
  require(output_distance(shape, outputs.o, exact).largest < largest, shape.name() + ": the output");
  require(state_distance(shape, outputs.state, exact).largest < kStateBound, shape.name() + ": the state");

  const int64_t wrong = 5 * 128 * 64 + 70;
  outputs.state[wrong] += 1.0f;
  const Distance found = state_distance(shape, outputs.state, exact);
  const int64_t last = shape.value_major ? 128 : 64;
  require(found.largest > kStateBound && found.at == std::vector<int64_t>{5, 70 / last, 70 % last},
          shape.name() + ": a wrong state is found where it is");
  outputs.state[wrong] = std::numeric_limits<float>::quiet_NaN();
  require(std::isinf(state_distance(shape, outputs.state, exact).largest), shape.name() + ": a NaN is infinitely far");
  if (shape.gap > 0) {
    const size_t after_row = static_cast<size_t>(shape.output_row() - 1) * bytes_of(shape.dtype);
    require(outputs.o[after_row] == kPoison, shape.name() + ": what is between rows is left alone");
  }
}

// Times of two configurations on 8, 6 and 4 multiprocessors: the first wins on the most and on the fewest.
void test_bands() {
  Shape shape = shape_of(10, DType::bf16, false, gdn::HeadMap::grouped, 0);
  std::vector<Timing> timings;
  const struct {
    int sms;
    double first, second;
  } rows[] = {{8, 10, 15}, {7, 10, 12}, {6, 20, 16}, {4, 30, 33}};
  for (const auto& row : rows) {
    timings.push_back({shape, row.sms, kConfigurations[0], {row.first, row.first + 1, 0.0}, false});
    timings.push_back({shape, row.sms, kConfigurations[2], {row.second}, false});
  }
  require(timings[0].median() == 10.0 && timings[0].a_token() == 1.0, "the median of three");
  timings[0].microseconds = {4.0, 1.0, 3.0, 2.0};
  require(timings[0].median() == 2.5, "the median of four");
  timings[0].microseconds = {10.0};
  const std::vector<Band> bands = bands_of(timings);
  require(bands.size() == 3, "three bands");
  require(bands[0].most_sms == 8 && bands[0].fewest_sms == 7 && bands[0].fastest == "rec_columns/8" &&
              bands[0].least_lead == 1.2 && bands[0].most_lead == 1.5,
          "the first band");
  require(bands[1].most_sms == 6 && bands[1].fewest_sms == 6 && bands[1].fastest == "rec_keyhead/2" &&
              bands[1].least_lead == 1.25,
          "the second band");
  require(bands[2].fewest_sms == 4 && bands[2].fastest == "rec_columns/8", "the third band");
}

void test_what_serves() {
  const auto names = [](int64_t H, int64_t HV, int64_t K, const std::vector<std::string>& kernels) {
    std::string text;
    for (const Configuration& c : serving({H, HV, K, 128, gdn::HeadMap::grouped}, kernels)) text += c.name() + " ";
    return text;
  };
  require(names(16, 48, 128, {}) == "rec_columns/8 rec_columns/16 rec_keyhead/3 ", "three value heads a key head");
  require(names(2, 16, 128, {"rec_keyhead"}) == "rec_keyhead/2 rec_keyhead/4 ", "eight, one kernel");
  require(names(4, 4, 128, {"rec_keyhead"}).empty(), "one value head a key head");
}

void test_options() {
  const auto parsed = [](std::vector<const char*> words) {
    words.insert(words.begin(), "/somewhere/gdn_rec_parity");
    return parse(static_cast<int>(words.size()), words.data());
  };
  const Options options = parsed({"--bench", "--tokens", "128", "2048", "--heads", "16,48", "--dtype", "f16", "--sms",
                                  "--kernel", "rec_keyhead", "--json", "/somewhere/bands.json"});
  require(options.bench && options.fewer_sms && options.sms.empty(), "flags");
  require(options.tokens == std::vector<int64_t>{128, 2048} && options.heads == std::vector<Pair>{{16, 48}}, "lists");
  require(options.dtypes == std::vector<DType>{DType::f16} && options.json == "/somewhere/bands.json", "one value");
  require(options.command.front() == "gdn_rec_parity" && options.command.back() == "bands.json",
          "a record's command names no folder");
  const struct {
    std::vector<const char*> words;
    const char* message;
  } wrong[] = {
      {{"--foo"}, "unknown option '--foo'; --help lists them"},
      {{"--tokens"}, "--tokens needs a value"},
      {{"--tokens", "0"}, "--tokens: expected a number of at least 1; got '0'"},
      {{"--heads", "2,3"}, "--heads: expected H,HV with HV a multiple of H; got '2,3'"},
      {{"--dims", "128"}, "--dims: expected two numbers such as 16,48; got '128'"},
      {{"--dims", "128,96"}, "--dims: expected K,V of 64, 128 or 256 each; got '128,96'"},
      {{"--dtype", "f8"}, "--dtype: expected f32, bf16 or f16; got 'f8'"},
      {{"--kernel", "foo"}, "--kernel: expected rec_columns or rec_keyhead; got 'foo'"},
      {{"--sms", "32"}, "--sms and --json need --bench"},
      {{"--bench", "16"}, "unknown option '16'; --help lists them"},
  };
  for (const auto& [words, message] : wrong) {
    std::string got = "nothing";
    try {
      parsed(words);
    } catch (const std::invalid_argument& error) {
      got = error.what();
    }
    require(got == message, std::string("'") + message + "'; got '" + got + "'");
    require(usage().find(words[0]) != std::string::npos || words[0] == std::string("--foo"), "the usage has it");
  }
}

}  // namespace

int main() {
  test_bits();
  test_against_float64(shape_of(33, DType::f32, false, gdn::HeadMap::grouped, 0), 1e-6);
  test_against_float64(shape_of(17, DType::f32, true, gdn::HeadMap::tiled, 3), 1e-6);
  test_against_float64(shape_of(9, DType::bf16, false, gdn::HeadMap::tiled, 3), 5e-3);
  test_against_float64(shape_of(5, DType::f16, true, gdn::HeadMap::grouped, 0), 1e-3);
  test_bands();
  test_what_serves();
  test_options();
  std::printf("%d checks, %d failures\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
