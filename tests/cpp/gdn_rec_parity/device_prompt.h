// A prompt on the device.
#pragma once

#include <cstdint>

#include "configurations.h"
#include "problem.h"
#include "runtime.h"

namespace gdn::rec_parity {

class DevicePrompt {
 public:
  explicit DevicePrompt(const Shape& shape)
      : shape_(shape),
        inputs_(shape),
        qkv_(inputs_.qkv.data(), inputs_.qkv.size()),
        beta_(inputs_.beta.data(), inputs_.beta.size()),
        g_(inputs_.g.data(), inputs_.g.size() * sizeof(float)),
        first_(inputs_.state.data(), inputs_.state.size() * sizeof(float)),
        state_(first_.bytes()),
        o_(static_cast<size_t>(shape.tokens * shape.output_row()) * bytes_of(shape.dtype)) {}

  const Shape& shape() const { return shape_; }
  const Inputs& inputs() const { return inputs_; }

  // Its first `tokens` tokens.
  void launch(const Configuration& configuration, int64_t tokens, cudaStream_t stream) const {
    const Memory memory = {qkv_.as<void>(),    g_.as<float>(),     beta_.as<void>(),
                           first_.as<float>(), state_.as<float>(), o_.as<void>()};
    accepted(configuration.launch(params_of(shape_, tokens, memory), shape_.packed_rows(), stream));
  }

  // The same into poisoned memory, and what it left there.
  Outputs run(const Configuration& configuration, int64_t tokens, const Stream& stream) const {
    o_.poison(stream);
    state_.poison(stream);
    launch(configuration, tokens, stream);
    stream.wait();
    Outputs outputs{Bytes(static_cast<size_t>(tokens * shape_.output_row()) * bytes_of(shape_.dtype)),
                    std::vector<float>(inputs_.state.size())};
    o_.read(outputs.o.data(), outputs.o.size());
    state_.read(outputs.state.data(), state_.bytes());
    return outputs;
  }

 private:
  Shape shape_;
  Inputs inputs_;
  DeviceBuffer qkv_, beta_, g_, first_, state_, o_;
};

}  // namespace gdn::rec_parity
