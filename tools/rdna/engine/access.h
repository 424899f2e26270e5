// Loads and stores of lanes: what a register's words are in memory.
#pragma once

#include "lanes.h"

namespace rdna {

// What a lane moves. Up to 16 bits either fill a register, with zeros or the sign, or are one half of it.
enum class Place : uint8_t { whole, sign_extended, low_half, high_half };
struct Access {
  int bytes;
  Place place = Place::whole;
};

// Where a lane's bytes are in host memory; throws Fault where the lane may not touch them.
using Locate = uint8_t* (*)(Wave&, const Instruction&, int lane, uint32_t bytes, bool write);

// Bytes of the work-group's LDS (shared.cpp).
uint8_t* shared_memory(Wave& w, uint32_t address, uint32_t bytes, bool write);

template <Access a>
void put_into_register(Wave& w, int reg, int lane, const uint8_t* from) {
  if constexpr (a.bytes >= 4) {
    for (int i = 0; i < a.bytes / 4; ++i) std::memcpy(&w.v[reg + i][lane], from + 4 * i, 4);
  } else {
    uint32_t value = 0;
    std::memcpy(&value, from, a.bytes);
    uint32_t& word = w.v[reg][lane];
    constexpr int unused = 32 - 8 * a.bytes;
    switch (a.place) {
      case Place::whole: word = value; break;
      case Place::sign_extended: word = static_cast<uint32_t>(static_cast<int32_t>(value << unused) >> unused); break;
      case Place::low_half: word = (word & 0xffff0000u) | value; break;
      case Place::high_half: word = (word & 0xffffu) | value << 16; break;
    }
  }
}

template <Access a>
void take_from_register(const Wave& w, int reg, int lane, uint8_t* to) {
  if constexpr (a.bytes >= 4) {
    for (int i = 0; i < a.bytes / 4; ++i) std::memcpy(to + 4 * i, &w.v[reg + i][lane], 4);
  } else {
    const uint32_t value = w.v[reg][lane] >> (a.place == Place::high_half ? 16 : 0);
    std::memcpy(to, &value, a.bytes);
  }
}

template <class F>
void for_active_lanes(const Wave& w, F f) {
  for (int l = 0; l < kLanes; ++l) {
    if (w.exec() >> l & 1) f(l);
  }
}

// Operand 0 from memory. All lanes' addresses are read before a register is written.
template <Locate locate, Counter counter, Access a>
void load_lanes(Wave& w, const Instruction& in) {
  uint8_t* from[kLanes];
  for_active_lanes(w, [&](int l) { from[l] = locate(w, in, l, a.bytes, false); });
  for_active_lanes(w, [&](int l) { put_into_register<a>(w, in.op[0].reg, l, from[l]); });
  w.waits.issue(counter, in);
}

template <Locate locate, Counter counter, int data, Access a>
void store_lanes(Wave& w, const Instruction& in) {
  for_active_lanes(w, [&](int l) { take_from_register<a>(w, in.op[data].reg, l, locate(w, in, l, a.bytes, true)); });
  w.waits.issue(counter, in);
}

}  // namespace rdna
