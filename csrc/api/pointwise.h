// The pointwise ops' arguments checked and turned into params; gdn_decode_layer_ and gdn_verify_layer use them too.
#pragma once

#include <string>

#include "api/launch.h"
#include "api/tensors.h"

namespace gdn::api {

// g, beta: [..., HV] float32, set by output().
struct GatesCall {
  Checks checks;
  GatesParams params;
  policy::Request request;

  GatesCall(const char* op, const TensorInfo& a, const TensorInfo& b, const TensorInfo& A_log,
            const TensorInfo& dt_bias, bool allow_neg_eigval);
  void output(const Tensor& g, const Tensor& beta);
};

// An option as an op names it.
template <class Value>
struct Option {
  const char* name;
  Value value;
};

struct NormCall {
  Checks checks;
  NormParams params;
  policy::Request request;

  NormCall(const char* op, const TensorInfo& o, const TensorInfo& z, const TensorInfo& weight, Option<double> eps,
           Option<std::string_view> activation);
  void output(const Tensor& y) { params.y = out_view<4>(y); }
};

// Run what the registry decided on.
void run_gates(const Launch& launch, const GatesParams& params);
void run_norm(const Launch& launch, const NormParams& params);

}  // namespace gdn::api
