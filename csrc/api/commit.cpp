#include "api/ops.h"
#include "api/recurrence.h"
#include "api/sequences.h"
#include "api/values.h"
#include "cpu/cpu.h"

#if defined(GDN_WITH_GPU)
#include "cuda/launch.h"
#endif

namespace gdn::api {

CommitCall::CommitCall(const char* op, policy::Op row, const std::vector<TensorInfo>& states,
                       const std::vector<TensorInfo>& k_logs, const std::vector<TensorInfo>& d_logs,
                       const std::vector<TensorInfo>& g_logs, const TensorInfo& accepted,
                       const std::optional<TensorInfo>& state_indices, const std::optional<TensorInfo>& path,
                       const std::string& head_map, const std::string& state_layout)
    : checks(op) {
  params.heads.head_map = checks.head_map(head_map);
  const bool value_major = checks.value_major(state_layout);
  std::vector<const TensorInfo*> written, read;
  for (size_t i = 0; i < states.size(); ++i) {
    const TensorInfo &state = states[i], &k_log = k_logs[i], &d_log = d_logs[i], &g_log = g_logs[i];
    for (const TensorInfo* t : {&state, &k_log, &d_log, &g_log}) {
      checks.device(*t, k_logs[0]);
      checks.float32(*t);
    }
    if (i == 0) {
      checks.shape(k_log, {{"N"}, {"T"}, {"H"}, {"K"}});
    } else {
      checks.same_shape(k_log, k_logs[0]);
    }
    const int64_t N = k_log.size(0), T = k_log.size(1), H = k_log.size(2), K = k_log.size(3);
    checks.shape(d_log, {{"N", N}, {"T", T}, {"HV"}, {"V"}}, &k_log);
    const int64_t HV = d_log.size(2), V = d_log.size(3);
    if (i == 0) {
      checks.heads(H, HV, k_log, d_log);
      checks.head_dim("K", K, k_log);
      checks.head_dim("V", V, d_log);
      params.heads = {H, HV, K, V, params.heads.head_map};
      params.window = accepted_window(checks, N, T, k_log, accepted, state_indices, path);
    } else {
      checks.same_shape(d_log, d_logs[0]);
    }
    checks.shape(g_log, {{"N", N}, {"T", T}, {"HV", HV}}, &d_log);
    if (value_major) {
      checks.shape(state, {{"S"}, {"HV", HV}, {"V", V}, {"K", K}}, &d_log);
    } else {
      checks.shape(state, {{"S"}, {"HV", HV}, {"K", K}, {"V", V}}, &d_log);
    }
    for (const TensorInfo* t : {&state, &k_log, &d_log}) checks.last_contiguous(*t);
    pool_slots(checks, state_indices, state, k_log, N);
    if (i > 0 && state.size(0) != states[0].size(0)) {
      checks.fail(state.name() + " must have the S=" + std::to_string(states[0].size(0)) + " slots of " +
                  states[0].name() + "; got " + text_of(state.sizes));
    }
    written.push_back(&state);
    for (const TensorInfo* t : {&k_log, &d_log, &g_log}) read.push_back(t);
    layers.push_back({state_view(state, value_major), {view<3>(g_log), view<4>(k_log), view<4>(d_log)}});
  }
  checks.writable(written, read);
  params.layers = layers.data();
  params.num_layers = static_cast<int64_t>(layers.size());

  request.op = row;
  request.sequences = params.window.sequences;
  request.tokens = params.window.tokens;
  request.layers = params.num_layers;
  if (!states.empty()) {
    request.key_heads = params.heads.key_heads;
    request.value_heads = params.heads.value_heads;
    request.key_dim = params.heads.key_dim;
    request.value_dim = params.heads.value_dim;
  }
  request.dtype = DType::f32;
  request.head_map = params.heads.head_map;
  request.layout = value_major ? policy::Layout::vk : policy::Layout::kv;
}

namespace {

// All layers at once, or, where the decision says so, one after another.
template <class Params, class F>
void launch_layers(const Launch& launch, Params params, F f) {
  if (launch.decision().batched) return launch.accepted(f(params));
  const auto* const end = params.layers + params.num_layers;
  for (params.num_layers = 1; params.layers != end; ++params.layers) launch.accepted(f(params));
}

void run_commit(const Launch& launch, const CommitParams& params) {
  if (launch.on_cpu()) return cpu::commit_cpu(params, launch.isa(), torch_parallel());
#if defined(GDN_WITH_GPU)
  const int warps = tile_warps(launch.decision(), params.heads.key_dim);
  launch_layers(launch, params, [&](const CommitParams& some) { return gpu::commit(some, warps, launch.stream()); });
#endif
}

void run_commit(const Launch& launch, const ConvCommitParams& params) {
  if (launch.on_cpu()) return cpu::conv_commit_cpu(params, launch.isa(), torch_parallel());
#if defined(GDN_WITH_GPU)
  launch_layers(launch, params, [&](const ConvCommitParams& some) { return gpu::conv_commit(some, launch.stream()); });
#endif
}

// Lists with an entry a layer.
void same_length(const Checks& checks, const char* name, size_t length, size_t states) {
  if (length == states) return;
  checks.fail(std::string(name) + " must have as many entries as states (" + std::to_string(states) + "); got " +
              std::to_string(length));
}

}  // namespace

void gated_delta_rule_commit_(Backend backend, Tensor state, const Tensor& k_log, const Tensor& d_log,
                              const Tensor& g_log, const Tensor& accepted, OptionalTensor state_indices,
                              OptionalTensor path, std::string head_map, std::string state_layout) {
  constexpr const char* op = "gated_delta_rule_commit_";
  const CommitCall call(op, policy::Op::commit, {info("state", state)}, {info("k_log", k_log)}, {info("d_log", d_log)},
                        {info("g_log", g_log)}, info("accepted", accepted), info("state_indices", state_indices),
                        info("path", path), head_map, state_layout);
  const ValueChecks values(call.checks);
  values.state_indices(state_indices, state.size(0), true);
  values.accepted(accepted, path, call.params.window.tokens);
  const Launch launch(op, backend, info("state", state).device_index, call.request);
  run_commit(launch, call.params);
  launch.count();
}

void gated_delta_rule_commit_layers_(Backend backend, std::vector<Tensor> states, std::vector<Tensor> k_logs,
                                     std::vector<Tensor> d_logs, std::vector<Tensor> g_logs, const Tensor& accepted,
                                     OptionalTensor state_indices, OptionalTensor path, std::string head_map,
                                     std::string state_layout) {
  constexpr const char* op = "gated_delta_rule_commit_layers_";
  const Checks checks(op);
  same_length(checks, "k_logs", k_logs.size(), states.size());
  same_length(checks, "d_logs", d_logs.size(), states.size());
  same_length(checks, "g_logs", g_logs.size(), states.size());
  const CommitCall call(op, policy::Op::commit_layers, infos("states", states), infos("k_logs", k_logs),
                        infos("d_logs", d_logs), infos("g_logs", g_logs), info("accepted", accepted),
                        info("state_indices", state_indices), info("path", path), head_map, state_layout);
  if (states.empty()) return;
  const ValueChecks values(call.checks);
  values.state_indices(state_indices, states[0].size(0), true);
  values.accepted(accepted, path, call.params.window.tokens);
  const Launch launch(op, backend, info("states", states[0]).device_index, call.request);
  run_commit(launch, call.params);
  launch.count();
}

namespace {

// causal_conv1d_commit_ and its form for all layers.
void conv_commit(const char* op, Backend backend, const std::vector<TensorInfo>& states,
                 const std::vector<TensorInfo>& xs, const Tensor& accepted, const OptionalTensor& state_indices,
                 const OptionalTensor& path) {
  const Checks checks(op);
  ConvCommitParams params;
  std::vector<ConvCommitLayer> layers;
  std::vector<const TensorInfo*> written, read;
  const auto indices = info("state_indices", state_indices);
  for (size_t i = 0; i < states.size(); ++i) {
    const TensorInfo &state = states[i], &x = xs[i];
    checks.device(state, xs[0]);
    checks.device(x, xs[0]);
    checks.floating(x);
    checks.conv_state_type(state, x);
    if (i == 0) {
      checks.shape(x, {{"N"}, {"T"}, {"C"}});
      params.accepted =
          accepted_window(checks, x.size(0), x.size(1), x, info("accepted", accepted), indices, info("path", path));
      params.channels = x.size(2);
    } else {
      checks.same_shape(x, xs[0]);
      checks.same_type(x, xs[0]);
    }
    checks.shape(state, {{"S"}, {"C", params.channels}, {"L"}}, &x);
    if (i > 0) {
      checks.same_shape(state, states[0]);
      checks.same_type(state, states[0]);
    }
    checks.last_contiguous(state);
    checks.last_contiguous(x);
    pool_slots(checks, indices, state, x, params.accepted.sequences);
    written.push_back(&state);
    read.push_back(&x);
    layers.push_back({out_view<3>(state), view<3>(x)});
  }
  checks.writable(written, read);
  if (states.empty()) return;
  const ValueChecks values(checks);
  values.state_indices(state_indices, states[0].size(0), true);
  values.accepted(accepted, path, params.accepted.tokens);

  params.window = states[0].size(2);
  params.slots = states[0].size(0);
  params.layers = layers.data();
  params.num_layers = static_cast<int64_t>(layers.size());
  policy::Request request;
  request.op = policy::Op::conv_commit;
  request.sequences = params.accepted.sequences;
  request.tokens = params.accepted.tokens;
  request.layers = params.num_layers;
  request.dtype = xs[0].dtype();
  const Launch launch(op, backend, xs[0].device_index, request);
  run_commit(launch, params);
  launch.count();
}

}  // namespace

void causal_conv1d_commit_(Backend backend, Tensor state, const Tensor& x, const Tensor& accepted,
                           OptionalTensor state_indices, OptionalTensor path) {
  conv_commit("causal_conv1d_commit_", backend, {info("state", state)}, {info("x", x)}, accepted, state_indices, path);
}

void causal_conv1d_commit_layers_(Backend backend, std::vector<Tensor> states, std::vector<Tensor> xs,
                                  const Tensor& accepted, OptionalTensor state_indices, OptionalTensor path) {
  constexpr const char* op = "causal_conv1d_commit_layers_";
  same_length(Checks(op), "xs", xs.size(), states.size());
  conv_commit(op, backend, infos("states", states), infos("xs", xs), accepted, state_indices, path);
}

}  // namespace gdn::api
