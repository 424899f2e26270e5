// The registry without Python: architectures, decisions, errors, switches, scopes, counts, and what a decision costs.
#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "core/policy.h"
#include "core/rec_shapes.h"

namespace {
thread_local int64_t t_allocations = 0;
}  // namespace

void* operator new(std::size_t size) {
  ++t_allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using namespace gdn;
using namespace gdn::policy;

void expect(const std::string& got, const std::string& expected) {
  if (got != expected) std::fprintf(stderr, "expected: %s\ngot:      %s\n", expected.c_str(), got.c_str());
  assert(got == expected);
}

template <class Error, class F>
void expect_throw(F&& call, const std::string& message) {
  std::string got = "no exception";
  try {
    call();
  } catch (const Error& error) {
    got = error.what();
  }
  expect(got, message);
}

Device on(const char* arch) {
  Device device;
  device.arch = arch;
  return device;
}

Request request(Op op, Precision precision = Precision::automatic) {
  Request r;
  r.op = op;
  r.precision = precision;
  return r;
}

Overrides with(const Assignments& changes) { return parse_overrides(changes, Overrides{}, Source::environment); }

void test_architectures() {
  for (const char* text :
       {"sm_75", "sm_90", "sm_120", "gfx90a", "gfx1030", "gfx1201", "cpu-baseline", "cpu-avx2", "cpu-avx512"}) {
    const auto arch = parse_arch(text);
    assert(arch);
    expect(name(*arch), text);
  }
  for (const char* text : {"", "sm_", "sm_9x", "sm_123456", "sm90", "gfx", "gfxyz", "cpu", "cpu-sse", "h200"}) {
    assert(!parse_arch(text));
  }
  assert(parse_arch("sm_100")->number > parse_arch("sm_90")->number);
}

void test_every_op_has_a_cpu_kernel() {
  constexpr std::pair<Op, const char*> kKernels[] = {
      {Op::gated_delta_rule, "rec_cpu"},
      {Op::verify, "verify_cpu"},
      {Op::commit, "commit_cpu"},
      {Op::commit_layers, "commit_cpu"},
      {Op::commit_verify, "commit_verify_cpu"},
      {Op::conv, "conv_cpu"},
      {Op::conv_verify, "conv_cpu"},
      {Op::conv_commit, "conv_commit_cpu"},
      {Op::qk_l2norm, "l2norm_cpu"},
      {Op::gates, "gates_cpu"},
      {Op::norm, "norm_cpu"},
      {Op::decode_layer, "decode_layer_cpu"},
      {Op::verify_layer, "verify_layer_cpu"},
  };
  for (const auto& [op, kernel] : kKernels) {
    const Decision decision = require("op", request(op), on("cpu-avx2"), Overrides{});
    expect(std::string(decision.kernel), kernel);
    assert(decision.isa == Isa::avx2);
    assert(parse_op(name(op)) == op);
    assert(parse_op(std::string(name(op)) + "_") == op);
  }
}

void test_cuda_kernels() {
  constexpr const char* kDecodeLayer = "conv_gates, step_norm";
  constexpr const char* kVerifyLayer = "conv_gates, verify_norm";
  constexpr const char* kVerifyTreeLayer = "conv_gates, verify_tree, gated_rms_norm";
  struct {
    Op op;
    int64_t tokens;
    const char *chain, *tree;
  } const kernels[] = {
      {Op::gated_delta_rule, 1, "step", "step"},
      {Op::gated_delta_rule, 16, "step", "step"},
      {Op::gated_delta_rule, 17, "rec_keyhead", "rec_keyhead"},
      {Op::verify, 8, "verify", "verify_tree"},
      {Op::commit, 8, "commit", "commit"},
      {Op::commit_layers, 8, "commit", "commit"},
      {Op::commit_verify, 8, "commit_verify", "commit, verify_tree"},
      {Op::conv, 8, "causal_conv1d", "causal_conv1d"},
      {Op::conv_verify, 8, "causal_conv1d", "causal_conv1d"},
      {Op::conv_commit, 8, "conv_commit", "conv_commit"},
      {Op::qk_l2norm, 8, "qk_l2norm", "qk_l2norm"},
      {Op::gates, 8, "gdn_gates", "gdn_gates"},
      {Op::norm, 8, "gated_rms_norm", "gated_rms_norm"},
      {Op::decode_layer, 8, kDecodeLayer, kDecodeLayer},
      {Op::verify_layer, 8, kVerifyLayer, kVerifyTreeLayer},
  };
  for (const auto& k : kernels) {
    for (const bool tree : {false, true}) {
      Request r = request(k.op);
      r.tokens = k.tokens;
      r.tree = tree;
      const Decision aligned = decide(r, on("sm_90"), Overrides{});
      expect(std::string(aligned.kernel), tree ? k.tree : k.chain);
      // A view at an odd address is read with smaller accesses, not by another kernel.
      for (r.alignment_bytes = 1; r.alignment_bytes < 16; r.alignment_bytes *= 2) {
        const Decision odd = decide(r, on("sm_90"), Overrides{});
        assert(odd.row == aligned.row && odd.heads == aligned.heads && odd.columns == aligned.columns);
      }
    }
  }
}

void test_fused_layers() {
  const Overrides none, never = with({{"GDN_FUSED_LAYER", "0"}}), always = with({{"GDN_FUSED_LAYER", "1"}});
  struct {
    Op op;
    const char *one, *two, *apart;
  } const layers[] = {
      {Op::decode_layer, "decode_layer", "conv_gates, step_norm", "conv_gates, step, gated_rms_norm"},
      {Op::verify_layer, "verify_layer", "conv_gates, verify_norm", "conv_gates, verify, gated_rms_norm"},
  };
  for (const auto& layer : layers) {
    Request r = request(layer.op);
    const auto kernel = [&](const char* arch, int32_t sms, const Overrides& overrides) {
      Device device = on(arch);
      device.sms = sms;
      return std::string(decide(r, device, overrides).kernel);
    };
    // A multiprocessor for each of the 48 heads.
    expect(kernel("sm_90", 132, none), layer.one);
    expect(kernel("sm_90", 47, none), layer.two);
    expect(kernel("sm_90", 132, never), layer.two);
    expect(kernel("sm_90", 47, always), layer.one);
    // Clusters are where windows are written.
    expect(kernel("sm_80", 108, always), layer.op == Op::decode_layer ? layer.two : layer.one);
    r.key_heads = 3;
    expect(kernel("sm_90", 132, always), layer.op == Op::decode_layer ? layer.two : layer.one);
    r.key_heads = 16;
    r.conv_width = 3;
    expect(kernel("sm_90", 132, always), layer.two);
    r.conv_width = 4;
    // A head in one block.
    r.state_vectors = false;
    expect(kernel("sm_90", 132, always), layer.apart);
    r.state_vectors = true;
    r.key_dim = 256;
    expect(kernel("sm_90", 132, always), layer.apart);
  }
}

void test_cuda_configurations() {
  const Device device = on("sm_90");
  const Overrides none, split = with({{"GDN_SPLIT", "1"}}), one_by_one = with({{"GDN_COMMIT_SPLIT", "0"}});
  for (const Op op : {Op::gated_delta_rule, Op::verify, Op::commit_verify, Op::decode_layer, Op::verify_layer}) {
    const bool layer = op == Op::decode_layer || op == Op::verify_layer;
    assert(decide(request(op), device, none).columns == (layer ? 128 : 64));
    assert(decide(request(op), device, split).columns == 32);
  }
  for (const Op op : {Op::commit_layers, Op::conv_commit}) {
    assert(decide(request(op), device, none).batched);
    assert(decide(request(op), device, split).batched);
    assert(!decide(request(op), device, one_by_one).batched);
  }
  assert(decide(request(Op::commit_layers), device, split).columns == 64);
  Request prompt = request(Op::gated_delta_rule);
  prompt.tokens = 2048;
  assert(decide(prompt, device, none).pipelined);
  assert(!decide(prompt, device, with({{"GDN_PIPELINE", "0"}})).pipelined);
  // Two blocks of one head a thread need 106 KB of shared memory: not every multiprocessor has room for them.
  const RecShape two_blocks = {1, 16, 2, 64, 128, 0.0};
  assert(has_room(two_blocks, 128, opt_in_bytes(90)));
  assert(!has_room(two_blocks, 128, opt_in_bytes(89)));
  assert(has_room(two_blocks, 64, opt_in_bytes(89)));
}

void test_instruction_sets() {
  const Request r = request(Op::gated_delta_rule);
  const Device avx512 = on("cpu-avx512");
  assert(decide(r, avx512, Overrides{}).isa == Isa::avx512);
  assert(decide(r, avx512, with({{"GDN_CPU_ISA", "baseline"}})).isa == Isa::baseline);
  assert(decide(r, avx512, with({{"GDN_EMULATE", "cpu-avx2"}})).isa == Isa::avx2);
  // Never upwards, and a GPU's architecture means nothing to a CPU tensor.
  assert(decide(r, on("cpu-avx2"), with({{"GDN_EMULATE", "cpu-avx512"}})).isa == Isa::avx2);
  assert(decide(r, avx512, with({{"GDN_EMULATE", "sm_86"}})).isa == Isa::avx512);
  const Decision lacking = decide(r, on("cpu-baseline"), with({{"GDN_CPU_ISA", "avx2"}}));
  assert(!lacking && lacking.cause == Cause::isa);
  const Device here = cpu_device(with({{"GDN_CPU_ISA", "baseline"}}));
  expect(here.arch, "cpu-baseline");
}

void test_emulation_of_gpus() {
  const Request r = request(Op::gates);
  expect(std::string(decide(r, on("sm_90"), with({{"GDN_EMULATE", "sm_86"}})).kernel), "gdn_gates");
  // sm_75's kernel on a card that is older than the emulated one.
  const Decision upwards = decide(r, on("sm_70"), with({{"GDN_EMULATE", "sm_90"}}));
  assert(!upwards && upwards.cause == Cause::real_card);
  const Decision older = decide(r, on("sm_90"), with({{"GDN_EMULATE", "sm_70"}}));
  assert(!older && older.cause == Cause::architecture);
  // Whatever card is emulated: a block of the prompt's kernels has room on the real one.
  for (const char* real : {"sm_75", "sm_80", "sm_86", "sm_90", "sm_120"}) {
    for (const char* seen : {"sm_75", "sm_80", "sm_86", "sm_90", "sm_120"}) {
      for (const int64_t K : {64, 128, 256}) {
        for (const int64_t group : {1, 2, 3, 4}) {
          Request prompt = request(Op::gated_delta_rule);
          prompt.tokens = 2048;
          prompt.key_dim = K;
          prompt.value_heads = group * prompt.key_heads;
          const Decision decision = decide(prompt, on(real), with({{"GDN_EMULATE", seen}}));
          const int32_t bytes = rec_shared_bytes(decision.heads, decision.columns, K);
          assert(bytes > 0 && bytes <= opt_in_bytes(parse_arch(real)->number));
          assert(decision.heads == 1 || (group % decision.heads == 0 && parse_arch(real)->number >= 80));
        }
      }
    }
  }
}

void test_errors_of_a_launch() {
  const Overrides none;
  expect_throw<std::invalid_argument>(
      [&] { require("gated_delta_rule_", request(Op::gated_delta_rule, Precision::fast), on("cpu-avx2"), none); },
      "gated_delta_rule_: precision=\"fast\" is not available on cpu: available are \"auto\" and \"exact\"");
  Request odd_heads = request(Op::commit);
  odd_heads.key_dim = 96;
  expect_throw<std::invalid_argument>([&] { require("gated_delta_rule_commit_", odd_heads, on("cpu-avx2"), none); },
                                      "gated_delta_rule_commit_: K must be 64, 128 or 256; got 96");
  Request long_draft = request(Op::verify);
  long_draft.tokens = 129;
  expect_throw<std::invalid_argument>([&] { require("gated_delta_rule_verify", long_draft, on("cpu-avx2"), none); },
                                      "gated_delta_rule_verify: T must be at most 128; got 129");
  long_draft.tree = true;
  expect_throw<std::invalid_argument>([&] { require("gated_delta_rule_verify", long_draft, on("sm_90"), none); },
                                      "gated_delta_rule_verify: T must be at most 128; got 129");
  odd_heads.op = Op::gated_delta_rule;
  // rec_keyhead would need sm_80, and step fewer tokens: neither is what is wrong.
  odd_heads.tokens = 2048;
  expect_throw<std::invalid_argument>([&] { require("gated_delta_rule", odd_heads, on("sm_75"), none); },
                                      "gated_delta_rule: K must be 64, 128 or 256; got 96");
  expect_throw<std::runtime_error>(
      [&] {
        require("gated_delta_rule", request(Op::gated_delta_rule), on("sm_75"), with({{"GDN_EMULATE", "sm_70"}}));
      },
      "gated_delta_rule: no kernel of this build serves gated_delta_rule on sm_70: step: needs sm_75 or newer; this is "
      "sm_70; chunk_fp32: needs sm_80 or newer; this is sm_70; rec_keyhead: needs sm_80 or newer; this is sm_70; "
      "rec_columns: needs sm_75 or newer; this is sm_70; GDN_EMULATE=sm_70 in place of sm_75");
  expect_throw<std::runtime_error>(
      [&] { require("gated_delta_rule", request(Op::gated_delta_rule, Precision::fp32), on("sm_75"), none); },
      "gated_delta_rule: no kernel of this build serves gated_delta_rule on sm_75 with precision=\"fp32\": needs "
      "sm_80 or newer; this is sm_75");
  expect_throw<std::runtime_error>(
      [&] { require("gdn_gates", request(Op::gates), on("gfx90a"), none); },
      "gdn_gates: no kernel of this build serves gdn_gates on gfx90a: needs gfx1030 or newer; this is gfx90a");
  if (!built_with(Vendor::hip)) {
    expect_throw<std::runtime_error>(
        [&] { require("gdn_gates", request(Op::gates), on("gfx1100"), none); },
        "gdn_gates: this build of strata_gdn has no ROCm kernels; it cannot run on gfx1100");
  }
  if (!built_with(Vendor::cuda)) {
    expect_throw<std::runtime_error>([&] { require("gdn_gates", request(Op::gates), on("sm_90"), none); },
                                     "gdn_gates: this build of strata_gdn has no CUDA kernels; it cannot run on sm_90");
  }
  expect_throw<std::invalid_argument>([&] { decide(request(Op::gates), on("h200"), none); },
                                      "arch must be an architecture such as sm_86, gfx1151 or cpu-avx2; got 'h200'");
}

void test_rejected_kernels() {
  std::vector<Rejected> rejected;
  decide(request(Op::gates), on("sm_70"), Overrides{}, &rejected);
  assert(rejected.size() == 1);
  expect(std::string(rejected[0].kernel), "gdn_gates");
  expect(rejected[0].reason, "needs sm_75 or newer; this is sm_70");
  assert(rejected[0].cause == Cause::architecture);

  rejected.clear();
  Request prompt = request(Op::gated_delta_rule);
  prompt.tokens = 17;
  expect(std::string(decide(prompt, on("sm_75"), Overrides{}, &rejected).kernel), "rec_columns");
  assert(rejected.size() == 3);
  expect(rejected[0].reason, "takes at most 16 tokens a sequence; this is T=17");
  for (const size_t i : {1, 2}) expect(rejected[i].reason, "needs sm_80 or newer; this is sm_75");

  rejected.clear();
  Request refused = request(Op::gated_delta_rule);
  refused.tokens = 2048;
  refused.work_buffer = false;
  const Overrides chunked = with({{"GDN_CHUNKED", "2"}});
  expect(std::string(decide(refused, on("sm_90"), chunked, &rejected).kernel), "rec_keyhead");
  expect(rejected.back().reason, "the allocator refused its work buffer");
  refused.work_buffer = true;
  expect(std::string(decide(refused, on("sm_90"), chunked).kernel), "chunk_fp32");
}

void test_environment() {
  setenv("GDN_SPLIT", "0", 1);
  reload_environment();
  assert(effective(current_overrides(), Switch::split, nullptr).source == Source::environment);
  setenv("GDN_SPLIT", "yes", 1);
  expect_throw<std::invalid_argument>([] { reload_environment(); }, "GDN_SPLIT must be 0 or 1; got 'yes'");
  expect(current_overrides()[Switch::split].text, "0");
  unsetenv("GDN_SPLIT");
  reload_environment();
  assert(effective(current_overrides(), Switch::split, nullptr).source == Source::built_in);
}

void test_scopes() {
  const int64_t outer = push_overrides({{"GDN_CHECK", "1"}});
  assert(check_values(current_overrides()));
  const int64_t inner = push_overrides({{"GDN_CHECK", std::nullopt}});
  assert(!check_values(current_overrides()));
  std::thread([&] {
    assert(!check_values(current_overrides()));
    expect_throw<std::runtime_error>([&] { pop_overrides(outer); },
                                     "registry.overrides: a scope must be left on the thread that entered it");
  }).join();
  pop_overrides(inner);
  assert(check_values(current_overrides()));
  // A reload reaches a scope that is open: what it does not set follows the environment.
  setenv("GDN_CHUNKED", "2", 1);
  reload_environment();
  assert(current_overrides()[Switch::chunked].number == 2 && check_values(current_overrides()));
  unsetenv("GDN_CHUNKED");
  reload_environment();
  pop_overrides(outer);
  assert(!check_values(current_overrides()));
  expect_throw<std::invalid_argument>([] { push_overrides({{"GDN_CHECK", "1"}, {"GDN_SPLIT", "2"}}); },
                                      "GDN_SPLIT must be 0 or 1; got '2'");
  assert(!check_values(current_overrides()));
}

void test_served() {
  reset_served();
  const Request r = request(Op::commit);
  const Device device = on("cpu-avx2");
  const Decision one = decide(r, device, Overrides{});
  const Request layers = request(Op::commit_layers);
  const Decision all = decide(layers, device, Overrides{});
  constexpr int kLaunches = 1000;
  std::thread other([&] {
    for (int i = 0; i < kLaunches; ++i) count_served(r, device, one);
  });
  for (int i = 0; i < kLaunches; ++i) count_served(layers, device, all);
  other.join();
  const auto counts = served();
  assert(counts.size() == 1 && counts[0].first == "commit_cpu" && counts[0].second == 2 * kLaunches);
  reset_served();
  assert(served().empty());
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
constexpr double kBudgetNs = 20000;  // a sanitizer's own cost, or that of an emulator
#else
constexpr double kBudgetNs = 1000;
#endif

template <class F>
void expect_cheap(const char* what, F&& step) {
  step();
  const int64_t allocations = t_allocations;
  constexpr int kBatches = 20;
  constexpr int kSteps = 10000;
  double best_ns = std::numeric_limits<double>::infinity();
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) step();
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    best_ns = std::min(best_ns, time.count() / kSteps);
  }
  std::printf("%s: %.0f ns\n", what, best_ns);
  assert(t_allocations == allocations);
  assert(best_ns < kBudgetNs);
}

