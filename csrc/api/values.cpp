#include "api/values.h"

#include <torch/csrc/stable/ops.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "core/policy.h"

namespace gdn::api {
namespace {

// The elements in row-major order.
std::vector<int64_t> host_values(const Tensor& tensor) {
  Tensor host = torch::stable::contiguous(tensor);
  if (!host.is_cpu()) {
    host =
        torch::stable::to(host, std::nullopt, std::nullopt, torch::stable::Device(torch::headeronly::DeviceType::CPU));
  }
  std::vector<int64_t> values(static_cast<size_t>(host.numel()));
  const bool wide = host.scalar_type() == ScalarType::Long;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] =
        wide ? static_cast<const int64_t*>(host.data_ptr())[i] : static_cast<const int32_t*>(host.data_ptr())[i];
  }
  return values;
}

std::string element(const char* name, int64_t i) { return std::string(name) + "[" + std::to_string(i) + "]"; }
std::string element(const char* name, int64_t i, int64_t j) {
  return std::string(name) + "[" + std::to_string(i) + ", " + std::to_string(j) + "]";
}

}  // namespace

ValueChecks::ValueChecks(const Checks& checks)
    : checks_(checks), enabled_(policy::check_values(policy::current_overrides())) {}

void ValueChecks::state_indices(const OptionalTensor& indices, int64_t slots, bool written) const {
  if (!enabled_ || !indices) return;
  std::unordered_map<int64_t, int64_t> seen;
  const std::vector<int64_t> values = host_values(*indices);
  for (int64_t n = 0; n < static_cast<int64_t>(values.size()); ++n) {
    const int64_t slot = values[static_cast<size_t>(n)];
    if (slot < -1 || slot >= slots) {
      checks_.fail(element("state_indices", n) + " must be in [-1, S=" + std::to_string(slots) + "); got " +
                   std::to_string(slot));
    }
    const auto [first, is_new] = seen.emplace(slot, n);
    if (written && slot >= 0 && !is_new) {
      checks_.fail("state_indices must not repeat a slot that is written; got slot " + std::to_string(slot) + " at " +
                   std::to_string(first->second) + " and at " + std::to_string(n));
    }
  }
}

void ValueChecks::cu_seqlens(const OptionalTensor& bounds, int64_t tokens) const {
  if (!enabled_ || !bounds) return;
  const std::vector<int64_t> values = host_values(*bounds);
  if (values.front() != 0) checks_.fail("cu_seqlens must start at 0; got " + std::to_string(values.front()));
  for (size_t i = 1; i < values.size(); ++i) {
    if (values[i] < values[i - 1]) {
      checks_.fail("cu_seqlens must not decrease; got " + std::to_string(values[i]) + " after " +
                   std::to_string(values[i - 1]) + " at " + std::to_string(i));
    }
  }
  if (values.back() != tokens) {
    checks_.fail("cu_seqlens must end at T=" + std::to_string(tokens) + "; got " + std::to_string(values.back()));
  }
}

void ValueChecks::parents(const OptionalTensor& parents) const {
  if (!enabled_ || !parents || parents->numel() == 0) return;
  const std::vector<int64_t> values = host_values(*parents);
  const int64_t tokens = parents->size(1);
  for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
    const int64_t parent = values[static_cast<size_t>(i)], t = i % tokens;
    if (parent < -1 || parent >= t) {
      checks_.fail(element("parents", i / tokens, t) + " must be in [-1, " + std::to_string(t) + "); got " +
                   std::to_string(parent));
    }
  }
}

void ValueChecks::accepted(const Tensor& accepted, const OptionalTensor& path, int64_t tokens) const {
  if (!enabled_) return;
  const std::vector<int64_t> counts = host_values(accepted);
  const std::vector<int64_t> rows = path ? host_values(*path) : std::vector<int64_t>{};
  for (int64_t n = 0; n < static_cast<int64_t>(counts.size()); ++n) {
    const int64_t count = counts[static_cast<size_t>(n)];
    if (count < 0 || count > tokens) {
      checks_.fail(element("accepted", n) + " must be in [0, T=" + std::to_string(tokens) + "]; got " +
                   std::to_string(count));
    }
    for (int64_t i = 0; path && i < count; ++i) {
      const int64_t row = rows[static_cast<size_t>(n * tokens + i)];
      if (row < 0 || row >= tokens) {
        checks_.fail(element("path", n, i) + " must be in [0, T=" + std::to_string(tokens) + "); got " +
                     std::to_string(row));
      }
    }
  }
}

}  // namespace gdn::api
