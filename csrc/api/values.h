// GDN_CHECK=1: the values of index tensors, read on the host (with a synchronisation) and refused where a kernel would
// have to guess. Called before anything changes; without the switch nothing is read.
#pragma once

#include "api/tensors.h"

namespace gdn::api {

class ValueChecks {
 public:
  explicit ValueChecks(const Checks& checks);

  // In [-1, S); with `written` no slot twice.
  void state_indices(const OptionalTensor& indices, int64_t slots, bool written) const;
  // From 0 to T without a step back.
  void cu_seqlens(const OptionalTensor& bounds, int64_t tokens) const;
  // parents[n, t] in [-1, t).
  void parents(const OptionalTensor& parents) const;
  // accepted[n] in [0, T]; path[n, i] in [0, T) for i < accepted[n].
  void accepted(const Tensor& accepted, const OptionalTensor& path, int64_t tokens) const;

 private:
  const Checks& checks_;
  bool enabled_;
};

}  // namespace gdn::api
