// The arguments that say which rows and which states belong to a sequence: the same in every op that has them. They
// must be on `like`'s device; messages say that it gave the number of sequences.
#pragma once

#include <optional>

#include "api/tensors.h"

namespace gdn::api {

// cu_seqlens [N+1] for packed inputs (`like` has B=1): N.
int64_t packed_sequences(const Checks& checks, const TensorInfo& bounds, const TensorInfo& like);

// Tokens a sequence, for the registry.
inline int64_t mean_rounded_up(int64_t tokens, int64_t sequences) {
  return sequences > 0 ? (tokens + sequences - 1) / sequences : 0;
}

// state_indices [N] into a pool `state` [S, ...]; without them S >= N.
IndexView<1> pool_slots(const Checks& checks, const std::optional<TensorInfo>& state_indices, const TensorInfo& state,
                        const TensorInfo& like, int64_t sequences);

// has_initial_state [N] bool
BoolView initial_state_flags(const Checks& checks, const std::optional<TensorInfo>& flags, const TensorInfo& like,
                             int64_t sequences);

// A verify window: at most kMaxWindowTokens tokens, parents [N, T].
IndexView<2> verify_window(const Checks& checks, const std::optional<TensorInfo>& parents, const TensorInfo& like,
                           int64_t sequences, int64_t tokens);

// accepted [N], state_indices [N] and path [N, T] of a commit.
AcceptedShape accepted_window(const Checks& checks, int64_t sequences, int64_t tokens, const TensorInfo& like,
                              const TensorInfo& accepted, const std::optional<TensorInfo>& state_indices,
                              const std::optional<TensorInfo>& path);

}  // namespace gdn::api