// All that a call asks of the registry: below a microsecond, and nothing allocated.
void test_cost_of_a_call() {
  const Request r = request(Op::gated_delta_rule);
  expect_cheap("a decode step's decision on the CPU", [&] {
    const Overrides& overrides = current_overrides();
    const Device device = cpu_device(overrides);
    const Decision decision = require("gated_delta_rule_", r, device, overrides);
    count_served(r, device, decision);
  });
  const Device device = on("sm_90");
  Request prompt = r;
  prompt.tokens = 2048;
  Request tree = request(Op::verify_layer);
  tree.tree = true;
  for (const auto& [what, asked] : {std::pair("a decode step's decision on a GPU", r),
                                    {"a prompt's", prompt},
                                    {"a fused layer's with a tree", tree}}) {
    expect_cheap(what, [&, &asked = asked] {
      const Decision decision = decide(asked, device, current_overrides());
      count_served(asked, device, decision);
    });
  }
}

}  // namespace

int main() {
  test_architectures();
  test_every_op_has_a_cpu_kernel();
  test_cuda_kernels();
  test_fused_layers();
  test_cuda_configurations();
  test_instruction_sets();
  test_emulation_of_gpus();
  test_errors_of_a_launch();
  test_rejected_kernels();
  test_environment();
  test_scopes();
  test_served();
  test_cost_of_a_call();
  return 0;
}
