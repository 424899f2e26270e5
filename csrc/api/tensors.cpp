#include "api/tensors.h"

#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace gdn::api {
namespace {

struct TypeRow {
  int32_t (*code)();  // torch's number of the dtype
  ElementType type;
  const char* name = name_of(type);
};
const TypeRow kTypes[] = {
    {aoti_torch_dtype_float32, ElementType::f32},
    {aoti_torch_dtype_bfloat16, ElementType::bf16},
    {aoti_torch_dtype_float16, ElementType::f16},
    {aoti_torch_dtype_int32, ElementType::i32},
    {aoti_torch_dtype_int64, ElementType::i64},
    {aoti_torch_dtype_bool, ElementType::boolean},
    {aoti_torch_dtype_float64, ElementType::other, "float64"},
    {aoti_torch_dtype_int16, ElementType::other, "int16"},
    {aoti_torch_dtype_int8, ElementType::other, "int8"},
    {aoti_torch_dtype_uint8, ElementType::other, "uint8"},
    {aoti_torch_dtype_complex64, ElementType::other, "complex64"},
    {aoti_torch_dtype_complex128, ElementType::other, "complex128"},
    {aoti_torch_dtype_float8_e4m3fn, ElementType::other, "float8_e4m3fn"},
    {aoti_torch_dtype_float8_e5m2, ElementType::other, "float8_e5m2"},
};

TypeRow row_of(int32_t code) {
  const auto* row =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeRow& r) { return r.code() == code; });
  return row == std::end(kTypes) ? TypeRow{nullptr, ElementType::other} : *row;
}

// Not Tensor::scalar_type(), which throws for the dtypes that the stable ABI lacks.
int32_t type_code(const Tensor& tensor) {
  int32_t code = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &code));
  return code;
}

// An empty tensor has no address, but must not look like one that was not given.
alignas(64) const char kNoElements[1] = {};

}  // namespace

TensorInfo info(const char* argument, const Tensor& tensor) {
  TensorInfo t;
  t.argument = argument;
  t.given = tensor.defined();
  if (!t.given) return t;
  const TypeRow row = row_of(type_code(tensor));
  t.type = row.type;
  t.type_name = row.name;
  t.data = tensor.data_ptr();
  if (t.data == nullptr) t.data = const_cast<char*>(kNoElements);
  t.device = tensor.is_cpu() ? DeviceKind::cpu : tensor.is_cuda() ? DeviceKind::cuda : DeviceKind::other;
  t.device_index = t.device == DeviceKind::cpu ? 0 : tensor.get_device_index();
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  t.sizes = {sizes.data(), static_cast<int64_t>(sizes.size())};
  t.strides = {strides.data(), static_cast<int64_t>(strides.size())};
  return t;
}

std::optional<TensorInfo> info(const char* argument, const OptionalTensor& tensor) {
  return tensor ? std::optional(info(argument, *tensor)) : std::nullopt;
}

std::vector<TensorInfo> infos(const char* argument, const std::vector<Tensor>& tensors) {
  std::vector<TensorInfo> all;
  for (const Tensor& tensor : tensors) {
    all.push_back(info(argument, tensor));
    all.back().list_index = static_cast<int64_t>(all.size()) - 1;
  }
  return all;
}

const char* name_of(ScalarType type) {
  return row_of(torch::stable::detail::to<int32_t>(torch::stable::detail::from(type))).name;
}

Tensor empty(const Tensor& like, std::initializer_list<int64_t> sizes, ScalarType type) {
  return empty(like, torch::headeronly::IntHeaderOnlyArrayRef(sizes.begin(), sizes.size()), type);
}

Tensor empty_rows(const Tensor& like, std::initializer_list<int64_t> sizes, int64_t sequences) {
  Tensor rows = empty(like, sizes, like.scalar_type());
  return sequences == 0 ? torch::stable::zero_(rows) : rows;
}

Tensor empty(const Tensor& like, torch::headeronly::IntHeaderOnlyArrayRef sizes, ScalarType type) {
  try {
    return torch::stable::new_empty(like, sizes, type);
  } catch (const std::exception&) {
    // What torch threw says which C function failed and where in its headers, not what was asked for.
    throw std::runtime_error("strata_gdn: no memory for a tensor of shape " +
                             text_of(Extents{sizes.data(), static_cast<int64_t>(sizes.size())}) + ", " + name_of(type));
  }
}

BoolView bool_view(const std::optional<TensorInfo>& t) {
  return t ? BoolView{static_cast<const bool*>(t->data), t->stride(0)} : BoolView{};
}

StateView state_view(const TensorInfo& t, bool value_major) {
  const int64_t key_dim = value_major ? 3 : 2, value_dim = value_major ? 2 : 3;
  return {static_cast<float*>(t.data), t.size(0), t.stride(0), t.stride(1), t.stride(key_dim), t.stride(value_dim)};
}

int32_t alignment_bytes(std::initializer_list<const TensorInfo*> tensors) {
  uint64_t bits = 16;
  for (const TensorInfo* t : tensors) {
    bits |= reinterpret_cast<uintptr_t>(t->data);
    for (int64_t i = 0; i + 1 < t->rank(); ++i) {
      if (t->size(i) > 1) bits |= static_cast<uint64_t>(t->stride(i)) * static_cast<uint64_t>(t->element_bytes());
    }
  }
  return static_cast<int32_t>(bits & (~bits + 1));
}

}  // namespace gdn::api
