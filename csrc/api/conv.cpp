#include "api/conv.h"

#include "api/ops.h"
#include "api/sequences.h"
#include "api/values.h"
#include "cpu/cpu.h"

#if defined(GDN_WITH_GPU)
#include "cuda/launch.h"
#endif

namespace gdn::api {

ConvCall::ConvCall(const char* op, const TensorInfo& x, const TensorInfo& weight, const std::optional<TensorInfo>& bias,
                   const std::string& activation)
    : checks(op), x(x), weight(weight), bias(bias), counted(x) {
  checks.device(weight, x);
  checks.floating(x);
  checks.floating(weight);
  checks.shape(x, {{"B"}, {"T"}, {"C"}});
  const int64_t C = x.size(2);
  checks.shape(weight, {{"C", C}, {"W"}}, &x);
  if (weight.size(1) < 1) checks.fail(weight.name() + " must have at least one tap; got " + text_of(weight.sizes));
  if (bias) {
    checks.device(*bias, x);
    checks.floating(*bias);
    checks.shape(*bias, {{"C", C}}, &x);
    checks.last_contiguous(*bias);
  }
  checks.last_contiguous(x);
  checks.last_contiguous(weight);

  params.activation = checks.activation("activation", activation, Activation::none);
  params.shape.sequences = x.size(0);
  params.shape.tokens = x.size(1);
  params.channels = C;
  params.width = weight.size(1);
  params.x = view<3>(x);
  params.weight = view<2>(weight);
  params.bias = view<1>(bias);

  request.op = policy::Op::conv;
  request.sequences = x.size(0);
  request.tokens = x.size(1);
  request.dtype = x.dtype();
  request.alignment_bytes = alignment_bytes({&x});
}

void ConvCall::cu_seqlens(const std::optional<TensorInfo>& bounds) {
  if (!bounds) return;
  params.shape.sequences = packed_sequences(checks, *bounds, x);
  counted = *bounds;
  params.shape.cu_seqlens = index_view<1>(bounds);
  request.sequences = params.shape.sequences;
  request.tokens = mean_rounded_up(params.shape.tokens, params.shape.sequences);
}

void ConvCall::states(const TensorInfo& state, Dim count) {
  checks.device(state, x);
  checks.conv_state_type(state, x);
  checks.shape(state, {count, {"C", params.channels}, {"L"}}, &x);
  if (state.size(2) < params.width - 1) {
    checks.fail(state.name() + " must be [" + count.symbol +
                ", C, L] with L at least W-1=" + std::to_string(params.width - 1) + "; got " + text_of(state.sizes));
  }
  checks.last_contiguous(state);
  params.window = state.size(2);
  params.slots = state.size(0);
  params.state_in = view<3>(state);
}

void ConvCall::pool(const TensorInfo& state, const std::optional<TensorInfo>& state_indices, bool written) {
  states(state, {"S"});
  params.state_indices = pool_slots(checks, state_indices, state, counted, sequences());
  if (!written) return;
  std::vector<const TensorInfo*> read = {&x, &weight};
  if (bias) read.push_back(&*bias);
  checks.writable({&state}, read);
  params.state_out = out_view<3>(state);
}

void ConvCall::initial_state(const TensorInfo& state) { states(state, {"N", sequences()}); }

void ConvCall::has_initial_state(const std::optional<TensorInfo>& flags) {
  params.has_initial_state = initial_state_flags(checks, flags, counted, sequences());
}

void ConvCall::verify_window(const std::optional<TensorInfo>& parents) {
  params.parents = api::verify_window(checks, parents, x, sequences(), params.shape.tokens);
  request.op = policy::Op::conv_verify;
}

void run_convolution(const Launch& launch, const ConvCall& call) {
  if (launch.on_cpu()) return cpu::conv_cpu(call.params, launch.isa(), torch_parallel());
#if defined(GDN_WITH_GPU)
  launch.accepted(gpu::causal_conv1d(call.params, launch.stream()));
#endif
}

std::tuple<Tensor, Tensor> causal_conv1d(Backend backend, const Tensor& x, const Tensor& weight, OptionalTensor bias,
                                         OptionalTensor initial_state, OptionalTensor cu_seqlens,
                                         std::string activation) {
  constexpr const char* op = "causal_conv1d";
  ConvCall call(op, info("x", x), info("weight", weight), info("bias", bias), activation);
  call.cu_seqlens(info("cu_seqlens", cu_seqlens));
  const auto initial = info("initial_state", initial_state);
  call.params.window = call.params.width - 1;
  call.params.slots = call.sequences();
  if (initial) call.initial_state(*initial);
  ValueChecks(call.checks).cu_seqlens(cu_seqlens, call.params.shape.tokens);

  const Launch launch(op, backend, call.x.device_index, call.request);
  Tensor y = empty_rows(x, {x.size(0), x.size(1), x.size(2)}, call.sequences());
  Tensor final_state = empty(x, {call.sequences(), call.params.channels, call.params.window},
                             initial ? initial_state->scalar_type() : x.scalar_type());
  call.output(y);
  call.params.state_out = out_view<3>(final_state);
  run_convolution(launch, call);
  launch.count();
  return {y, final_state};
}

Tensor causal_conv1d_(Backend backend, const Tensor& x, const Tensor& weight, OptionalTensor bias, Tensor state,
                      OptionalTensor state_indices, OptionalTensor cu_seqlens, OptionalTensor has_initial_state,
                      std::string activation) {
  constexpr const char* op = "causal_conv1d_";
  ConvCall call(op, info("x", x), info("weight", weight), info("bias", bias), activation);
  call.cu_seqlens(info("cu_seqlens", cu_seqlens));
  call.pool(info("state", state), info("state_indices", state_indices), true);
  call.has_initial_state(info("has_initial_state", has_initial_state));
  const ValueChecks values(call.checks);
  values.state_indices(state_indices, state.size(0), true);
  values.cu_seqlens(cu_seqlens, call.params.shape.tokens);

  const Launch launch(op, backend, call.x.device_index, call.request);
  Tensor y = empty_rows(x, {x.size(0), x.size(1), x.size(2)}, call.sequences());
  call.output(y);
  run_convolution(launch, call);
  launch.count();
  return y;
}

Tensor causal_conv1d_verify(Backend backend, const Tensor& x, const Tensor& weight, OptionalTensor bias,
                            const Tensor& state, OptionalTensor state_indices, OptionalTensor parents,
                            std::string activation) {
  constexpr const char* op = "causal_conv1d_verify";
  ConvCall call(op, info("x", x), info("weight", weight), info("bias", bias), activation);
  call.pool(info("state", state), info("state_indices", state_indices), false);
  call.verify_window(info("parents", parents));
  const ValueChecks values(call.checks);
  values.state_indices(state_indices, state.size(0), false);
  values.parents(parents);

  const Launch launch(op, backend, call.x.device_index, call.request);
  Tensor y = empty_rows(x, {x.size(0), x.size(1), x.size(2)}, call.sequences());
  call.output(y);
  run_convolution(launch, call);
  launch.count();
  return y;
}

}  // namespace gdn::api
