#include "problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "core/half.h"
#include "core/launch.h"
#include "cpu/cpu.h"
#include "options.h"

namespace gdn::rec_parity {
namespace {

constexpr int kSeed = 7;
constexpr int64_t kRowAlignment = 16;  // bytes
constexpr float kStateSize = 0.1f;
constexpr float kDecayDivisor = 16.0f;  // slow gates, and
constexpr int64_t kSteadyHeads = 4;     // every fourth head does not decay at all

// Standard normal numbers out of a table, whose length is prime: a prompt of a whole layer needs hundreds of millions.
class Normals {
 public:
  Normals() : table_(kLength) {
    std::mt19937 generator(kSeed);
    std::normal_distribution<float> normal;
    for (float& x : table_) x = normal(generator);
  }
  float next() {
    next_ = next_ + 1 < kLength ? next_ + 1 : 0;
    return table_[next_];
  }

 private:
  static constexpr size_t kLength = 1000003;
  std::vector<float> table_;
  size_t next_ = 0;
};

template <class F>
auto with_element(DType dtype, F f) {
  switch (dtype) {
    case DType::bf16: return f(bf16{});
    case DType::f16: return f(f16{});
    case DType::f32: break;
  }
  return f(float{});
}

// n elements that f() makes.
template <class F>
Bytes elements(DType dtype, int64_t n, F f) {
  Bytes bytes(static_cast<size_t>(n) * bytes_of(dtype));
  with_element(dtype, [&](auto element) {
    using Element = decltype(element);
    for (int64_t i = 0; i < n; ++i) {
      const Element x = from_f32<Element>(f());
      std::memcpy(&bytes[static_cast<size_t>(i) * sizeof x], &x, sizeof x);
    }
  });
  return bytes;
}

std::vector<double> widened(const void* data, int64_t n, DType dtype) {
  std::vector<double> x(static_cast<size_t>(n));
  with_element(dtype, [&](auto element) {
    for (int64_t i = 0; i < n; ++i) {
      std::memcpy(&element, static_cast<const char*>(data) + i * static_cast<int64_t>(sizeof element), sizeof element);
      x[i] = to_f32(element);
    }
  });
  return x;
}

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

Parallel all_threads() {
  static const int64_t threads = std::max(1u, std::thread::hardware_concurrency());
  return {[](int64_t count, int64_t, Parallel::Body body, void* context) {
            std::vector<std::thread> pool;
            for (int64_t i = 0; i < threads; ++i) {
              const int64_t begin = count * i / threads, end = count * (i + 1) / threads;
              if (begin < end) pool.emplace_back([=] { body(begin, end, context); });
            }
            for (std::thread& thread : pool) thread.join();
          },
          threads};
}

// What one value head makes of a prompt, S [K][V] in place, o with a row every `stride`.
void head_in_float64(const Shape& shape, const std::vector<double>& qkv, const std::vector<double>& beta,
                     const std::vector<float>& g, int64_t h, double* S, double* o) {
  const HeadShape& heads = shape.heads;
  const int64_t K = heads.key_dim, V = heads.value_dim, H = heads.key_heads, HV = heads.value_heads;
  const RecurrenceParams p = params_of(shape, shape.tokens, Memory{});
  const double scale = 1.0 / std::sqrt(static_cast<double>(K));
  const auto normalised = [&](const double* x) {
    std::vector<double> row(x, x + K);
    double sum = p.l2_eps;
    for (const double e : row) sum += e * e;
    for (double& e : row) e /= std::sqrt(sum);
    return row;
  };
  std::vector<double> column(static_cast<size_t>(V));
  for (int64_t t = 0; t < shape.tokens; ++t) {
    const double* row = &qkv[t * shape.input_row()];
    const int64_t key_head = heads.key_head_of(h);
    const std::vector<double> q = normalised(row + key_head * K), k = normalised(row + (H + key_head) * K);
    const double* v = row + 2 * H * K + h * V;
    const double alpha = std::exp(static_cast<double>(g[t * HV + h]));
    std::fill(column.begin(), column.end(), 0.0);
    for (int64_t i = 0; i < K; ++i) {
      for (int64_t c = 0; c < V; ++c) column[c] += S[i * V + c] * k[i];
    }
    for (int64_t c = 0; c < V; ++c) column[c] = beta[t * HV + h] * (v[c] - alpha * column[c]);
    double* out = o + t * HV * V;
    std::fill(out, out + V, 0.0);
    for (int64_t i = 0; i < K; ++i) {
      for (int64_t c = 0; c < V; ++c) {
        S[i * V + c] = alpha * S[i * V + c] + k[i] * column[c];
        out[c] += scale * q[i] * S[i * V + c];
      }
    }
  }
}

Distance distance(const std::vector<double>& actual, const std::vector<double>& exact,
                  const std::vector<int64_t>& sizes) {
  double largest_value = 0, largest = -1;
  size_t worst = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    largest_value = std::max(largest_value, std::fabs(exact[i]));
    const double difference = std::fabs(actual[i] - exact[i]);
    const double size = std::isnan(difference) ? INFINITY : difference;
    if (size > largest) largest = size, worst = i;
  }
  Distance found{largest / largest_value, std::vector<int64_t>(sizes.size())};
  auto rest = static_cast<int64_t>(worst);
  for (size_t i = sizes.size(); i-- > 0; rest /= sizes[i]) found.at[i] = rest % sizes[i];
  return found;
}

}  // namespace

