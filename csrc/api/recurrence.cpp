#include "api/recurrence.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "api/ops.h"
#include "api/sequences.h"
#include "api/values.h"
#include "core/chunk_shapes.h"
#include "cpu/cpu.h"

namespace gdn::api {
policy::Precision parse_precision(const Checks& checks, const std::string& precision) {
  using policy::Precision;
  for (const Precision known : {Precision::automatic, Precision::exact, Precision::fp32, Precision::fast}) {
    if (precision == policy::name(known)) return known;
  }
  checks.fail("precision must be \"auto\", \"exact\", \"fp32\" or \"fast\"; got \"" + precision + "\"");
}

RecurrenceCall::RecurrenceCall(const char* op, policy::Op row, const RecurrenceOptions& options, const TensorInfo& q,
                               const TensorInfo& k, const TensorInfo& v, const TensorInfo& g, const TensorInfo& beta)
    : checks(op), q(q), k(k), v(v), g(g), beta(beta), counted(q) {
  for (const TensorInfo* t : {&k, &v, &g, &beta}) checks.device(*t, q);
  checks.floating(q);
  checks.same_type(k, q);
  checks.same_type(v, q);
  checks.float32(g);
  checks.floating(beta);
  checks.shape(q, {{"B"}, {"T"}, {"H"}, {"K"}});
  const int64_t B = q.size(0), T = q.size(1), H = q.size(2), K = q.size(3);
  checks.shape(k, {{"B", B}, {"T", T}, {"H", H}, {"K", K}}, &q);
  checks.shape(v, {{"B", B}, {"T", T}, {"HV"}, {"V"}}, &q);
  const int64_t HV = v.size(2), V = v.size(3);
  checks.heads(H, HV, q, v);
  checks.head_dim("K", K, q);
  checks.head_dim("V", V, v);
  checks.shape(g, {{"B", B}, {"T", T}, {"HV", HV}}, &v);
  checks.shape(beta, {{"B", B}, {"T", T}, {"HV", HV}}, &v);
  for (const TensorInfo* t : {&this->q, &this->k, &this->v}) checks.last_contiguous(*t);

  params.heads = {H, HV, K, V, checks.head_map(options.head_map)};
  value_major = checks.value_major(options.state_layout);
  params.shape.sequences = B;
  params.shape.tokens = T;
  params.q = view<4>(q);
  params.k = view<4>(k);
  params.v = view<4>(v);
  params.g = view<3>(g);
  params.beta = view<3>(beta);
  if (options.scale) checks.finite("scale", *options.scale);
  checks.epsilon("l2_eps", options.l2_eps);
  params.scale = static_cast<float>(options.scale.value_or(1.0 / std::sqrt(static_cast<double>(K))));
  params.qk_l2norm = options.qk_l2norm;
  params.l2_eps = static_cast<float>(options.l2_eps);

  request.op = row;
  request.sequences = B;
  request.tokens = T;
  request.key_heads = H;
  request.value_heads = HV;
  request.key_dim = K;
  request.value_dim = V;
  request.dtype = q.dtype();
  request.head_map = params.heads.head_map;
  request.layout = value_major ? policy::Layout::vk : policy::Layout::kv;
  request.precision = parse_precision(checks, options.precision);
  request.alignment_bytes = alignment_bytes({&q, &k, &v});
}

void RecurrenceCall::cu_seqlens(const std::optional<TensorInfo>& bounds) {
  if (!bounds) return;
  params.shape.sequences = packed_sequences(checks, *bounds, q);
  counted = *bounds;
  params.shape.cu_seqlens = index_view<1>(bounds);
  request.sequences = params.shape.sequences;
  request.tokens = mean_rounded_up(params.shape.tokens, params.shape.sequences);
}

void RecurrenceCall::states(const TensorInfo& state, Dim count) {
  const HeadShape& heads = params.heads;
  checks.device(state, q);
  checks.float32(state);
  if (value_major) {
    checks.shape(state, {count, {"HV", heads.value_heads}, {"V", heads.value_dim}, {"K", heads.key_dim}}, &v);
  } else {
    checks.shape(state, {count, {"HV", heads.value_heads}, {"K", heads.key_dim}, {"V", heads.value_dim}}, &v);
  }
  checks.last_contiguous(state);
  params.state_in = state_view(state, value_major);
  request.state_vectors = params.state_in.in_vectors();
}

void RecurrenceCall::pool(const TensorInfo& state, const std::optional<TensorInfo>& state_indices, bool written) {
  states(state, {"S"});
  params.state_indices = pool_slots(checks, state_indices, state, counted, sequences());
  if (!written) return;
  checks.writable({&state}, {&q, &k, &v, &g, &beta});
  params.state_out = params.state_in;
}

void RecurrenceCall::initial_state(const TensorInfo& state) { states(state, {"N", sequences()}); }

void RecurrenceCall::has_initial_state(const std::optional<TensorInfo>& flags) {
  params.has_initial_state = initial_state_flags(checks, flags, counted, sequences());
}

void RecurrenceCall::verify_window(const std::optional<TensorInfo>& parents) {
  params.parents = api::verify_window(checks, parents, q, sequences(), params.shape.tokens);
  request.tree = static_cast<bool>(params.parents);
}

Logs allocate_logs(RecurrenceCall& call, const Tensor& like) {
  const HeadShape& heads = call.params.heads;
  const int64_t N = call.params.shape.sequences, T = call.params.shape.tokens;
  Logs logs{empty(like, {N, T, heads.key_heads, heads.key_dim}, ScalarType::Float),
            empty(like, {N, T, heads.value_heads, heads.value_dim}, ScalarType::Float),
            empty(like, {N, T, heads.value_heads}, ScalarType::Float)};
  call.params.logs = {out_view<3>(logs.g), out_view<4>(logs.k), out_view<4>(logs.d)};
  return logs;
}

int tile_warps(const policy::Decision& decision, int64_t key_dim) {
  return static_cast<int>(decision.columns * key_dim / kTileValues);
}

#if defined(GDN_WITH_GPU)
namespace {

bool packed_rows(const policy::Request& request) {
  constexpr int32_t vector_bytes = 16;
  return request.alignment_bytes >= vector_bytes;
}

}  // namespace

gpu::StepLaunch step_launch(const policy::Decision& decision, const policy::Request& request) {
  return {tile_warps(decision, request.key_dim), decision.heads, packed_rows(request), decision.early};
}
#endif

void run_recurrence(const Launch& launch, const RecurrenceCall& call) {
  if (launch.on_cpu()) return cpu::rec_cpu(call.params, launch.isa(), torch_parallel());
#if defined(GDN_WITH_GPU)
  const policy::Decision& decision = launch.decision();
  const gpu::RecLaunch how = {decision.heads, decision.columns, packed_rows(call.request), decision.pipelined};
  if (decision.kernel == "rec_keyhead") return launch.accepted(gpu::rec_keyhead(call.params, how, launch.stream()));
  if (decision.kernel == "rec_columns") return launch.accepted(gpu::rec_columns(call.params, how, launch.stream()));
#if defined(GDN_WITH_HIP)
  if (decision.kernel == "rec_lanes") return launch.accepted(gpu::rec_lanes(call.params, how, launch.stream()));
#endif
  launch.accepted(gpu::step(call.params, step_launch(decision, call.request), launch.stream()));
#endif
}

void run_prompt(const Launch& launch, Backend backend, RecurrenceCall& call, const Tensor& like) {
  if (launch.decision().kernel != "chunk_fp32") {
    run_recurrence(launch, call);
    return launch.count();
  }
#if defined(GDN_WITH_CUDA)
  const int64_t chunks = std::max<int64_t>(1, chunk::window_chunks(call.params.heads, call.params.shape));
  const int64_t floats = chunks * chunk::layout(call.params.heads).floats;
  std::optional<Tensor> work;
  try {
    work = empty(like, {floats}, ScalarType::Float);
  } catch (const std::runtime_error&) {
    if (call.request.precision == policy::Precision::fp32) throw;
    call.request.work_buffer = false;
    const Launch next(launch.op(), backend, call.q.device_index, call.request);
    policy::report_refused(launch.op(), launch.decision(), floats * static_cast<int64_t>(sizeof(float)),
                           next.decision());
    run_recurrence(next, call);
    return next.count();
  }
  const gpu::ChunkLaunch how = {launch.decision().heads, packed_rows(call.request), launch.decision().pipelined, chunks,
                                static_cast<float*>(work->data_ptr())};
  launch.accepted(gpu::chunk_fp32(call.params, how, launch.stream()));
  launch.count();
#else
  (void)backend, (void)like;
#endif
}

void run_verify(const Launch& launch, const RecurrenceCall& call) {
  if (launch.on_cpu()) return cpu::verify_cpu(call.params, launch.isa(), torch_parallel());
#if defined(GDN_WITH_GPU)
  const gpu::StepLaunch how = step_launch(launch.decision(), call.request);
  launch.accepted(call.params.parents ? gpu::verify_tree(call.params, how, launch.stream())
                                      : gpu::verify(call.params, how, launch.stream()));
#endif
}

void run_normed(const Launch& launch, const RecurrenceCall& call, const NormParams& norm) {
#if defined(GDN_WITH_GPU)
  const gpu::StepLaunch how = step_launch(launch.decision(), call.request);
  launch.accepted(call.params.state_out ? gpu::step_norm(call.params, norm, how, launch.stream())
                                        : gpu::verify_norm(call.params, norm, how, launch.stream()));
#else
  (void)launch, (void)call, (void)norm;
#endif
}

namespace {

void run_commit_verify(const Launch& launch, const CommitParams& commit, const RecurrenceCall& call) {
  if (launch.on_cpu()) return cpu::commit_verify_cpu(commit, call.params, launch.isa(), torch_parallel());
#if defined(GDN_WITH_GPU)
  const gpu::StepLaunch how = step_launch(launch.decision(), call.request);
  if (!call.params.parents) {
    return launch.accepted(gpu::commit_verify(commit, call.params, how, launch.stream()));
  }
  launch.accepted(gpu::commit(commit, how.warps, launch.stream()));
  launch.accepted(gpu::verify_tree(call.params, how, launch.stream()));
#endif
}

}  // namespace

std::tuple<Tensor, Tensor> gated_delta_rule(Backend backend, const Tensor& q, const Tensor& k, const Tensor& v,
                                            const Tensor& g, const Tensor& beta, OptionalTensor initial_state,
                                            OptionalTensor cu_seqlens, std::optional<double> scale, bool qk_l2norm,
                                            double l2_eps, std::string head_map, std::string state_layout,
                                            std::string precision) {
  RecurrenceCall call("gated_delta_rule", policy::Op::gated_delta_rule,
                      {scale, qk_l2norm, l2_eps, head_map, state_layout, precision}, info("q", q), info("k", k),
                      info("v", v), info("g", g), info("beta", beta));
  call.cu_seqlens(info("cu_seqlens", cu_seqlens));
  const auto initial = info("initial_state", initial_state);
  if (initial) call.initial_state(*initial);
  ValueChecks(call.checks).cu_seqlens(cu_seqlens, call.params.shape.tokens);

  const Launch launch("gated_delta_rule", backend, call.q.device_index, call.request);
  const HeadShape& heads = call.params.heads;
  Tensor o = empty_rows(q, {v.size(0), v.size(1), v.size(2), v.size(3)}, call.sequences());
  Tensor final_state =
      call.value_major
          ? empty(q, {call.sequences(), heads.value_heads, heads.value_dim, heads.key_dim}, ScalarType::Float)
          : empty(q, {call.sequences(), heads.value_heads, heads.key_dim, heads.value_dim}, ScalarType::Float);
  call.output(o);
  call.params.state_out = state_view(info("final_state", final_state), call.value_major);
  run_prompt(launch, backend, call, q);
  return {o, final_state};
}

Tensor gated_delta_rule_(Backend backend, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                         const Tensor& beta, Tensor state, OptionalTensor state_indices, OptionalTensor cu_seqlens,
                         OptionalTensor has_initial_state, std::optional<double> scale, bool qk_l2norm, double l2_eps,
                         std::string head_map, std::string state_layout, std::string precision) {
  RecurrenceCall call("gated_delta_rule_", policy::Op::gated_delta_rule,
                      {scale, qk_l2norm, l2_eps, head_map, state_layout, precision}, info("q", q), info("k", k),
                      info("v", v), info("g", g), info("beta", beta));
  call.cu_seqlens(info("cu_seqlens", cu_seqlens));
  call.pool(info("state", state), info("state_indices", state_indices), true);
  call.has_initial_state(info("has_initial_state", has_initial_state));
  const ValueChecks values(call.checks);
  values.state_indices(state_indices, state.size(0), true);
  values.cu_seqlens(cu_seqlens, call.params.shape.tokens);

  const Launch launch("gated_delta_rule_", backend, call.q.device_index, call.request);
  Tensor o = empty_rows(q, {v.size(0), v.size(1), v.size(2), v.size(3)}, call.sequences());
  call.output(o);
  run_prompt(launch, backend, call, q);
  return o;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> gated_delta_rule_verify(Backend backend, const Tensor& q, const Tensor& k,
                                                                   const Tensor& v, const Tensor& g, const Tensor& beta,
                                                                   const Tensor& state, OptionalTensor state_indices,
                                                                   OptionalTensor parents, std::optional<double> scale,
                                                                   bool qk_l2norm, double l2_eps, std::string head_map,
                                                                   std::string state_layout) {
  RecurrenceCall call("gated_delta_rule_verify", policy::Op::verify,
                      {scale, qk_l2norm, l2_eps, head_map, state_layout, "exact"}, info("q", q), info("k", k),
                      info("v", v), info("g", g), info("beta", beta));
  call.pool(info("state", state), info("state_indices", state_indices), false);
  call.verify_window(info("parents", parents));
  const ValueChecks values(call.checks);
  values.state_indices(state_indices, state.size(0), false);
  values.parents(parents);

  const Launch launch("gated_delta_rule_verify", backend, call.q.device_index, call.request);
  Tensor o = empty_rows(q, {v.size(0), v.size(1), v.size(2), v.size(3)}, call.sequences());
  call.output(o);
  const Logs logs = allocate_logs(call, q);
  run_verify(launch, call);
  launch.count();
  return {o, logs.k, logs.d, logs.g};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> gated_delta_rule_commit_verify_(
    Backend backend, Tensor state, const Tensor& k_log, const Tensor& d_log, const Tensor& g_log,
    const Tensor& accepted, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta,
    OptionalTensor state_indices, OptionalTensor path, OptionalTensor parents, std::optional<double> scale,
    bool qk_l2norm, double l2_eps, std::string head_map, std::string state_layout) {
  constexpr const char* op = "gated_delta_rule_commit_verify_";
  RecurrenceCall call(op, policy::Op::commit_verify, {scale, qk_l2norm, l2_eps, head_map, state_layout, "exact"},
                      info("q", q), info("k", k), info("v", v), info("g", g), info("beta", beta));
  call.pool(info("state", state), info("state_indices", state_indices), false);
  call.verify_window(info("parents", parents));
  const TensorInfo last_k = info("k_log", k_log), last_d = info("d_log", d_log);
  for (const TensorInfo* t : {&last_k, &last_d}) call.checks.device(*t, call.q);
  const HeadShape& heads = call.params.heads;
  call.checks.shape(last_k, {{"N", call.sequences()}, {"T"}, {"H", heads.key_heads}, {"K", heads.key_dim}}, &call.q);
  call.checks.shape(last_d, {{"N", call.sequences()}, {"T"}, {"HV", heads.value_heads}, {"V", heads.value_dim}},
                    &call.v);
  const CommitCall commit(op, policy::Op::commit, {info("state", state)}, {last_k}, {last_d}, {info("g_log", g_log)},
                          info("accepted", accepted), info("state_indices", state_indices), info("path", path),
                          head_map, state_layout);
  const TensorInfo written = info("state", state);
  call.checks.writable({&written}, {&call.q, &call.k, &call.v, &call.g, &call.beta});
  const ValueChecks values(call.checks);
  values.state_indices(state_indices, state.size(0), true);
  values.parents(parents);
  values.accepted(accepted, path, commit.params.window.tokens);

  const Launch launch(op, backend, call.q.device_index, call.request);
  Tensor o = empty_rows(q, {v.size(0), v.size(1), v.size(2), v.size(3)}, call.sequences());
  call.output(o);
  const Logs logs = allocate_logs(call, q);
  run_commit_verify(launch, commit.params, call);
  launch.count();
  return {o, logs.k, logs.d, logs.g};
}

}  // namespace gdn::api
