// gdn_decode_layer_ and gdn_verify_layer: a layer between its projections, bit for bit
// causal_conv1d_ -> gdn_gates -> gated_delta_rule_ (qk_l2norm) -> gated_rms_norm; on a GPU in one to three launches.

#include <torch/csrc/stable/ops.h>

#include <array>
#include <vector>

#include "api/conv.h"
#include "api/ops.h"
#include "api/pointwise.h"
#include "api/recurrence.h"
#include "api/values.h"

#if defined(GDN_WITH_GPU)
#include "cuda/launch.h"
#endif

namespace gdn::api {
namespace {

struct LayerArguments {
  const Tensor &qkv, &z, &a, &b, &conv_weight;
  const OptionalTensor& conv_bias;
  const Tensor &A_log, &dt_bias, &norm_weight, &conv_state, &state;
  const OptionalTensor &state_indices, &parents;
  int64_t num_key_heads;
  std::optional<double> scale;
  double l2_eps, norm_eps;
  bool allow_neg_eigval;
  const std::string &head_map, &state_layout, &norm_activation;
};

// A tensor that does not exist yet: heads of a contiguous [N, T, channels] one from channel `first` on.
struct PackedHeads {
  std::array<int64_t, 4> sizes;
  std::array<int64_t, 4> strides;
  TensorInfo info;

  PackedHeads(const char* argument, const TensorInfo& like, int64_t first, int64_t heads, int64_t dim) {
    const int64_t N = like.size(0), T = like.size(1), C = like.size(2);
    sizes = {N, T, heads, dim};
    strides = {T * C, C, dim, 1};
    info = like;
    info.argument = argument;
    info.data = reinterpret_cast<void*>(first * like.element_bytes());  // an offset until place() adds the address
    info.sizes = {sizes.data(), 4};
    info.strides = {strides.data(), 4};
  }
  PackedHeads(const PackedHeads&) = delete;

