// What shapes, dtypes, devices and strides can tell is checked here, before anything is allocated, launched or changed:
// std::invalid_argument with the op, the argument, what was expected and what came.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/params.h"

namespace gdn {

enum class ElementType : int32_t { f32, bf16, f16, i32, i64, boolean, other };

enum class DeviceKind : int32_t { cpu, cuda, other };

// Sizes or strides, borrowed from the tensor.
struct Extents {
  const int64_t* data = nullptr;
  int64_t count = 0;

  const int64_t* begin() const { return data; }
  const int64_t* end() const { return data + count; }
  int64_t operator[](int64_t dim) const { return data[dim]; }
};

// What is known of a tensor argument without looking at its elements. Borrowed: the tensor must outlive it.
struct TensorInfo {
  const char* argument = "";
  int64_t list_index = -1;  // in a list of tensors
  bool given = true;        // false: None came where a tensor must; nothing else is known
  void* data = nullptr;
  ElementType type = ElementType::other;
  const char* type_name = "";  // torch's, for messages
  DeviceKind device = DeviceKind::cpu;
  int32_t device_index = 0;
  Extents sizes;
  Extents strides;  // in elements

  int64_t rank() const { return sizes.count; }
  int64_t size(int64_t dim) const { return sizes[dim]; }
  int64_t stride(int64_t dim) const { return strides[dim]; }
  int64_t element_bytes() const;
  DType dtype() const;              // of a floating-point tensor that has been checked
  std::string name() const;         // k, d_logs[1]
  std::string device_name() const;  // cpu, cuda:0
};

// A dimension as the contract names it; any size if `size` is negative.
struct Dim {
  const char* symbol;
  int64_t size = -1;
};

class Checks {
 public:
  explicit Checks(std::string_view op) : op_(op) {}

  const std::string& op() const { return op_; }
  [[noreturn]] void fail(const std::string& what) const;

  void given(const TensorInfo& t) const;  // part of device() and of one_of(), which come before any other check
  // Each names the tensor it compares with, where there is one.
  void shape(const TensorInfo& t, std::initializer_list<Dim> expected, const TensorInfo* like = nullptr) const;
  void same_shape(const TensorInfo& t, const TensorInfo& like) const;
  void rank(const TensorInfo& t, int64_t lowest, int64_t highest, const char* what) const;
  void device(const TensorInfo& t, const TensorInfo& like) const;
  void same_type(const TensorInfo& t, const TensorInfo& like) const;
  void one_of(const TensorInfo& t, std::initializer_list<ElementType> allowed) const;
  void floating(const TensorInfo& t) const { one_of(t, {ElementType::f32, ElementType::bf16, ElementType::f16}); }
  void float32(const TensorInfo& t) const { one_of(t, {ElementType::f32}); }
  void index(const TensorInfo& t) const { one_of(t, {ElementType::i32, ElementType::i64}); }
  void conv_state_type(const TensorInfo& state, const TensorInfo& x) const;  // x's, or float32
  void last_contiguous(const TensorInfo& t) const;

  // K and V: 64, 128 or 256.
  static bool is_head_dim(int64_t size) { return size == 64 || size == 128 || size == 256; }
  void head_dim(const char* symbol, int64_t size, const TensorInfo& t) const;
  // Value heads are a multiple of key heads.
  void heads(int64_t key_heads, int64_t value_heads, const TensorInfo& key, const TensorInfo& value) const;
  // No element of the written tensors belongs to two of their index tuples, or to a tensor that is read meanwhile.
  void writable(const std::vector<const TensorInfo*>& written, const std::vector<const TensorInfo*>& read) const;

  void finite(const char* option, double value) const;   // as a float32
  void epsilon(const char* option, double value) const;  // finite, at least 0
  HeadMap head_map(std::string_view value) const;
  bool value_major(std::string_view state_layout) const;  // "vk"
  // `allowed` besides "silu".
  Activation activation(const char* argument, std::string_view value, Activation allowed) const;

 private:
  std::string op_;
};

std::string text_of(const Extents& values);  // [2, 5, 16]
const char* name_of(ElementType type);

}  // namespace gdn
