// Vector instructions that move values between lanes, or between lanes and scalar registers. (DPP is a modifier:
// lanes.h.)
#include <bit>
#include <utility>

#include "lanes.h"
#include "tables.h"

namespace rdna {
namespace {

constexpr int kRow = 16;  // lanes

void read_first_lane(Wave& w, const Instruction& in) {
  const int lane = w.exec() == 0 ? 0 : std::countr_zero(w.exec());
  w.set_scalar(in.op[0].reg, w.v[in.op[1].reg][lane]);
}

void read_lane(Wave& w, const Instruction& in) {
  w.set_scalar(in.op[0].reg, w.v[in.op[1].reg][scalar_value<uint32_t>(w, in.op[2]) % kLanes]);
}

void write_lane(Wave& w, const Instruction& in) {
  w.v[in.op[0].reg][scalar_value<uint32_t>(w, in.op[2]) % kLanes] = scalar_value<uint32_t>(w, in.op[1]);
}

// Lane i of a row reads the lane of a row whose number is the i-th group of four bits of (low, high); `crossed`: of the
// other row. An inactive lane is not read unless fi says so: the result is 0 or, without bound_ctrl, stays what it was.
template <bool crossed>
void permute_row(Wave& w, const Instruction& in) {
  const auto low = scalar_value<uint32_t>(w, in.op[2]), high = scalar_value<uint32_t>(w, in.op[3]);
  const uint64_t choice = static_cast<uint64_t>(high) << 32 | low;
  const Lanes<uint32_t> x = read<uint32_t>(w, in, 1);
  Lanes<uint32_t> result = read<uint32_t>(w, in, 0);
  for (int l = 0; l < kLanes; ++l) {
    const int row = (l / kRow) ^ (crossed ? 1 : 0);
    const int from = row * kRow + static_cast<int>(choice >> (4 * (l % kRow)) & 15);
    if ((in.lanes && in.lanes->from_inactive) || (w.exec() >> from & 1)) {
      result.at[l] = x.at[from];
    } else if (in.lanes && in.lanes->zero_where_none) {
      result.at[l] = 0;
    }
  }
  write(w, in, 0, result);
}

void swap(Wave& w, const Instruction& in) {
  const Lanes<uint32_t> a = read<uint32_t>(w, in, 0), b = read<uint32_t>(w, in, 1);
  write(w, in, 0, b);
  write(w, in, 1, a);
}

constexpr Entry kEntries[] = {
    {"v_readfirstlane_b32", read_first_lane}, {"v_readlane_b32", read_lane},
    {"v_writelane_b32", write_lane},          {"v_permlane16_b32", permute_row<false>},
    {"v_permlanex16_b32", permute_row<true>}, {"v_swap_b32", swap},
};

}  // namespace

std::span<const Entry> cross_lane_entries() { return kEntries; }

}  // namespace rdna
