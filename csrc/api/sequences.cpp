#include "api/sequences.h"

#include <initializer_list>
#include <string>

namespace gdn::api {
namespace {

void indices(const Checks& checks, const TensorInfo& t, const TensorInfo& like, std::initializer_list<Dim> shape) {
  checks.device(t, like);
  checks.index(t);
  checks.shape(t, shape, &like);
}

}  // namespace

int64_t packed_sequences(const Checks& checks, const TensorInfo& bounds, const TensorInfo& like) {
  checks.device(bounds, like);
  checks.index(bounds);
  checks.shape(bounds, {{"N+1"}});
  if (bounds.size(0) < 1) checks.fail("cu_seqlens must be [N+1] with at least one element; got [0]");
  if (like.size(0) != 1) {
    checks.fail("cu_seqlens needs packed inputs with B=1; got " + like.name() + " " + text_of(like.sizes));
  }
  return bounds.size(0) - 1;
}

IndexView<1> pool_slots(const Checks& checks, const std::optional<TensorInfo>& state_indices, const TensorInfo& state,
                        const TensorInfo& like, int64_t sequences) {
  if (state_indices) {
    indices(checks, *state_indices, like, {{"N", sequences}});
  } else if (state.size(0) < sequences) {
    checks.fail(state.name() + " must have at least N=" + std::to_string(sequences) +
                " slots without state_indices; got " + text_of(state.sizes));
  }
  return index_view<1>(state_indices);
}

BoolView initial_state_flags(const Checks& checks, const std::optional<TensorInfo>& flags, const TensorInfo& like,
                             int64_t sequences) {
  if (!flags) return {};
  checks.device(*flags, like);
  checks.one_of(*flags, {ElementType::boolean});
  checks.shape(*flags, {{"N", sequences}}, &like);
  return bool_view(flags);
}

IndexView<2> verify_window(const Checks& checks, const std::optional<TensorInfo>& parents, const TensorInfo& like,
                           int64_t sequences, int64_t tokens) {
  if (tokens > kMaxWindowTokens) {
    checks.fail(like.name() + " must have at most T=" + std::to_string(kMaxWindowTokens) +
                " draft tokens a sequence; got " + text_of(like.sizes));
  }
  if (parents) indices(checks, *parents, like, {{"N", sequences}, {"T", tokens}});
  return index_view<2>(parents);
}

AcceptedShape accepted_window(const Checks& checks, int64_t sequences, int64_t tokens, const TensorInfo& like,
                              const TensorInfo& accepted, const std::optional<TensorInfo>& state_indices,
                              const std::optional<TensorInfo>& path) {
  indices(checks, accepted, like, {{"N", sequences}});
  if (state_indices) indices(checks, *state_indices, like, {{"N", sequences}});
  if (path) indices(checks, *path, like, {{"N", sequences}, {"T", tokens}});
  return {sequences, tokens, index_view<1>(accepted), index_view<1>(state_indices), index_view<2>(path)};
}

}  // namespace gdn::api
