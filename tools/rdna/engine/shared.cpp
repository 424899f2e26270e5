// LDS, and the lane exchanges that go through its network.
#include "access.h"
#include "tables.h"

namespace rdna {
uint8_t* shared_memory(Wave& w, uint32_t address, uint32_t bytes, bool write) {
  Group& group = *w.group;
  if (w.signalled) throw Fault("an LDS access between a barrier's signal and its wait is ordered by neither");
  if (static_cast<uint64_t>(address) + bytes > group.shared.size()) {
    throw Fault("out of bounds: " + std::string(write ? "write" : "read") + " of " + std::to_string(bytes) +
                " bytes at LDS byte " + std::to_string(address) + "; the work-group has " +
                std::to_string(group.shared.size()));
  }
  if (write) {
    group.shadow.write(address, bytes, w.number, w.epoch);
  } else {
    group.shadow.read(address, bytes, w.number, w.epoch);
  }
  return group.shared.data() + address;
}

namespace {

uint8_t* shared(Wave& w, const Instruction& in, int lane, uint32_t bytes, bool write) {
  const uint32_t base = w.v[in.op[write ? 0 : 1].reg][lane];
  return shared_memory(w, base + static_cast<uint32_t>(in.offset), bytes, write);
}

// Two accesses in one: offsets count elements, or 64 of them.
template <Access a, int stride>
void load_two(Wave& w, const Instruction& in) {
  constexpr int unit = a.bytes * stride, words = a.bytes / 4;
  const uint8_t *first[kLanes], *second[kLanes];
  for_active_lanes(w, [&](int l) {
    const uint32_t base = w.v[in.op[1].reg][l];
    first[l] = shared_memory(w, base + static_cast<uint32_t>(in.offset * unit), a.bytes, false);
    second[l] = shared_memory(w, base + static_cast<uint32_t>(in.second_offset * unit), a.bytes, false);
  });
  for_active_lanes(w, [&](int l) {
    put_into_register<a>(w, in.op[0].reg, l, first[l]);
    put_into_register<a>(w, in.op[0].reg + words, l, second[l]);
  });
  w.waits.issue(Counter::shared, in);
}

template <Access a, int stride>
void store_two(Wave& w, const Instruction& in) {
  constexpr int unit = a.bytes * stride;
  for_active_lanes(w, [&](int l) {
    const uint32_t base = w.v[in.op[0].reg][l];
    take_from_register<a>(w, in.op[1].reg, l,
                          shared_memory(w, base + static_cast<uint32_t>(in.offset * unit), a.bytes, true));
    take_from_register<a>(w, in.op[2].reg, l,
                          shared_memory(w, base + static_cast<uint32_t>(in.second_offset * unit), a.bytes, true));
  });
  w.waits.issue(Counter::shared, in);
}

// Lane l reads the lane whose number times four is in its address; an inactive one gives 0.
void backward_permute(Wave& w, const Instruction& in) {
  const Lanes<uint32_t> address = read<uint32_t>(w, in, 1), x = read<uint32_t>(w, in, 2);
  Lanes<uint32_t> result;
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t from = (address.at[l] + static_cast<uint32_t>(in.offset)) / 4 % kLanes;
    result.at[l] = w.exec() >> from & 1 ? x.at[from] : 0;
  }
  write(w, in, 0, result);
  w.waits.issue(Counter::shared, in);
}

// Lane l's value goes to the lane whose number times four is in its address.
void forward_permute(Wave& w, const Instruction& in) {
  const Lanes<uint32_t> address = read<uint32_t>(w, in, 1), x = read<uint32_t>(w, in, 2);
  Lanes<uint32_t> result{};
  for_active_lanes(
      w, [&](int l) { result.at[(address.at[l] + static_cast<uint32_t>(in.offset)) / 4 % kLanes] = x.at[l]; });
  write(w, in, 0, result);
  w.waits.issue(Counter::shared, in);
}

// The pattern is the instruction's offset field.
void swizzle(Wave& w, const Instruction& in) {
  constexpr int64_t quads = 0x8000, rotate = 0xc000;
  const int64_t pattern = in.immediate;
  if (pattern >= rotate) throw Fault("ds_swizzle: only quads and bit masks are known");
  const Lanes<uint32_t> x = read<uint32_t>(w, in, 1);
  Lanes<uint32_t> result;
  for (int l = 0; l < kLanes; ++l) {
    const int64_t from = pattern >= quads ? (l & ~3) + (pattern >> (2 * (l & 3)) & 3)
                                          : (((l & (pattern & 31)) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31));
    result.at[l] = w.exec() >> from & 1 ? x.at[from] : 0;
  }
  write(w, in, 0, result);
  w.waits.issue(Counter::shared, in);
}

template <Access a>
constexpr Handler load = load_lanes<shared, Counter::shared, a>;
template <Access a>
constexpr Handler store = store_lanes<shared, Counter::shared, 1, a>;

constexpr Entry kEntries[] = {
    {"ds_load_b32", load<Access{4}>},
    {"ds_load_b64", load<Access{8}>},
    {"ds_load_b96", load<Access{12}>},
    {"ds_load_b128", load<Access{16}>},
    {"ds_load_u8", load<Access{1}>},
    {"ds_load_u16", load<Access{2}>},
    {"ds_load_i8", load<Access{1, Place::sign_extended}>},
    {"ds_load_i16", load<Access{2, Place::sign_extended}>},
    {"ds_load_u16_d16", load<Access{2, Place::low_half}>},
    {"ds_load_u16_d16_hi", load<Access{2, Place::high_half}>},
    {"ds_store_b32", store<Access{4}>},
    {"ds_store_b64", store<Access{8}>},
    {"ds_store_b96", store<Access{12}>},
    {"ds_store_b128", store<Access{16}>},
    {"ds_store_b8", store<Access{1}>},
    {"ds_store_b16", store<Access{2}>},
    {"ds_store_b16_d16_hi", store<Access{2, Place::high_half}>},
    {"ds_load_2addr_b32", load_two<Access{4}, 1>},
    {"ds_load_2addr_b64", load_two<Access{8}, 1>},
    {"ds_load_2addr_stride64_b32", load_two<Access{4}, 64>},
    {"ds_load_2addr_stride64_b64", load_two<Access{8}, 64>},
    {"ds_store_2addr_b32", store_two<Access{4}, 1>},
    {"ds_store_2addr_b64", store_two<Access{8}, 1>},
    {"ds_store_2addr_stride64_b32", store_two<Access{4}, 64>},
    {"ds_store_2addr_stride64_b64", store_two<Access{8}, 64>},
    {"ds_bpermute_b32", backward_permute},
    {"ds_permute_b32", forward_permute},
    {"ds_swizzle_b32", swizzle},
};

}  // namespace

std::span<const Entry> shared_entries() { return kEntries; }

}  // namespace rdna
