#include "bench.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

#include "configurations.h"
#include "core/policy.h"
#include "cuda/device.h"
#include "device_prompt.h"
#include "problem.h"
#include "runtime.h"
#include "sm_holder.h"
#include "timing.h"

namespace gdn::rec_parity {
namespace {

constexpr int kSamples = 30;
constexpr size_t kFlushBytes = size_t{256} << 20;  // more than any second-level cache
constexpr double kMicrosecondsAMillisecond = 1e3;
constexpr int64_t kTokens[] = {128, 512, 2048, 8192, 32768};
constexpr int64_t kTokensOnFewerSms = 2048;
constexpr int64_t kFewestSms = 32, kSmsStep = 8;
const std::vector<Pair> kLayers = {{16, 48}, {16, 32}, {2, 8}, {16, 16}};
const std::vector<Pair> kDims = {{128, 128}};
const std::vector<DType> kDTypes = {DType::bf16};

template <class T>
const std::vector<T>& given(const std::vector<T>& asked, const std::vector<T>& otherwise) {
  return asked.empty() ? otherwise : asked;
}

std::vector<Shape> layers(const Options& options, int64_t tokens) {
  std::vector<Shape> shapes;
  for (const auto& [H, HV] : given(options.heads, kLayers)) {
    for (const auto& [K, V] : given(options.dims, kDims)) {
      for (const DType dtype : given(options.dtypes, kDTypes)) {
        Shape shape;
        shape.tokens = tokens;
        shape.heads = {H, HV, K, V, HeadMap::grouped};
        shape.dtype = dtype;
        if (!serving(shape.heads, options.kernels).empty()) shapes.push_back(shape);
      }
    }
  }
  return shapes;
}

Card this_card() {
  int index = 0;
  check(cudaGetDevice(&index), "cudaGetDevice");
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  const gpu::Properties found = gpu::device_properties(index);
  return {properties.name, found.arch, found.multiprocessors};
}

bool chosen(const Shape& shape, const Configuration& configuration, const std::string& arch, int sms) {
  policy::Request request;
  request.tokens = shape.tokens;
  request.key_heads = shape.heads.key_heads;
  request.value_heads = shape.heads.value_heads;
  request.key_dim = shape.heads.key_dim;
  request.value_dim = shape.heads.value_dim;
  request.dtype = shape.dtype;
  policy::Device device;
  device.arch = arch;
  device.sms = sms;
  const policy::Decision decision = policy::decide(request, device, {});
  return decision.kernel == configuration.kernel && decision.heads == configuration.heads &&
         decision.columns == configuration.columns;
}

// A shape with its configurations, ready to be timed: whatever may wait for the device has happened.
class Contest {
 public:
  Contest(const DevicePrompt& prompt, int64_t tokens, const Options& options, const Stream& stream)
      : shape_(prompt.shape()), configurations_(serving(prompt.shape().heads, options.kernels)) {
    shape_.tokens = tokens;
    for (const Configuration& configuration : configurations_) {
      graphs_.emplace_back(stream, [&] { prompt.launch(configuration, tokens, stream); });
      graphs_.back().replay(stream);
    }
    stream.wait();
  }

  // kSamples of each in turn, each after the second-level cache was overwritten.
  std::vector<Timing> timings(const Card& card, int sms, const Stream& stream, const DeviceBuffer& flush) const {
    std::vector<Timing> all;
    for (const Configuration& configuration : configurations_) {
      all.push_back({shape_, sms, configuration, {}, chosen(shape_, configuration, card.arch, sms)});
    }
    for (int sample = 0; sample < kSamples; ++sample) {
      for (size_t i = 0; i < graphs_.size(); ++i) {
        check(cudaMemsetAsync(flush.as<void>(), 0, flush.bytes(), stream), "cudaMemsetAsync");
        start_.record(stream);
        graphs_[i].replay(stream);
        stop_.record(stream);
        stop_.wait();
        all[i].microseconds.push_back(stop_.milliseconds_since(start_) * kMicrosecondsAMillisecond);
      }
    }
    return all;
  }

