// Between torch's tensors and the torch-free parts: what the checks need to know of a tensor, what the kernels get of
// it, and how results are allocated.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <initializer_list>
#include <optional>
#include <vector>

#include "core/checks.h"
#include "core/params.h"

namespace gdn::api {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

TensorInfo info(const char* argument, const Tensor& tensor);
std::optional<TensorInfo> info(const char* argument, const OptionalTensor& tensor);
// One an element; `argument` is the list's.
std::vector<TensorInfo> infos(const char* argument, const std::vector<Tensor>& tensors);

const char* name_of(ScalarType type);  // torch's, for messages

// An uninitialised contiguous tensor on `like`'s device. std::runtime_error with what was asked for if there is no
// memory.
Tensor empty(const Tensor& like, std::initializer_list<int64_t> sizes, ScalarType type);
Tensor empty(const Tensor& like, torch::headeronly::IntHeaderOnlyArrayRef sizes, ScalarType type);
// An output with a row a token; zeros where there is no sequence to write it (cu_seqlens of one bound).
Tensor empty_rows(const Tensor& like, std::initializer_list<int64_t> sizes, int64_t sequences);

// Missing leading dimensions have size 1, and so any stride.
template <int rank>
View<rank> view(const TensorInfo& t) {
  View<rank> v{t.data, t.dtype(), {}};
  for (int64_t i = 0; i < t.rank(); ++i) v.stride[rank - t.rank() + i] = t.stride(i);
  return v;
}
template <int rank>
View<rank> view(const std::optional<TensorInfo>& t) {
  return t ? view<rank>(*t) : View<rank>{};
}
template <int rank>
OutView<rank> out_view(const TensorInfo& t) {
  const View<rank> v = view<rank>(t);
  OutView<rank> out{t.data, v.dtype, {}};
  for (int i = 0; i < rank; ++i) out.stride[i] = v.stride[i];
  return out;
}
template <int rank>
OutView<rank> out_view(const Tensor& t) {
  return out_view<rank>(info("", t));
}
template <int rank>
IndexView<rank> index_view(const std::optional<TensorInfo>& t) {
  IndexView<rank> v;
  if (!t) return v;
  v.data = t->data;
  v.is_int64 = t->type == ElementType::i64;
  for (int i = 0; i < rank; ++i) v.stride[i] = t->stride(i);
  return v;
}
BoolView bool_view(const std::optional<TensorInfo>& t);
StateView state_view(const TensorInfo& t, bool value_major);

// The largest power of two, up to 16, that divides every address of a row.
int32_t alignment_bytes(std::initializer_list<const TensorInfo*> tensors);

}  // namespace gdn::api
