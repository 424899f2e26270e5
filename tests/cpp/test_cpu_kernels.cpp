// The CPU kernels without torch, bit for bit against exact_order.h on every instruction set that this CPU has, with the
// work cut over three threads: what the sanitizer builds and the aarch64 build run.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/policy.h"
#include "cpu/cpu.h"
#include "exact_order.h"

namespace {

using gdn::policy::Isa;
using Floats = std::vector<float>;

int checks = 0, failures = 0;

void compare(const std::string& what, const Floats& actual, const Floats& expected) {
  ++checks;
  size_t worst = actual.size();
  for (size_t i = 0; i < actual.size(); ++i) {
    const bool same = std::memcmp(&actual[i], &expected[i], sizeof(float)) == 0;
    if (!same && !(actual[i] != actual[i] && expected[i] != expected[i])) worst = i;
  }
  if (actual.size() == expected.size() && worst == actual.size()) return;
  ++failures;
  std::printf("FAILED %s: element %zu is %a, not %a\n", what.c_str(), worst, actual[worst], expected[worst]);
}

constexpr int64_t kThreadCount = 3;
const gdn::Parallel kThreads = {
    [](int64_t count, int64_t, gdn::Parallel::Body body, void* context) {
      std::vector<std::thread> pool;
      for (int64_t i = 0; i < kThreadCount; ++i) {
        pool.emplace_back([=] { body(count * i / kThreadCount, count * (i + 1) / kThreadCount, context); });
      }
      for (std::thread& thread : pool) thread.join();
    },
    kThreadCount};

std::mt19937 generator(20260728);

Floats random_floats(int64_t n, float scale = 1.0f, float shift = 0.0f) {
  std::normal_distribution<float> normal;
  Floats x(static_cast<size_t>(n));
  for (float& e : x) e = scale * normal(generator) + shift;
  return x;
}

gdn::View<4> heads_view(const Floats& x, int64_t T, int64_t heads, int64_t dim) {
  return {x.data(), gdn::DType::f32, {T * heads * dim, heads * dim, dim, 1}};
}
gdn::View<3> gate_view(const Floats& x, int64_t T, int64_t heads) {
  return {x.data(), gdn::DType::f32, {T * heads, heads, 1}};
}

// The rows of one head out of [T, heads, dim].
Floats rows_of(const Floats& x, int64_t T, int64_t heads, int64_t dim, int64_t head) {
  Floats rows;
  for (int64_t t = 0; t < T; ++t)
    rows.insert(rows.end(), &x[(t * heads + head) * dim], &x[(t * heads + head) * dim] + dim);
  return rows;
}

struct Problem {
  int64_t T, H, HV, K, V;
  Floats q, k, v, g, beta, state;

  Problem(int64_t T, int64_t H, int64_t HV, int64_t K, int64_t V)
      : T(T),
        H(H),
        HV(HV),
        K(K),
        V(V),
        q(random_floats(T * H * K)),
        k(random_floats(T * H * K)),
        v(random_floats(T * HV * V)),
        g(random_floats(T * HV, 0.3f, -1.0f)),
        beta(random_floats(T * HV, 0.1f, 0.5f)),
        state(random_floats(HV * K * V, 0.1f)) {}