size_t bytes_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

bool Shape::packed_rows() const { return input_row() * static_cast<int64_t>(bytes_of(dtype)) % kRowAlignment == 0; }

std::string Shape::name() const {
  const auto number = [](const char* symbol, int64_t value) { return symbol + std::to_string(value) + " "; };
  return number("T=", tokens) + number("H=", heads.key_heads) + number("HV=", heads.value_heads) +
         number("K=", heads.key_dim) + number("V=", heads.value_dim) + rec_parity::name(dtype) +
         (value_major ? " vk" : " kv") + (heads.head_map == HeadMap::grouped ? " grouped" : " tiled") +
         (packed_rows() ? "" : " unaligned");
}

RecurrenceParams params_of(const Shape& shape, int64_t tokens, const Memory& memory) {
  const HeadShape& heads = shape.heads;
  const int64_t K = heads.key_dim, V = heads.value_dim, HV = heads.value_heads, row = shape.input_row();
  const auto inputs = [&](int64_t first, int64_t dim) {
    const char* data = static_cast<const char*>(memory.qkv);
    return View<4>{
        data + first * static_cast<int64_t>(bytes_of(shape.dtype)), shape.dtype, {tokens * row, row, dim, 1}};
  };
  const auto states = [&](float* data) {
    return StateView{data, 1, shape.states(), K * V, shape.value_major ? 1 : V, shape.value_major ? K : 1};
  };
  RecurrenceParams p;
  p.heads = heads;
  p.shape.sequences = 1;
  p.shape.tokens = tokens;
  p.q = inputs(0, K);
  p.k = inputs(heads.key_heads * K, K);
  p.v = inputs(2 * heads.key_heads * K, V);
  p.g = {memory.g, DType::f32, {tokens * HV, HV, 1}};
  p.beta = {memory.beta, shape.dtype, {tokens * HV, HV, 1}};
  p.o = {memory.o, shape.dtype, {tokens * shape.output_row(), shape.output_row(), V, 1}};
  p.state_in = states(memory.state_in);
  p.state_out = states(memory.state_out);
  p.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(K)));
  p.qk_l2norm = true;
  return p;
}

Inputs::Inputs(const Shape& shape) {
  Normals normals;
  const int64_t T = shape.tokens, HV = shape.heads.value_heads;
  qkv = elements(shape.dtype, T * shape.input_row(), [&] { return normals.next(); });
  beta = elements(shape.dtype, T * HV, [&] { return sigmoid(normals.next()); });
  for (int64_t i = 0; i < T * HV; ++i) {
    const float decay = std::log(sigmoid(normals.next())) / kDecayDivisor;
    g.push_back(i % HV % kSteadyHeads == kSteadyHeads - 1 ? 0.0f : decay);
  }
  for (int64_t i = 0; i < shape.states(); ++i) state.push_back(kStateSize * normals.next());
}