  View<4> place(const Tensor& packed) {
    info.data = static_cast<char*>(packed.data_ptr()) + reinterpret_cast<intptr_t>(info.data);
    return view<4>(info);
  }
};

struct LayerResult {
  Tensor y;
  std::optional<Logs> logs;
};

struct LayerShape {
  int64_t N, T, H, HV, K, V;
};

// K follows from qkv's channels: C = 2 H K + HV V.
LayerShape layer_shape(const Checks& checks, const TensorInfo& qkv, const TensorInfo& z, int64_t num_key_heads) {
  checks.device(z, qkv);
  checks.floating(qkv);
  checks.floating(z);
  checks.shape(qkv, {{"N"}, {"T"}, {"C"}});
  const int64_t N = qkv.size(0), T = qkv.size(1), C = qkv.size(2), H = num_key_heads;
  checks.shape(z, {{"N", N}, {"T", T}, {"HV"}, {"V"}}, &qkv);
  const int64_t HV = z.size(2), V = z.size(3);
  checks.head_dim("V", V, z);
  if (T < 1 || T > kMaxLayerTokens) {
    checks.fail("qkv must be [N, T, C] with T from 1 to " + std::to_string(kMaxLayerTokens) + "; got " +
                text_of(qkv.sizes));
  }
  if (HV < 1) checks.fail("z must have at least one head; got " + text_of(z.sizes));
  if (H < 1 || HV % H != 0) {
    checks.fail("num_key_heads must be a divisor of the HV=" + std::to_string(HV) + " heads of z; got " +
                std::to_string(H));
  }
  // No product here exceeds C, so none overflows.
  const int64_t key_channels = HV <= C / V ? C - HV * V : 0, K = key_channels / H / 2;
  if (!checks.is_head_dim(K) || key_channels != 2 * H * K) {
    checks.fail("qkv must have C = 2*H*K + HV*V channels with H=" + std::to_string(H) + ", HV=" + std::to_string(HV) +
                ", V=" + std::to_string(V) + " and K one of 64, 128 and 256; got C=" + std::to_string(C));
  }
  return {N, T, H, HV, K, V};
}

void run_conv_gates(const Launch& launch, const ConvCall& conv, const GatesCall& gates) {
  if (launch.on_cpu()) {
    run_convolution(launch, conv);
    run_gates(launch, gates.params);
    return;
  }
#if defined(GDN_WITH_GPU)
  launch.accepted(gpu::conv_gates(conv.params, gates.params, launch.stream()));
#endif
}

// The same with queries and keys normalised, as float32.
void run_conv_l2(const Launch& launch, const ConvCall& conv, const GatesCall& gates, RecurrenceCall& recurrence,
                 const Tensor& q, const Tensor& k) {
  recurrence.params.q = view<4>(info("q", q));
  recurrence.params.k = view<4>(info("k", k));
  recurrence.params.qk_l2norm = false;
#if defined(GDN_WITH_HIP)
  launch.accepted(gpu::conv_l2(conv.params, gates.params, recurrence.params.heads, recurrence.params.l2_eps,
                               static_cast<float*>(q.data_ptr()), static_cast<float*>(k.data_ptr()), launch.stream()));
#else
  (void)launch, (void)conv, (void)gates;
#endif
}

void run_in_one_launch(const Launch& launch, const ConvCall& conv, const GatesCall& gates,
                       const RecurrenceCall& recurrence, const NormCall& norm) {
#if defined(GDN_WITH_GPU)
#if defined(GDN_WITH_CUDA)
  const auto kernel = recurrence.params.state_out ? gpu::decode_layer : gpu::verify_layer;
#else
  // decode_layer's blocks are a cluster, which RDNA has not: the registry gives it to no AMD card.
  if (recurrence.params.state_out) throw std::logic_error("decode_layer is a kernel of CUDA alone");
  const auto kernel = gpu::verify_layer;
#endif
  launch.accepted(kernel(conv.params, gates.params, recurrence.params, norm.params,
                         step_launch(launch.decision(), recurrence.request), launch.stream()));
#else
  (void)launch, (void)conv, (void)gates, (void)recurrence, (void)norm;
#endif
}

LayerResult run_layer(const char* op, Backend backend, const LayerArguments& in, bool verify) {
  const Checks checks(op);
  const TensorInfo qkv = info("qkv", in.qkv), z = info("z", in.z), conv_state = info("conv_state", in.conv_state),
                   state = info("state", in.state);
  const auto [N, T, H, HV, K, V] = layer_shape(checks, qkv, z, in.num_key_heads);
  const int64_t C = qkv.size(2);

  ConvCall conv(op, qkv, info("conv_weight", in.conv_weight), info("conv_bias", in.conv_bias), "silu");
  conv.pool(conv_state, info("state_indices", in.state_indices), !verify);
  const TensorInfo a = info("a", in.a), b = info("b", in.b);
  checks.device(a, qkv);
  checks.shape(a, {{"N", N}, {"T", T}, {"HV", HV}}, &z);
  GatesCall gates(op, a, b, info("A_log", in.A_log), info("dt_bias", in.dt_bias), in.allow_neg_eigval);
  // The heads of the convolution's output. Messages know v, of z's shape, as z; nothing can be wrong with q and k.
  PackedHeads q("q", qkv, 0, H, K), k("k", qkv, H * K, H, K), v("z", qkv, 2 * H * K, HV, V);
  // g and beta come out of the gates as contiguous float32: only their shape is needed before they exist.
  const std::array<int64_t, 3> gate_sizes = {N, T, HV}, gate_strides = {T * HV, HV, 1};
  TensorInfo g = qkv;
  g.argument = "g";
  g.data = nullptr;
  g.type = ElementType::f32;
  g.sizes = {gate_sizes.data(), 3};
  g.strides = {gate_strides.data(), 3};
  RecurrenceCall recurrence(op, verify ? policy::Op::verify_layer : policy::Op::decode_layer,
                            {in.scale, true, in.l2_eps, in.head_map, in.state_layout, "exact"}, q.info, k.info, v.info,
                            g, g);
  recurrence.pool(state, info("state_indices", in.state_indices), !verify);
  NormCall norm(op, v.info, z, info("norm_weight", in.norm_weight), {"norm_eps", in.norm_eps},
                {"norm_activation", in.norm_activation});
  if (verify) {
    conv.verify_window(info("parents", in.parents));
    recurrence.verify_window(info("parents", in.parents));
  } else {
    const TensorInfo weights[] = {info("conv_weight", in.conv_weight), info("A_log", in.A_log),
                                  info("dt_bias", in.dt_bias), info("norm_weight", in.norm_weight)};
    const auto bias = info("conv_bias", in.conv_bias), indices = info("state_indices", in.state_indices);
    std::vector<const TensorInfo*> read = {&qkv, &z, &a, &b};
    for (const TensorInfo& weight : weights) read.push_back(&weight);
    for (const auto* given : {&bias, &indices}) {
      if (*given) read.push_back(&**given);
    }
    checks.writable({&conv_state, &state}, read);
  }
  if (conv_state.size(0) != state.size(0)) {
    checks.fail("conv_state must have the S=" + std::to_string(state.size(0)) + " slots of state; got " +
                text_of(conv_state.sizes));
  }
  const ValueChecks values(checks);
  values.state_indices(in.state_indices, state.size(0), !verify);
  values.parents(in.parents);

  recurrence.request.conv_width = conv.params.width;
  const Launch launch(op, backend, qkv.device_index, recurrence.request);
  const ScalarType type = in.qkv.scalar_type();
  LayerResult result{empty(in.qkv, {N, T, HV, V}, type), std::nullopt};
  if (verify) result.logs = allocate_logs(recurrence, in.qkv);
  norm.output(result.y);
  recurrence.params.o.dtype = qkv.dtype();
  if (launch.decision().one_launch) {
    run_in_one_launch(launch, conv, gates, recurrence, norm);
    launch.count();
    return result;
  }
  const Tensor mixed = empty(in.qkv, {N, T, C}, type), log_decay = empty(in.qkv, {N, T, HV}, ScalarType::Float),
               beta = empty(in.qkv, {N, T, HV}, ScalarType::Float);
  conv.output(mixed);
  gates.output(log_decay, beta);
  recurrence.params.q = q.place(mixed);
  recurrence.params.k = k.place(mixed);
  recurrence.params.v = v.place(mixed);
  recurrence.params.g = view<3>(info("g", log_decay));
  recurrence.params.beta = view<3>(info("beta", beta));

  std::array<Tensor, 2> normed;  // q and k
  if (launch.decision().normed_keys) {
    normed = {empty(in.qkv, {N, T, H, K}, ScalarType::Float), empty(in.qkv, {N, T, H, K}, ScalarType::Float)};
    run_conv_l2(launch, conv, gates, recurrence, normed[0], normed[1]);
  } else {
    run_conv_gates(launch, conv, gates);
  }
  if (launch.decision().norm_fused) {
    run_normed(launch, recurrence, norm.params);
  } else {
    const Tensor o = empty(in.qkv, {N, T, HV, V}, type);
    recurrence.output(o);
    norm.params.o = view<4>(info("o", o));
    if (verify) {
      run_verify(launch, recurrence);
    } else {
      run_recurrence(launch, recurrence);
    }
    run_norm(launch, norm.params);
  }
  launch.count();
  return result;
}

}  // namespace

Tensor gdn_decode_layer_(Backend backend, const Tensor& qkv, const Tensor& z, const Tensor& a, const Tensor& b,
                         const Tensor& conv_weight, OptionalTensor conv_bias, const Tensor& A_log,
                         const Tensor& dt_bias, const Tensor& norm_weight, Tensor conv_state, Tensor state,
                         OptionalTensor state_indices, int64_t num_key_heads, std::optional<double> scale,
                         double l2_eps, double norm_eps, bool allow_neg_eigval, std::string head_map,
                         std::string state_layout, std::string norm_activation) {
  const OptionalTensor no_parents;
  return run_layer("gdn_decode_layer_", backend,
                   {qkv,
                    z,
                    a,
                    b,
                    conv_weight,
                    conv_bias,
                    A_log,
                    dt_bias,
                    norm_weight,
                    conv_state,
                    state,
                    state_indices,
                    no_parents,
                    num_key_heads,
                    scale,
                    l2_eps,
                    norm_eps,
                    allow_neg_eigval,
                    head_map,
                    state_layout,
                    norm_activation},
                   false)
      .y;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> gdn_verify_layer(
    Backend backend, const Tensor& qkv, const Tensor& z, const Tensor& a, const Tensor& b, const Tensor& conv_weight,
    OptionalTensor conv_bias, const Tensor& A_log, const Tensor& dt_bias, const Tensor& norm_weight,
    const Tensor& conv_state, const Tensor& state, OptionalTensor state_indices, OptionalTensor parents,
    int64_t num_key_heads, std::optional<double> scale, double l2_eps, double norm_eps, bool allow_neg_eigval,
    std::string head_map, std::string state_layout, std::string norm_activation) {
  const LayerResult result = run_layer("gdn_verify_layer", backend,
                                       {qkv,
                                        z,
                                        a,
                                        b,
                                        conv_weight,
                                        conv_bias,
                                        A_log,
                                        dt_bias,
                                        norm_weight,
                                        conv_state,
                                        state,
                                        state_indices,
                                        parents,
                                        num_key_heads,
                                        scale,
                                        l2_eps,
                                        norm_eps,
                                        allow_neg_eigval,
                                        head_map,
                                        state_layout,
                                        norm_activation},
                                       true);
  return {result.y, result.logs->k, result.logs->d, result.logs->g};
}

}  // namespace gdn::api