  gdn::RecurrenceParams params(Floats& o, Floats& pool, bool value_major) {
    gdn::RecurrenceParams p;
    p.heads = {H, HV, K, V, gdn::HeadMap::grouped};
    p.shape.sequences = 1;
    p.shape.tokens = T;
    p.q = heads_view(q, T, H, K);
    p.k = heads_view(k, T, H, K);
    p.v = heads_view(v, T, HV, V);
    p.g = gate_view(g, T, HV);
    p.beta = gate_view(beta, T, HV);
    p.o = {o.data(), gdn::DType::f32, {T * HV * V, HV * V, V, 1}};
    p.state_in = {pool.data(), 1, HV * K * V, K * V, value_major ? 1 : V, value_major ? K : 1};
    p.scale = 0.09f;
    p.qk_l2norm = true;
    return p;
  }
};

// [HV, K, V] to [HV, V, K].
Floats transposed(const Floats& state, int64_t HV, int64_t K, int64_t V) {
  Floats out(state.size());
  for (int64_t h = 0; h < HV; ++h) {
    for (int64_t i = 0; i < K; ++i) {
      for (int64_t j = 0; j < V; ++j) out[(h * V + j) * K + i] = state[(h * K + i) * V + j];
    }
  }
  return out;
}

void test_prompt(Isa isa, const std::string& name, Problem in, bool value_major) {
  Floats o(in.v.size()), pool = value_major ? transposed(in.state, in.HV, in.K, in.V) : in.state;
  gdn::RecurrenceParams p = in.params(o, pool, value_major);
  p.state_out = p.state_in;
  gdn::cpu::rec_cpu(p, isa, kThreads);

  Floats expected_o(o.size()), expected_state = in.state;
  for (int64_t h = 0; h < in.HV; ++h) {
    const int64_t key_head = p.heads.key_head_of(h);
    const Floats q = rows_of(in.q, in.T, in.H, in.K, key_head), k = rows_of(in.k, in.T, in.H, in.K, key_head),
                 v = rows_of(in.v, in.T, in.HV, in.V, h), g = rows_of(in.g, in.T, in.HV, 1, h),
                 beta = rows_of(in.beta, in.T, in.HV, 1, h);
    Floats head_o(v.size());
    gdn::exact_order::recurrence(
        {q.data(), k.data(), v.data(), g.data(), beta.data(), in.T, in.K, in.V, p.scale, true, p.l2_eps},
        &expected_state[h * in.K * in.V], head_o.data());
    for (int64_t t = 0; t < in.T; ++t) std::memcpy(&expected_o[(t * in.HV + h) * in.V], &head_o[t * in.V], in.V * 4);
  }
  compare(name + " output", o, expected_o);
  compare(name + " state", pool, value_major ? transposed(expected_state, in.HV, in.K, in.V) : expected_state);
}

// A tree with two branches from one point, then the commit of one path: the state of the plain steps along it.
void test_tree_and_commit(Isa isa, const std::string& name) {
  Problem in(6, 2, 4, 128, 64);
  const int64_t parents[] = {-1, 0, 1, 1, 3, 0}, path[] = {0, 1, 3, 4, 0, 0}, accepted = 4;
  Floats o(in.v.size()), pool = in.state, k_log(in.k.size()), d_log(in.v.size()), g_log(in.g.size());
  gdn::RecurrenceParams p = in.params(o, pool, false);
  p.parents = {parents, true, {in.T, 1}};
  p.logs = {{g_log.data(), gdn::DType::f32, {0, in.HV, 1}},
            {k_log.data(), gdn::DType::f32, {0, in.H * in.K, in.K, 1}},
            {d_log.data(), gdn::DType::f32, {0, in.HV * in.V, in.V, 1}}};
  gdn::cpu::verify_cpu(p, isa, kThreads);
  compare(name + " verify leaves the state", pool, in.state);

  Problem along(accepted, in.H, in.HV, in.K, in.V);
  along.state = in.state;
  const auto pick = [&](const Floats& from, Floats& to, int64_t row) {
    for (int64_t i = 0; i < accepted; ++i) std::memcpy(&to[i * row], &from[path[i] * row], row * sizeof(float));
  };
  pick(in.q, along.q, in.H * in.K);
  pick(in.k, along.k, in.H * in.K);
  pick(in.v, along.v, in.HV * in.V);
  pick(in.g, along.g, in.HV);
  pick(in.beta, along.beta, in.HV);
  Floats plain_o(along.v.size()), plain_pool = in.state, path_o(along.v.size());
  gdn::RecurrenceParams plain = along.params(plain_o, plain_pool, false);
  plain.state_out = plain.state_in;
  gdn::cpu::rec_cpu(plain, isa, kThreads);
  pick(o, path_o, in.HV * in.V);
  compare(name + " verify = plain along a path", path_o, plain_o);

  const gdn::CommitLayer layer = {p.state_in,
                                  {{g_log.data(), gdn::DType::f32, {0, in.HV, 1}},
                                   {k_log.data(), gdn::DType::f32, {0, in.H * in.K, in.K, 1}},
                                   {d_log.data(), gdn::DType::f32, {0, in.HV * in.V, in.V, 1}}}};
  gdn::CommitParams commit;
  commit.heads = p.heads;
  commit.window = {1, in.T, {&accepted, true, {1}}, {}, {path, true, {in.T, 1}}};
  commit.layers = &layer;
  commit.num_layers = 1;
  gdn::cpu::commit_cpu(commit, isa, kThreads);
  compare(name + " commit = plain", pool, plain_pool);
}

void test_convolution(Isa isa, const std::string& name) {
  const int64_t T = 37, C = 130, W = 4, L = 5;
  const Floats x = random_floats(T * C), weight = random_floats(C * W), bias = random_floats(C);
  const Floats window = random_floats(C * L);
  Floats y(x.size()), state = window;
  gdn::ConvParams p;
  p.shape.sequences = 1;
  p.shape.tokens = T;
  p.channels = C;
  p.width = W;
  p.x = {x.data(), gdn::DType::f32, {0, C, 1}};
  p.weight = {weight.data(), gdn::DType::f32, {W, 1}};
  p.bias = {bias.data(), gdn::DType::f32, {1}};
  p.y = {y.data(), gdn::DType::f32, {0, C, 1}};
  p.window = L;
  p.slots = 1;
  p.state_in = {state.data(), gdn::DType::f32, {C * L, L, 1}};
  p.state_out = {state.data(), gdn::DType::f32, {C * L, L, 1}};
  gdn::cpu::conv_cpu(p, isa, kThreads);

  Floats expected_y(x.size()), expected_state = window;
  gdn::exact_order::convolution(x.data(), weight.data(), bias.data(), window.data(), T, C, W, L, true, nullptr,
                                expected_y.data());
  gdn::exact_order::slide_window(x.data(), expected_state.data(), nullptr, T, T, C, L);
  compare(name + " convolution", y, expected_y);
  compare(name + " window", state, expected_state);
}

void test_pointwise(Isa isa, const std::string& name) {
  const int64_t rows = 5, n = 256, HV = 70;
  const Floats x = random_floats(rows * n), z = random_floats(rows * n, 4.0f), weight = random_floats(n);
  Floats y(x.size()), expected(x.size());
  gdn::L2NormParams l2;
  l2.size[0] = l2.size[1] = 1;
  l2.size[2] = rows;
  l2.n = n;
  l2.x = {x.data(), gdn::DType::f32, {0, 0, n, 1}};
  l2.y = {y.data(), gdn::DType::f32, {0, 0, n, 1}};
  gdn::cpu::l2norm_cpu(l2, isa, kThreads);
  for (int64_t r = 0; r < rows; ++r) gdn::exact_order::l2norm(&x[r * n], n, l2.eps, &expected[r * n]);
  compare(name + " l2norm", y, expected);

  gdn::NormParams norm;
  norm.size[0] = norm.size[1] = 1;
  norm.size[2] = rows;
  norm.n = n;
  norm.o = l2.x;
  norm.z = {z.data(), gdn::DType::f32, {0, 0, n, 1}};
  norm.weight = {weight.data(), gdn::DType::f32, {1}};
  norm.y = l2.y;
  gdn::cpu::norm_cpu(norm, isa, kThreads);
  for (int64_t r = 0; r < rows; ++r) {
    gdn::exact_order::gated_rms_norm(&x[r * n], &z[r * n], weight.data(), n, norm.eps, false, &expected[r * n]);
  }
  compare(name + " gated_rms_norm", y, expected);

  const Floats a = random_floats(HV, 30.0f), b = random_floats(HV, 30.0f), A_log = random_floats(HV, 40.0f),
               dt_bias = random_floats(HV);
  Floats g(HV), beta(HV), expected_g(HV), expected_beta(HV);
  gdn::GatesParams gates;
  gates.size[0] = gates.size[1] = gates.size[2] = 1;
  gates.value_heads = HV;
  gates.a = {a.data(), gdn::DType::f32, {0, 0, 0, 1}};
  gates.b = {b.data(), gdn::DType::f32, {0, 0, 0, 1}};
  gates.A_log = {A_log.data(), gdn::DType::f32, {1}};
  gates.dt_bias = {dt_bias.data(), gdn::DType::f32, {1}};
  gates.g = {g.data(), gdn::DType::f32, {0, 0, 0, 1}};
  gates.beta = {beta.data(), gdn::DType::f32, {0, 0, 0, 1}};
  gdn::cpu::gates_cpu(gates, isa, kThreads);
  for (int64_t h = 0; h < HV; ++h) {
    gdn::exact_order::gates(a[h], b[h], A_log[h], dt_bias[h], false, &expected_g[h], &expected_beta[h]);
  }
  compare(name + " g", g, expected_g);
  compare(name + " beta", beta, expected_beta);
}

std::vector<Isa> available() {
  std::vector<Isa> all = {Isa::baseline};
#if defined(__x86_64__)
  const std::string best = gdn::policy::cpu_device({}).arch;
  if (best != "cpu-baseline") all.push_back(Isa::avx2);
  if (best == "cpu-avx512") all.push_back(Isa::avx512);
#endif
  return all;
}

}  // namespace

int main() {
  for (const Isa isa : available()) {
    const std::string name(gdn::policy::kIsaNames[static_cast<int>(isa)]);
    test_prompt(isa, name + " K=64 V=128", Problem(9, 1, 2, 64, 128), false);
    test_prompt(isa, name + " K=128 V=128 vk", Problem(17, 2, 6, 128, 128), true);
    test_prompt(isa, name + " two stages", Problem(67, 1, 2, 64, 64), true);
    test_prompt(isa, name + " K=256 V=64", Problem(3, 1, 1, 256, 64), false);
    test_tree_and_commit(isa, name);
    test_convolution(isa, name);
    test_pointwise(isa, name);
  }
  std::printf("%d checks, %d failures\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
