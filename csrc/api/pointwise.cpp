#include "api/pointwise.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "api/ops.h"
#include "cpu/cpu.h"

#if defined(GDN_WITH_GPU)
#include "cuda/launch.h"
#endif

namespace gdn::api {
namespace {

constexpr int64_t kMaxRank = 4;

// The dimensions before the last, padded in front with 1.
void leading_sizes(const TensorInfo& t, int64_t (&size)[kMaxRank - 1]) {
  std::fill(std::begin(size), std::end(size), 1);
  for (int64_t i = 0; i + 1 < t.rank(); ++i) size[kMaxRank - t.rank() + i] = t.size(i);
}

// A contiguous tensor of `like`'s shape.
Tensor empty_like(const Tensor& like, ScalarType type) { return empty(like, like.sizes(), type); }

policy::Request pointwise_request(policy::Op op, const TensorInfo& t) {
  policy::Request request;
  request.op = op;
  request.tokens = t.rank() > 2 ? t.size(t.rank() - 3) : 1;
  request.sequences = 1;
  request.dtype = t.dtype();
  return request;
}

void run_l2norm(const Launch& launch, const L2NormParams& q, const L2NormParams& k) {
  if (launch.on_cpu()) {
    cpu::l2norm_cpu(q, launch.isa(), torch_parallel());
    cpu::l2norm_cpu(k, launch.isa(), torch_parallel());
    return;
  }
#if defined(GDN_WITH_GPU)
  launch.accepted(gpu::qk_l2norm(q, k, launch.stream()));
#endif
}

L2NormParams l2norm_params(const TensorInfo& x, const Tensor& y, double eps) {
  L2NormParams params;
  leading_sizes(x, params.size);
  params.n = x.size(x.rank() - 1);
  params.x = view<4>(x);
  params.y = out_view<4>(y);
  params.eps = static_cast<float>(eps);
  return params;
}

}  // namespace

void run_gates(const Launch& launch, const GatesParams& params) {
  if (launch.on_cpu()) return cpu::gates_cpu(params, launch.isa(), torch_parallel());
#if defined(GDN_WITH_GPU)
  launch.accepted(gpu::gdn_gates(params, launch.stream()));
#endif
}

void run_norm(const Launch& launch, const NormParams& params) {
  if (launch.on_cpu()) return cpu::norm_cpu(params, launch.isa(), torch_parallel());
#if defined(GDN_WITH_GPU)
  launch.accepted(gpu::gated_rms_norm(params, launch.stream()));
#endif
}

GatesCall::GatesCall(const char* op, const TensorInfo& a, const TensorInfo& b, const TensorInfo& A_log,
                     const TensorInfo& dt_bias, bool allow_neg_eigval)
    : checks(op) {
  for (const TensorInfo* t : {&b, &A_log, &dt_bias}) checks.device(*t, a);
  for (const TensorInfo* t : {&a, &b, &A_log, &dt_bias}) checks.floating(*t);
  checks.rank(a, 1, kMaxRank, "[..., HV] with 1 to 4 dimensions");
  checks.same_shape(b, a);
  const int64_t HV = a.size(a.rank() - 1);
  checks.shape(A_log, {{"HV", HV}}, &a);
  checks.shape(dt_bias, {{"HV", HV}}, &a);
  checks.last_contiguous(A_log);
  checks.last_contiguous(dt_bias);
  leading_sizes(a, params.size);
  params.value_heads = HV;
  params.a = view<4>(a);
  params.b = view<4>(b);
  params.A_log = view<1>(A_log);
  params.dt_bias = view<1>(dt_bias);
  params.allow_neg_eigval = allow_neg_eigval;
  request = pointwise_request(policy::Op::gates, a);
  request.value_heads = HV;
}

void GatesCall::output(const Tensor& g, const Tensor& beta) {
  params.g = out_view<4>(g);
  params.beta = out_view<4>(beta);
}

NormCall::NormCall(const char* op, const TensorInfo& o, const TensorInfo& z, const TensorInfo& weight,
                   Option<double> eps, Option<std::string_view> activation)
    : checks(op) {
  checks.device(z, o);
  checks.device(weight, o);
  for (const TensorInfo* t : {&o, &z, &weight}) checks.floating(*t);
  checks.rank(o, 1, kMaxRank, "[..., V] with 1 to 4 dimensions");
  checks.same_shape(z, o);
  const int64_t V = o.size(o.rank() - 1);
  checks.head_dim("V", V, o);
  checks.shape(weight, {{"V", V}}, &o);
  for (const TensorInfo* t : {&o, &z, &weight}) checks.last_contiguous(*t);
  leading_sizes(o, params.size);
  params.n = V;
  params.o = view<4>(o);
  params.z = view<4>(z);
  params.weight = view<1>(weight);
  checks.epsilon(eps.name, eps.value);
  params.eps = static_cast<float>(eps.value);
  params.activation = checks.activation(activation.name, activation.value, Activation::sigmoid);
  request = pointwise_request(policy::Op::norm, o);
  request.value_dim = V;
}

std::tuple<Tensor, Tensor> qk_l2norm(Backend backend, const Tensor& q, const Tensor& k, double eps) {
  constexpr const char* op = "qk_l2norm";
  const Checks checks(op);
  const TensorInfo q_info = info("q", q), k_info = info("k", k);
  checks.device(k_info, q_info);
  for (const TensorInfo* t : {&q_info, &k_info}) {
    checks.floating(*t);
    checks.rank(*t, 1, kMaxRank, "[..., K] with 1 to 4 dimensions");
    checks.head_dim("K", t->size(t->rank() - 1), *t);
    checks.last_contiguous(*t);
  }
  checks.epsilon("eps", eps);
  policy::Request request = pointwise_request(policy::Op::qk_l2norm, q_info);
  request.key_dim = q_info.size(q_info.rank() - 1);
  const Launch launch(op, backend, q_info.device_index, request);
  Tensor q_normalised = empty_like(q, q.scalar_type()), k_normalised = empty_like(k, k.scalar_type());
  run_l2norm(launch, l2norm_params(q_info, q_normalised, eps), l2norm_params(k_info, k_normalised, eps));
  launch.count();
  return {q_normalised, k_normalised};
}

std::tuple<Tensor, Tensor> gdn_gates(Backend backend, const Tensor& a, const Tensor& b, const Tensor& A_log,
                                     const Tensor& dt_bias, bool allow_neg_eigval) {
  constexpr const char* op = "gdn_gates";
  GatesCall call(op, info("a", a), info("b", b), info("A_log", A_log), info("dt_bias", dt_bias), allow_neg_eigval);
  const Launch launch(op, backend, info("a", a).device_index, call.request);
  Tensor g = empty_like(a, ScalarType::Float), beta = empty_like(a, ScalarType::Float);
  call.output(g, beta);
  run_gates(launch, call.params);
  launch.count();
  return {g, beta};
}

Tensor gated_rms_norm(Backend backend, const Tensor& o, const Tensor& z, const Tensor& weight, double eps,
                      std::string activation, std::optional<ScalarType> dtype) {
  constexpr const char* op = "gated_rms_norm";
  NormCall call(op, info("o", o), info("z", z), info("weight", weight), {"eps", eps}, {"activation", activation});
  const ScalarType type = dtype.value_or(o.scalar_type());
  if (type != ScalarType::Float && type != ScalarType::BFloat16 && type != ScalarType::Half) {
    call.checks.fail(std::string("dtype must be float32, bfloat16 or float16; got ") + name_of(type));
  }
  const Launch launch(op, backend, info("o", o).device_index, call.request);
  Tensor y = empty_like(o, type);
  call.output(y);
  run_norm(launch, call.params);
  launch.count();
  return y;
}

}  // namespace gdn::api
