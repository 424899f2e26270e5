// What the convolution ops share: their arguments checked and turned into ConvParams.
#pragma once

#include <optional>
#include <string>

#include "api/launch.h"
#include "api/tensors.h"

namespace gdn::api {

// Filled step by step, each step checking what it takes; nothing is allocated or changed before launch.
struct ConvCall {
  Checks checks;
  TensorInfo x, weight;
  std::optional<TensorInfo> bias;
  TensorInfo counted;  // says how many sequences there are: x or cu_seqlens
  ConvParams params;
  policy::Request request;

  ConvCall(const char* op, const TensorInfo& x, const TensorInfo& weight, const std::optional<TensorInfo>& bias,
           const std::string& activation);

  int64_t sequences() const { return params.shape.sequences; }
  // [N+1]; changes the number of sequences.
  void cu_seqlens(const std::optional<TensorInfo>& bounds);
  // A pool [S, C, L] of windows, L >= W-1.
  void pool(const TensorInfo& state, const std::optional<TensorInfo>& state_indices, bool written);
  // A window a sequence, in that order.
  void initial_state(const TensorInfo& state);
  void has_initial_state(const std::optional<TensorInfo>& flags);
  void verify_window(const std::optional<TensorInfo>& parents);
  void output(const Tensor& y) { params.y = out_view<3>(y); }

 private:
  // [count, C, L], L >= W-1, read.
  void states(const TensorInfo& state, Dim count);
};

// Runs what the registry decided on.
void run_convolution(const Launch& launch, const ConvCall& call);

}  // namespace gdn::api
