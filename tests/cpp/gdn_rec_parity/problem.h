// A prompt of one sequence from a state that is not zero: random inputs on the host, where the kernels find them, what
// the CPU kernels make of them, and the same in float64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/params.h"

namespace gdn::rec_parity {

struct Shape {
  int64_t tokens = 1;
  HeadShape heads;
  DType dtype = DType::f32;
  bool value_major = false;  // states are [HV, V, K]
  int64_t gap = 0;           // elements after each row of q|k|v and of o

  int64_t input_row() const { return 2 * heads.key_heads * heads.key_dim + output_row(); }
  int64_t output_row() const { return heads.value_heads * heads.value_dim + gap; }
  int64_t states() const { return heads.value_heads * heads.key_dim * heads.value_dim; }
  // Every row of q and k starts on a 16-byte boundary.
  bool packed_rows() const;
  std::string name() const;
};

size_t bytes_of(DType dtype);

// Where the tensors are, on the host or a device.
struct Memory {
  const void* qkv;   // [T, input_row]: q, k and v of a token, then the gap
  const float* g;    // [T, HV]
  const void* beta;  // [T, HV], of the inputs' dtype
  float* state_in;   // [HV, K, V] or [HV, V, K]
  float* state_out;
  void* o;  // [T, output_row]
};

// The launch of the first `tokens` tokens.
RecurrenceParams params_of(const Shape& shape, int64_t tokens, const Memory& memory);

using Bytes = std::vector<unsigned char>;
constexpr unsigned char kPoison = 0xff;  // bytes of it are NaN in every dtype

struct Inputs {
  Bytes qkv, beta;
  std::vector<float> g, state;

  explicit Inputs(const Shape& shape);
};

struct Outputs {
  Bytes o;
  std::vector<float> state;
};

// With the best instruction set of this machine.
Outputs on_the_cpu(const Shape& shape, const Inputs& inputs);

struct Exact {
  std::vector<double> o;      // [T, HV, V]
  std::vector<double> state;  // laid out as the shape says
};

// Equations (1) to (5) and (17) of docs/math.md.
Exact in_float64(const Shape& shape, const Inputs& inputs);

// How many elements differ in bits, a NaN equal to any NaN, and the first of them.
struct Difference {
  int64_t count = 0, first = 0;
};
Difference difference_in_bits(const void* actual, const void* expected, int64_t elements, DType dtype);

// The largest difference from float64 over the largest value, and where it is.
struct Distance {
  double largest = 0;
  std::vector<int64_t> at;
};
Distance output_distance(const Shape& shape, const Bytes& o, const Exact& exact);
Distance state_distance(const Shape& shape, const std::vector<float>& state, const Exact& exact);

}  // namespace gdn::rec_parity
