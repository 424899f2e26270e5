// Global, scratch, buffer and scalar memory.
#include "access.h"
#include "tables.h"

namespace rdna {
namespace {

// Global -------------------------------------------------------------------------------------------------------------

uint8_t* checked(Wave& w, uint64_t address, uint32_t bytes, bool write) {
  const Extent& extent = w.launch->memory->check(address, bytes, write, &w.extent_hint);
  if (extent.writable) w.launch->global->touch(w, w.extent_hint, extent, address, bytes, write);
  return reinterpret_cast<uint8_t*>(address);
}

// vector address, "off", or a 32-bit vector offset and a scalar address; the vector operand is the first of a store,
// the second of a load.
uint8_t* global(Wave& w, const Instruction& in, int lane, uint32_t bytes, bool write) {
  const Operand& vector = in.op[write ? 0 : 1];
  const Operand& scalar = in.op[2];
  const uint32_t low = w.v[vector.reg][lane];
  const uint64_t base = scalar.kind == Operand::Kind::scalar
                            ? w.pair(scalar.reg) + low
                            : low | static_cast<uint64_t>(w.v[vector.reg + 1][lane]) << 32;
  return checked(w, base + static_cast<int64_t>(in.offset), bytes, write);
}

// Scratch ------------------------------------------------------------------------------------------------------------

uint8_t* private_memory(Wave& w, int lane, uint64_t offset, uint32_t bytes) {
  const uint32_t size = w.launch->private_bytes;
  if (offset + bytes > size) {
    throw Fault("scratch: an access of " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                " of a lane's " + std::to_string(size));
  }
  return w.scratch.data() + static_cast<size_t>(lane) * size + offset;
}

uint8_t* scratch(Wave& w, const Instruction& in, int lane, uint32_t bytes, bool write) {
  const Operand& vector = in.op[write ? 0 : 1];
  const Operand& scalar = in.op[2];
  uint32_t offset = static_cast<uint32_t>(in.offset);
  if (vector.kind == Operand::Kind::vector) offset += w.v[vector.reg][lane];
  if (scalar.kind == Operand::Kind::scalar) offset += w.s[scalar.reg];
  return private_memory(w, lane, offset, bytes);
}

// Flat: by the upper word an address leads to scratch, to LDS or to global memory. Hardware counts the access as one of
// LDS too.
uint8_t* flat(Wave& w, const Instruction& in, int lane, uint32_t bytes, bool write) {
  const Operand& vector = in.op[write ? 0 : 1];
  const uint32_t low = w.v[vector.reg][lane] + static_cast<uint32_t>(in.offset);
  switch (w.v[vector.reg + 1][lane]) {
    case kPrivateAperture: return private_memory(w, lane, low, bytes);
    case kSharedAperture: return shared_memory(w, low, bytes, write);
    default: return global(w, in, lane, bytes, write);
  }
}
template <Access a>
void flat_load(Wave& w, const Instruction& in) {
  load_lanes<flat, Counter::load, a>(w, in);
  w.waits.issue(Counter::shared, in);
}
template <Access a>
void flat_store(Wave& w, const Instruction& in) {
  store_lanes<flat, Counter::store, 1, a>(w, in);
  w.waits.issue(Counter::shared, in);
}

// Buffers: data, vector offset or "off", four registers of description, scalar offset. gfx10 reaches scratch through
// the description that the launch puts into the first registers.
uint8_t* buffer(Wave& w, const Instruction& in, int lane, uint32_t bytes, bool write) {
  const Operand &vector = in.op[1], &description = in.op[2];
  uint64_t offset = static_cast<uint64_t>(in.offset) + scalar_value<uint32_t>(w, in.op[3]);
  if (vector.kind == Operand::Kind::vector) offset += w.v[vector.reg][lane];
  if (w.s[description.reg] == kScratchDescription) return private_memory(w, lane, offset, bytes);
  constexpr uint32_t address_bits = 0xffff, stride_bits = 0x3fff;
  const uint32_t upper = w.s[description.reg + 1];
  if ((upper >> 16 & stride_bits) != 0) throw Fault("a buffer with a stride: only raw buffers are known");
  const uint32_t records = w.s[description.reg + 2];
  if (offset + bytes > records) {
    throw Fault("out of bounds: " + std::to_string(bytes) + " bytes at " + std::to_string(offset) + " of a buffer of " +
                std::to_string(records));
  }
  const uint64_t base = w.s[description.reg] | static_cast<uint64_t>(upper & address_bits) << 32;
  return checked(w, base + offset, bytes, write);
}

// Scalar: registers, address or buffer description, offset -----------------------------------------------------------

// Operand 0 from memory.
template <class T>
void load_scalars(Wave& w, const Instruction& in, uint64_t address, uint32_t count) {
  const uint8_t* from = checked(w, address, sizeof(T) * count, false);
  for (uint32_t i = 0; i < count && in.op[0].reg != kNull; ++i) {
    T value;
    std::memcpy(&value, from + sizeof(T) * i, sizeof(T));
    w.set_scalar(in.op[0].reg + i, static_cast<uint32_t>(value));
  }
  w.waits.issue(Counter::scalar, in);
}

// T: of what is in memory; words are read from whole words alone.
template <class T, int count>
void scalar_load(Wave& w, const Instruction& in) {
  const int64_t offset =
      in.op[2].kind == Operand::Kind::scalar ? static_cast<int64_t>(w.s[in.op[2].reg]) : in.op[2].integer;
  const uint64_t address = w.pair(in.op[1].reg) + static_cast<uint64_t>(offset + in.offset);
  load_scalars<T>(w, in, sizeof(T) == 4 ? address & ~uint64_t{3} : address, count);
}

template <int words>
void scalar_buffer_load(Wave& w, const Instruction& in) {
  constexpr uint64_t address_bits = 0xffff'ffff'ffff;
  const uint64_t offset = scalar_value<uint32_t>(w, in.op[2]) + static_cast<int64_t>(in.offset);
  load_scalars<uint32_t>(w, in, (w.pair(in.op[1].reg) & address_bits) + offset, words);
}

#define RDNA_LOAD(space, name, locate, ...) \
  {space "_load_" name, load_lanes<locate, Counter::load, Access{__VA_ARGS__}>}
#define RDNA_STORE(space, name, locate, data, ...) \
  {space "_store_" name, store_lanes<locate, Counter::store, data, Access{__VA_ARGS__}>}
#define RDNA_SPACE(space, locate, data)                                                                             \
  RDNA_LOAD(space, "b32", locate, 4), RDNA_LOAD(space, "b64", locate, 8), RDNA_LOAD(space, "b96", locate, 12),      \
      RDNA_LOAD(space, "b128", locate, 16), RDNA_LOAD(space, "u8", locate, 1), RDNA_LOAD(space, "u16", locate, 2),  \
      RDNA_LOAD(space, "i8", locate, 1, Place::sign_extended),                                                      \
      RDNA_LOAD(space, "i16", locate, 2, Place::sign_extended),                                                     \
      RDNA_LOAD(space, "d16_b16", locate, 2, Place::low_half),                                                      \
      RDNA_LOAD(space, "d16_hi_b16", locate, 2, Place::high_half),                                                  \
      RDNA_LOAD(space, "d16_u8", locate, 1, Place::low_half),                                                       \
      RDNA_LOAD(space, "d16_hi_u8", locate, 1, Place::high_half), RDNA_STORE(space, "b32", locate, data, 4),        \
      RDNA_STORE(space, "b64", locate, data, 8), RDNA_STORE(space, "b96", locate, data, 12),                        \
      RDNA_STORE(space, "b128", locate, data, 16), RDNA_STORE(space, "b8", locate, data, 1),                        \
      RDNA_STORE(space, "b16", locate, data, 2), RDNA_STORE(space, "d16_hi_b8", locate, data, 1, Place::high_half), \
      RDNA_STORE(space, "d16_hi_b16", locate, data, 2, Place::high_half)

constexpr Entry kEntries[] = {
    RDNA_SPACE("global", global, 1),
    RDNA_SPACE("scratch", scratch, 1),
    RDNA_SPACE("buffer", buffer, 0),
    {"flat_load_b32", flat_load<Access{4}>},
    {"flat_load_b64", flat_load<Access{8}>},
    {"flat_load_b96", flat_load<Access{12}>},
    {"flat_load_b128", flat_load<Access{16}>},
    {"flat_load_u8", flat_load<Access{1}>},
    {"flat_load_u16", flat_load<Access{2}>},
    {"flat_load_i8", flat_load<Access{1, Place::sign_extended}>},
    {"flat_load_i16", flat_load<Access{2, Place::sign_extended}>},
    {"flat_load_d16_b16", flat_load<Access{2, Place::low_half}>},
    {"flat_load_d16_hi_b16", flat_load<Access{2, Place::high_half}>},
    {"flat_load_d16_u8", flat_load<Access{1, Place::low_half}>},
    {"flat_load_d16_hi_u8", flat_load<Access{1, Place::high_half}>},
    {"flat_store_b32", flat_store<Access{4}>},
    {"flat_store_b64", flat_store<Access{8}>},
    {"flat_store_b96", flat_store<Access{12}>},
    {"flat_store_b128", flat_store<Access{16}>},
    {"flat_store_b8", flat_store<Access{1}>},
    {"flat_store_b16", flat_store<Access{2}>},
    {"flat_store_d16_hi_b16", flat_store<Access{2, Place::high_half}>},
    {"s_load_b32", scalar_load<uint32_t, 1>},
    {"s_load_b64", scalar_load<uint32_t, 2>},
    {"s_load_b96", scalar_load<uint32_t, 3>},
    {"s_load_b128", scalar_load<uint32_t, 4>},
    {"s_load_b256", scalar_load<uint32_t, 8>},
    {"s_load_b512", scalar_load<uint32_t, 16>},
    {"s_load_u8", scalar_load<uint8_t, 1>},
    {"s_load_i8", scalar_load<int8_t, 1>},
    {"s_load_u16", scalar_load<uint16_t, 1>},
    {"s_load_i16", scalar_load<int16_t, 1>},
    {"s_buffer_load_b32", scalar_buffer_load<1>},
    {"s_buffer_load_b64", scalar_buffer_load<2>},
    {"s_buffer_load_b128", scalar_buffer_load<4>},
    {"s_buffer_load_b256", scalar_buffer_load<8>},
};

}  // namespace

std::span<const Entry> memory_entries() { return kEntries; }

}  // namespace rdna