 private:
  Shape shape_;
  std::vector<Configuration> configurations_;
  std::vector<Graph> graphs_;
  Event start_, stop_;
};

void compare_with_the_cpu(const DevicePrompt& prompt, int64_t tokens, const Options& options, const Stream& stream,
                          Counts& counts) {
  Shape shape = prompt.shape();
  shape.tokens = tokens;
  const Outputs expected = on_the_cpu(shape, prompt.inputs());
  for (const Configuration& configuration : serving(shape.heads, options.kernels)) {
    compare(counts, shape.name() + ", " + configuration.name(), shape, prompt.run(configuration, tokens, stream),
            expected);
  }
}

void append(std::vector<Timing>& all, std::vector<Timing> more) {
  std::move(more.begin(), more.end(), std::back_inserter(all));
}

Measured on_the_whole_card(const Options& options, Counts& counts) {
  const std::vector<int64_t> lengths =
      given(options.tokens, std::vector<int64_t>(std::begin(kTokens), std::end(kTokens)));
  const auto [shortest, longest] = std::minmax_element(lengths.begin(), lengths.end());
  Measured measured{this_card(), {}, {}};
  const Stream stream;
  const DeviceBuffer flush(kFlushBytes);
  for (const Shape& shape : layers(options, *longest)) {
    const DevicePrompt prompt(shape);
    compare_with_the_cpu(prompt, *shortest, options, stream, counts);
    for (const int64_t tokens : lengths) {
      const Contest contest(prompt, tokens, options, stream);
      append(measured.timings, contest.timings(measured.card, measured.card.sms, stream, flush));
    }
  }
  return measured;
}

std::vector<int64_t> free_sms(const Options& options, int sms) {
  std::vector<int64_t> counts = options.sms;
  if (counts.empty()) {
    counts.push_back(sms);
    for (int64_t n = (sms - 1) / kSmsStep * kSmsStep; n >= kFewestSms; n -= kSmsStep) counts.push_back(n);
  }
  for (const int64_t n : counts) {
    if (n > sms) {
      throw std::invalid_argument("--sms: expected at most the card's " + std::to_string(sms) + "; got " +
                                  std::to_string(n));
    }
  }
  return counts;
}

void require_landing(const Landing& landing, int sms, Counts& counts) {
  const int free = sms - landing.held;
  ++counts.checks;
  std::printf("%3d SMs free, %3d held: blocks that need one each landed on %3d, small ones on %3d; on held ones: %d\n",
              free, landing.held, landing.alone, landing.small, landing.on_held);
  if (landing.alone == free && landing.on_held == 0) return;
  ++counts.failures;
  std::printf("FAILED: expected blocks on all %d free SMs and on no held one\n", free);
}

Measured on_fewer_sms(const Options& options, Counts& counts) {
  Measured measured{this_card(), {}, {}};
  const int sms = measured.card.sms;
  const std::vector<int64_t> numbers = free_sms(options, sms);
  const int64_t tokens = options.tokens.empty() ? kTokensOnFewerSms : options.tokens.front();
  const Stream stream;
  const DeviceBuffer flush(kFlushBytes);
  std::deque<DevicePrompt> prompts;
  std::deque<Contest> contests;
  for (const Shape& shape : layers(options, tokens)) {
    prompts.emplace_back(shape);
    compare_with_the_cpu(prompts.back(), tokens, options, stream, counts);
    contests.emplace_back(prompts.back(), tokens, options, stream);
    contests.back().timings(measured.card, sms, stream, flush);  // warms up what a replay needs
  }
  SmHolder holder;
  for (const int64_t n : numbers) {
    holder.hold(sms - static_cast<int>(n));
    measured.landings.push_back(holder.probe(stream));
    for (const Contest& contest : contests) {
      append(measured.timings, contest.timings(measured.card, static_cast<int>(n), stream, flush));
    }
    const bool held_to_the_end = holder.release();
    require_landing(measured.landings.back(), sms, counts);
    ++counts.checks;
    if (held_to_the_end) continue;
    ++counts.failures;
    std::printf("FAILED: the held SMs were free again after %.0f s, before the times on %lld SMs were taken\n",
                kHoldLimitSeconds, static_cast<long long>(n));
  }
  return measured;
}

}  // namespace

Counts bench(const Options& options) {
  Counts counts;
  const Measured measured = options.fewer_sms ? on_fewer_sms(options, counts) : on_the_whole_card(options, counts);
  std::printf("%s (%s), %d SMs; medians of %d, flushed L2\n", measured.card.name.c_str(), measured.card.arch.c_str(),
              measured.card.sms, kSamples);
  (options.fewer_sms ? print_bands : print_times)(measured.timings);
  if (!options.json.empty()) write_json(options, measured, counts);
  return counts;
}

}  // namespace gdn::rec_parity
