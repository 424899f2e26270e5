// The schemas and which function serves them under which dispatch key; nothing else. docs/ops.md is the user's view.

#include "api/ops.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/stableivalue_conversions.h>

#include <utility>

namespace gdn::api {
namespace {

// A function of api/ops.h with its first argument, the backend, filled in.
template <auto function, Backend backend>
struct Bound;
template <class Result, class... Arguments, Result (*function)(Backend, Arguments...), Backend backend>
struct Bound<function, backend> {
  static Result call(Arguments... arguments) { return function(backend, std::forward<Arguments>(arguments)...); }
};
template <auto function, Backend backend>
constexpr auto bound = &Bound<function, backend>::call;

template <Backend backend, class Library>
void implement(Library& m) {
#define GDN_IMPL(op) m.impl(#op, TORCH_BOX((bound<&op, backend>)))
  GDN_IMPL(gated_delta_rule);
  GDN_IMPL(gated_delta_rule_);
  GDN_IMPL(gated_delta_rule_verify);
  GDN_IMPL(gated_delta_rule_commit_);
  GDN_IMPL(gated_delta_rule_commit_layers_);
  GDN_IMPL(gated_delta_rule_commit_verify_);
  GDN_IMPL(causal_conv1d);
  GDN_IMPL(causal_conv1d_);
  GDN_IMPL(causal_conv1d_verify);
  GDN_IMPL(causal_conv1d_commit_);
  GDN_IMPL(causal_conv1d_commit_layers_);
  GDN_IMPL(qk_l2norm);
  GDN_IMPL(gdn_gates);
  GDN_IMPL(gated_rms_norm);
  GDN_IMPL(gdn_decode_layer_);
  GDN_IMPL(gdn_verify_layer);
#undef GDN_IMPL
}

}  // namespace
}  // namespace gdn::api

#define GDN_VERIFY_OPTIONS \
  "float? scale=None, bool qk_l2norm=False, float l2_eps=1e-06, str head_map=\"grouped\", str state_layout=\"kv\""
#define GDN_OPTIONS GDN_VERIFY_OPTIONS ", str precision=\"auto\""
#define GDN_INPUTS "Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta"
#define GDN_LAYER_INPUTS                                                                                            \
  "Tensor qkv, Tensor z, Tensor a, Tensor b, Tensor conv_weight, Tensor? conv_bias, Tensor A_log, Tensor dt_bias, " \
  "Tensor norm_weight"
#define GDN_LAYER_OPTIONS                                                                                         \
  "int num_key_heads, float? scale=None, float l2_eps=1e-06, float norm_eps=1e-06, bool allow_neg_eigval=False, " \
  "str head_map=\"grouped\", str state_layout=\"kv\", str norm_activation=\"silu\""

STABLE_TORCH_LIBRARY(strata_gdn, m) {
  m.def("gated_delta_rule(" GDN_INPUTS ", Tensor? initial_state=None, Tensor? cu_seqlens=None, *, " GDN_OPTIONS
        ") -> (Tensor, Tensor)");
  m.def("gated_delta_rule_(" GDN_INPUTS
        ", Tensor(a!) state, Tensor? state_indices=None, Tensor? cu_seqlens=None, Tensor? has_initial_state=None, "
        "*, " GDN_OPTIONS ") -> Tensor");
  m.def("gated_delta_rule_verify(" GDN_INPUTS
        ", Tensor state, Tensor? state_indices=None, Tensor? parents=None, *, " GDN_VERIFY_OPTIONS
        ") -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "gated_delta_rule_commit_(Tensor(a!) state, Tensor k_log, Tensor d_log, Tensor g_log, Tensor accepted, "
      "Tensor? state_indices=None, Tensor? path=None, *, str head_map=\"grouped\", str state_layout=\"kv\") -> ()");
  m.def(
      "gated_delta_rule_commit_layers_(Tensor(a!)[] states, Tensor[] k_logs, Tensor[] d_logs, Tensor[] g_logs, "
      "Tensor accepted, Tensor? state_indices=None, Tensor? path=None, *, str head_map=\"grouped\", "
      "str state_layout=\"kv\") -> ()");
  m.def(
      "gated_delta_rule_commit_verify_(Tensor(a!) state, Tensor k_log, Tensor d_log, Tensor g_log, Tensor "
      "accepted, " GDN_INPUTS
      ", Tensor? state_indices=None, Tensor? path=None, Tensor? parents=None, *, " GDN_VERIFY_OPTIONS
      ") -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "causal_conv1d(Tensor x, Tensor weight, Tensor? bias=None, Tensor? initial_state=None, Tensor? cu_seqlens=None, "
      "*, str activation=\"silu\") -> (Tensor, Tensor)");
  m.def(
      "causal_conv1d_(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) state, Tensor? state_indices=None, "
      "Tensor? cu_seqlens=None, Tensor? has_initial_state=None, *, str activation=\"silu\") -> Tensor");
  m.def(
      "causal_conv1d_verify(Tensor x, Tensor weight, Tensor? bias, Tensor state, Tensor? state_indices=None, "
      "Tensor? parents=None, *, str activation=\"silu\") -> Tensor");
  m.def(
      "causal_conv1d_commit_(Tensor(a!) state, Tensor x, Tensor accepted, Tensor? state_indices=None, "
      "Tensor? path=None) -> ()");
  m.def(
      "causal_conv1d_commit_layers_(Tensor(a!)[] states, Tensor[] xs, Tensor accepted, Tensor? state_indices=None, "
      "Tensor? path=None) -> ()");
  m.def("qk_l2norm(Tensor q, Tensor k, float eps=1e-06) -> (Tensor, Tensor)");
  m.def(
      "gdn_gates(Tensor a, Tensor b, Tensor A_log, Tensor dt_bias, *, bool allow_neg_eigval=False) -> (Tensor, "
      "Tensor)");
  m.def(
      "gated_rms_norm(Tensor o, Tensor z, Tensor weight, *, float eps=1e-06, str activation=\"silu\", "
      "ScalarType? dtype=None) -> Tensor");
  m.def("gdn_decode_layer_(" GDN_LAYER_INPUTS
        ", Tensor(a!) conv_state, Tensor(b!) state, Tensor? state_indices=None, *, " GDN_LAYER_OPTIONS ") -> Tensor");
  m.def("gdn_verify_layer(" GDN_LAYER_INPUTS
        ", Tensor conv_state, Tensor state, Tensor? state_indices=None, Tensor? parents=None, *, " GDN_LAYER_OPTIONS
        ") -> (Tensor, Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(strata_gdn, CPU, m) { gdn::api::implement<gdn::api::Backend::cpu>(m); }
// CUDA's key is ROCm's too. A build without GPU kernels says so when it is called.
STABLE_TORCH_LIBRARY_IMPL(strata_gdn, CUDA, m) { gdn::api::implement<gdn::api::Backend::cuda>(m); }
