// The ops' implementations, one a schema of ops.cpp: check, allocate, decide, launch. docs/ops.md says what they
// compute.
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "api/launch.h"
#include "api/tensors.h"

namespace gdn::api {

std::tuple<Tensor, Tensor> gated_delta_rule(Backend backend, const Tensor& q, const Tensor& k, const Tensor& v,
                                            const Tensor& g, const Tensor& beta, OptionalTensor initial_state,
                                            OptionalTensor cu_seqlens, std::optional<double> scale, bool qk_l2norm,
                                            double l2_eps, std::string head_map, std::string state_layout,
                                            std::string precision);
Tensor gated_delta_rule_(Backend backend, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                         const Tensor& beta, Tensor state, OptionalTensor state_indices, OptionalTensor cu_seqlens,
                         OptionalTensor has_initial_state, std::optional<double> scale, bool qk_l2norm, double l2_eps,
                         std::string head_map, std::string state_layout, std::string precision);
std::tuple<Tensor, Tensor, Tensor, Tensor> gated_delta_rule_verify(Backend backend, const Tensor& q, const Tensor& k,
                                                                   const Tensor& v, const Tensor& g, const Tensor& beta,
                                                                   const Tensor& state, OptionalTensor state_indices,
                                                                   OptionalTensor parents, std::optional<double> scale,
                                                                   bool qk_l2norm, double l2_eps, std::string head_map,
                                                                   std::string state_layout);
std::tuple<Tensor, Tensor, Tensor, Tensor> gated_delta_rule_commit_verify_(
    Backend backend, Tensor state, const Tensor& k_log, const Tensor& d_log, const Tensor& g_log,
    const Tensor& accepted, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta,
    OptionalTensor state_indices, OptionalTensor path, OptionalTensor parents, std::optional<double> scale,
    bool qk_l2norm, double l2_eps, std::string head_map, std::string state_layout);
void gated_delta_rule_commit_(Backend backend, Tensor state, const Tensor& k_log, const Tensor& d_log,
                              const Tensor& g_log, const Tensor& accepted, OptionalTensor state_indices,
                              OptionalTensor path, std::string head_map, std::string state_layout);
void gated_delta_rule_commit_layers_(Backend backend, std::vector<Tensor> states, std::vector<Tensor> k_logs,
                                     std::vector<Tensor> d_logs, std::vector<Tensor> g_logs, const Tensor& accepted,
                                     OptionalTensor state_indices, OptionalTensor path, std::string head_map,
                                     std::string state_layout);
void causal_conv1d_commit_(Backend backend, Tensor state, const Tensor& x, const Tensor& accepted,
                           OptionalTensor state_indices, OptionalTensor path);
void causal_conv1d_commit_layers_(Backend backend, std::vector<Tensor> states, std::vector<Tensor> xs,
                                  const Tensor& accepted, OptionalTensor state_indices, OptionalTensor path);
std::tuple<Tensor, Tensor> causal_conv1d(Backend backend, const Tensor& x, const Tensor& weight, OptionalTensor bias,
                                         OptionalTensor initial_state, OptionalTensor cu_seqlens,
                                         std::string activation);
Tensor causal_conv1d_(Backend backend, const Tensor& x, const Tensor& weight, OptionalTensor bias, Tensor state,
                      OptionalTensor state_indices, OptionalTensor cu_seqlens, OptionalTensor has_initial_state,
                      std::string activation);
Tensor causal_conv1d_verify(Backend backend, const Tensor& x, const Tensor& weight, OptionalTensor bias,
                            const Tensor& state, OptionalTensor state_indices, OptionalTensor parents,
                            std::string activation);
std::tuple<Tensor, Tensor> qk_l2norm(Backend backend, const Tensor& q, const Tensor& k, double eps);
std::tuple<Tensor, Tensor> gdn_gates(Backend backend, const Tensor& a, const Tensor& b, const Tensor& A_log,
                                     const Tensor& dt_bias, bool allow_neg_eigval);
Tensor gated_rms_norm(Backend backend, const Tensor& o, const Tensor& z, const Tensor& weight, double eps,
                      std::string activation, std::optional<ScalarType> dtype);
Tensor gdn_decode_layer_(Backend backend, const Tensor& qkv, const Tensor& z, const Tensor& a, const Tensor& b,
                         const Tensor& conv_weight, OptionalTensor conv_bias, const Tensor& A_log,
                         const Tensor& dt_bias, const Tensor& norm_weight, Tensor conv_state, Tensor state,
                         OptionalTensor state_indices, int64_t num_key_heads, std::optional<double> scale,
                         double l2_eps, double norm_eps, bool allow_neg_eigval, std::string head_map,
                         std::string state_layout, std::string norm_activation);
std::tuple<Tensor, Tensor, Tensor, Tensor> gdn_verify_layer(
    Backend backend, const Tensor& qkv, const Tensor& z, const Tensor& a, const Tensor& b, const Tensor& conv_weight,
    OptionalTensor conv_bias, const Tensor& A_log, const Tensor& dt_bias, const Tensor& norm_weight,
    const Tensor& conv_state, const Tensor& state, OptionalTensor state_indices, OptionalTensor parents,
    int64_t num_key_heads, std::optional<double> scale, double l2_eps, double norm_eps, bool allow_neg_eigval,
    std::string head_map, std::string state_layout, std::string norm_activation);

}  // namespace gdn::api
