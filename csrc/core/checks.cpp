#include "core/checks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "core/switches.h"

namespace gdn {
namespace {

std::string text_of(std::initializer_list<Dim> dims) {
  std::string text = "[";
  for (const Dim& dim : dims) {
    if (text.size() > 1) text += ", ";
    text += dim.symbol;
    if (dim.size >= 0) text += "=" + std::to_string(dim.size);
  }
  return text + "]";
}

std::string text_of(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

bool is_empty(const TensorInfo& t) { return std::count(t.sizes.begin(), t.sizes.end(), 0) > 0; }

// Which bytes a tensor with elements covers.
class Footprint {
 public:
  explicit Footprint(const TensorInfo& t)
      : begin_(static_cast<int64_t>(reinterpret_cast<uintptr_t>(t.data))), element_bytes_(t.element_bytes()) {
    for (int64_t i = 0; i < t.rank(); ++i) {
      if (t.size(i) > 1) steps_.push_back({t.stride(i) * element_bytes_, t.size(i)});
    }
    std::sort(steps_.begin(), steps_.end(), [](const Step& a, const Step& b) { return a.stride > b.stride; });
    end_ = begin_ + reach(0);
  }

  // Sufficient: a stride that does not step over all that the smaller ones reach.
  bool overlaps_itself() const {
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (steps_[i].stride < reach(i + 1)) return true;
    }
    return false;
  }

  // Pools of several layers or kinds are often views that interleave in one buffer. All that they cover is then
  // repeated with the stride of one of their dimensions, mostly that of a slot, and they are apart within it.
  bool overlaps(const Footprint& other) const {
    if (end_ <= other.begin_ || other.end_ <= begin_) return false;
    const auto apart = [&](const Step& step) { return apart_within(step.stride, other); };
    return std::none_of(steps_.begin(), steps_.end(), apart) &&
           std::none_of(other.steps_.begin(), other.steps_.end(), apart);
  }

 private:
  struct Step {
    int64_t stride;  // in bytes
    int64_t size;    // at least 2
  };

  // Bytes from the first to the last one that the dimensions from the i-th on reach.
  int64_t reach(size_t i) const {
    int64_t bytes = element_bytes_;
    for (; i < steps_.size(); ++i) bytes += steps_[i].stride * (steps_[i].size - 1);
    return bytes;
  }

  // The number of dimensions with at least the stride `period`, if all of them repeat with it, else -1.
  int64_t repeating(int64_t period) const {
    int64_t count = 0;
    for (const Step& step : steps_) {
      if (step.stride < period) break;
      if (step.stride != period && step.stride % period != 0) return -1;
      ++count;
    }
    return count;
  }

  bool apart_within(int64_t period, const Footprint& other) const {
    const int64_t mine = repeating(period), others = other.repeating(period);
    if (mine < 0 || others < 0) return false;
    const int64_t distance = ((other.begin_ - begin_) % period + period) % period;
    return distance >= reach(static_cast<size_t>(mine)) &&
           distance + other.reach(static_cast<size_t>(others)) <= period;
  }

  int64_t begin_, end_ = 0, element_bytes_;
  std::vector<Step> steps_;  // dimensions that move, from the largest stride to the smallest
};

}  // namespace

int64_t TensorInfo::element_bytes() const {
  switch (type) {
    case ElementType::f32:
    case ElementType::i32: return 4;
    case ElementType::bf16:
    case ElementType::f16: return 2;
    case ElementType::boolean: return 1;
    case ElementType::i64:
    case ElementType::other: break;
  }
  return 8;
}

std::string TensorInfo::name() const {
  return list_index < 0 ? argument : argument + ("[" + std::to_string(list_index) + "]");
}

std::string TensorInfo::device_name() const {
  switch (device) {
    case DeviceKind::cpu: return "cpu";
    case DeviceKind::cuda: return "cuda:" + std::to_string(device_index);
    case DeviceKind::other: break;
  }
  return "another device";
}

DType TensorInfo::dtype() const {
  return type == ElementType::bf16 ? DType::bf16 : type == ElementType::f16 ? DType::f16 : DType::f32;
}

std::string text_of(const Extents& values) {
  std::string text = "[";
  for (const int64_t value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
  return text + "]";
}

const char* name_of(ElementType type) {
  switch (type) {
    case ElementType::f32: return "float32";
    case ElementType::bf16: return "bfloat16";
    case ElementType::f16: return "float16";
    case ElementType::i32: return "int32";
    case ElementType::i64: return "int64";
    case ElementType::boolean: return "bool";
    case ElementType::other: break;
  }
  return "another dtype";
}

void Checks::fail(const std::string& what) const { throw std::invalid_argument(op_ + ": " + what); }

void Checks::given(const TensorInfo& t) const {
  if (!t.given) fail(t.name() + " must be a tensor; got None");
}

void Checks::shape(const TensorInfo& t, std::initializer_list<Dim> expected, const TensorInfo* like) const {
  const auto fits = [](int64_t size, const Dim& dim) { return dim.size < 0 || dim.size == size; };
  if (t.rank() == static_cast<int64_t>(expected.size()) &&
      std::equal(t.sizes.begin(), t.sizes.end(), expected.begin(), fits))
    return;
  const std::string reference = like != nullptr ? " like " + like->name() + " " + text_of(like->sizes) : "";
  fail(t.name() + " must be " + text_of(expected) + reference + "; got " + text_of(t.sizes));
}

void Checks::same_shape(const TensorInfo& t, const TensorInfo& like) const {
  if (std::equal(t.sizes.begin(), t.sizes.end(), like.sizes.begin(), like.sizes.end())) return;
  fail(t.name() + " must have the shape " + text_of(like.sizes) + " of " + like.name() + "; got " + text_of(t.sizes));
}

void Checks::rank(const TensorInfo& t, int64_t lowest, int64_t highest, const char* what) const {
  if (t.rank() >= lowest && t.rank() <= highest) return;
  fail(t.name() + " must be " + what + "; got " + text_of(t.sizes));
}

void Checks::device(const TensorInfo& t, const TensorInfo& like) const {
  given(t);
  given(like);
  if (t.device == like.device && t.device_index == like.device_index) return;
  fail(t.name() + " must be on " + like.device_name() + " like " + like.name() + "; got " + t.device_name());
}

void Checks::same_type(const TensorInfo& t, const TensorInfo& like) const {
  if (t.type == like.type) return;
  fail(t.name() + " must be " + std::string(like.type_name) + " like " + like.name() + "; got " + t.type_name);
}

void Checks::one_of(const TensorInfo& t, std::initializer_list<ElementType> allowed) const {
  given(t);
  if (std::find(allowed.begin(), allowed.end(), t.type) != allowed.end()) return;
  std::vector<std::string_view> names;
  for (const ElementType type : allowed) names.push_back(name_of(type));
  fail(t.name() + " must be " + policy::join_words(names, "or") + "; got " + t.type_name);
}

void Checks::conv_state_type(const TensorInfo& state, const TensorInfo& x) const {
  if (state.type == x.type || state.type == ElementType::f32) return;
  fail(state.name() + " must be " + x.type_name + " like " + x.name() + ", or float32; got " + state.type_name);
}

void Checks::last_contiguous(const TensorInfo& t) const {
  const int64_t last = t.rank() - 1;
  if (last < 0 || is_empty(t) || t.size(last) == 1 || t.stride(last) == 1) return;
  fail(t.name() + " must be contiguous in its last dimension; got strides " + text_of(t.strides));
}

void Checks::head_dim(const char* symbol, int64_t size, const TensorInfo& t) const {
  if (is_head_dim(size)) return;
  fail(std::string(symbol) + " must be 64, 128 or 256; got " + t.name() + " " + text_of(t.sizes));
}

void Checks::heads(int64_t key_heads, int64_t value_heads, const TensorInfo& key, const TensorInfo& value) const {
  for (const TensorInfo* t : {&key, &value}) {
    if (t->size(2) < 1) fail(t->name() + " must have at least one head; got " + text_of(t->sizes));
  }
  if (value_heads >= 1 && value_heads % key_heads == 0) return;
  fail(value.name() + " must have a multiple of the H=" + std::to_string(key_heads) + " heads of " + key.name() +
       "; got HV=" + std::to_string(value_heads));
}

void Checks::writable(const std::vector<const TensorInfo*>& written, const std::vector<const TensorInfo*>& read) const {
  std::vector<std::pair<const TensorInfo*, Footprint>> covered;
  for (const TensorInfo* t : written) {
    if (is_empty(*t)) continue;
    const Footprint footprint(*t);
    if (footprint.overlaps_itself()) {
      fail(t->name() + " is written and must not overlap itself; got shape " + text_of(t->sizes) + ", strides " +
           text_of(t->strides));
    }
    for (const auto& [earlier, earlier_footprint] : covered) {
      if (footprint.overlaps(earlier_footprint)) {
        fail(t->name() + " is written and must not share memory with " + earlier->name());
      }
    }
    covered.emplace_back(t, footprint);
  }
  for (const TensorInfo* t : read) {
    if (is_empty(*t)) continue;
    const Footprint footprint(*t);
    for (const auto& [target, target_footprint] : covered) {
      if (footprint.overlaps(target_footprint)) {
        fail(t->name() + " is read and must not share memory with " + target->name() + ", which is written");
      }
    }
  }
}

void Checks::finite(const char* option, double value) const {
  if (!std::isfinite(static_cast<float>(value))) fail(std::string(option) + " must be finite; got " + text_of(value));
}

void Checks::epsilon(const char* option, double value) const {
  if (!std::isfinite(static_cast<float>(value)) || value < 0) {
    fail(std::string(option) + " must be finite and at least 0; got " + text_of(value));
  }
}

HeadMap Checks::head_map(std::string_view value) const {
  if (value == "grouped") return HeadMap::grouped;
  if (value == "tiled") return HeadMap::tiled;
  fail("head_map must be \"grouped\" or \"tiled\"; got \"" + std::string(value) + "\"");
}

bool Checks::value_major(std::string_view state_layout) const {
  if (state_layout == "kv" || state_layout == "vk") return state_layout == "vk";
  fail("state_layout must be \"kv\" or \"vk\"; got \"" + std::string(state_layout) + "\"");
}

Activation Checks::activation(const char* argument, std::string_view value, Activation allowed) const {
  const std::string other = allowed == Activation::none ? "none" : "sigmoid";
  if (value == "silu") return Activation::silu;
  if (value == other) return allowed;
  fail(std::string(argument) + " must be \"silu\" or \"" + other + "\"; got \"" + std::string(value) + "\"");
}

}  // namespace gdn