Outputs on_the_cpu(const Shape& shape, const Inputs& inputs) {
  Outputs outputs{Bytes(static_cast<size_t>(shape.tokens * shape.output_row()) * bytes_of(shape.dtype), kPoison),
                  std::vector<float>(static_cast<size_t>(shape.states()))};
  std::vector<float> first = inputs.state;
  std::memset(outputs.state.data(), kPoison, outputs.state.size() * sizeof(float));
  const RecurrenceParams params = params_of(
      shape, shape.tokens,
      {inputs.qkv.data(), inputs.g.data(), inputs.beta.data(), first.data(), outputs.state.data(), outputs.o.data()});
  const policy::Decision decision = policy::decide({}, policy::cpu_device({}), {});
  cpu::rec_cpu(params, decision.isa, all_threads());
  return outputs;
}

Exact in_float64(const Shape& shape, const Inputs& inputs) {
  const HeadShape& heads = shape.heads;
  const int64_t K = heads.key_dim, V = heads.value_dim, HV = heads.value_heads, T = shape.tokens;
  const std::vector<double> qkv = widened(inputs.qkv.data(), T * shape.input_row(), shape.dtype),
                            beta = widened(inputs.beta.data(), T * HV, shape.dtype);
  Exact exact{std::vector<double>(static_cast<size_t>(T * HV * V)),
              std::vector<double>(static_cast<size_t>(shape.states()))};
  all_threads()(HV, 1, [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h) {
      std::vector<double> S(static_cast<size_t>(K * V));
      const auto element = [&](int64_t i, int64_t c) {
        return h * K * V + (shape.value_major ? c * K + i : i * V + c);
      };
      for (int64_t i = 0; i < K; ++i) {
        for (int64_t c = 0; c < V; ++c) S[i * V + c] = inputs.state[element(i, c)];
      }
      head_in_float64(shape, qkv, beta, inputs.g, h, S.data(), &exact.o[h * V]);
      for (int64_t i = 0; i < K; ++i) {
        for (int64_t c = 0; c < V; ++c) exact.state[element(i, c)] = S[i * V + c];
      }
    }
  });
  return exact;
}

Difference difference_in_bits(const void* actual, const void* expected, int64_t elements, DType dtype) {
  Difference found;
  with_element(dtype, [&](auto element) {
    auto other = element;
    const auto n = static_cast<int64_t>(sizeof element);
    for (int64_t i = elements - 1; i >= 0; --i) {
      std::memcpy(&element, static_cast<const char*>(actual) + i * n, sizeof element);
      std::memcpy(&other, static_cast<const char*>(expected) + i * n, sizeof element);
      if (std::memcmp(&element, &other, sizeof element) == 0) continue;
      if (std::isnan(to_f32(element)) && std::isnan(to_f32(other))) continue;
      ++found.count;
      found.first = i;
    }
  });
  return found;
}

Distance output_distance(const Shape& shape, const Bytes& o, const Exact& exact) {
  const int64_t T = shape.tokens, HV = shape.heads.value_heads, V = shape.heads.value_dim;
  std::vector<double> actual;
  for (int64_t t = 0; t < T; ++t) {
    const unsigned char* row = &o[static_cast<size_t>(t * shape.output_row()) * bytes_of(shape.dtype)];
    const std::vector<double> values = widened(row, HV * V, shape.dtype);
    actual.insert(actual.end(), values.begin(), values.end());
  }
  return distance(actual, exact.o, {T, HV, V});
}

Distance state_distance(const Shape& shape, const std::vector<float>& state, const Exact& exact) {
  const int64_t HV = shape.heads.value_heads, K = shape.heads.key_dim, V = shape.heads.value_dim;
  const std::vector<double> actual(state.begin(), state.end());
  return distance(actual, exact.state, {HV, shape.value_major ? V : K, shape.value_major ? K : V});
}

}  // namespace gdn::rec_parity
