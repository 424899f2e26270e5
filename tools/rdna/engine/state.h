// What an instruction works on: a wave's registers, its work-group's memory, and the launch.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "extents.h"
#include "global_shadow.h"
#include "instruction.h"
#include "shadow.h"
#include "waits.h"

namespace rdna {

constexpr int kLanes = 32;
constexpr int kVectorRegisters = 256;

// Scalar registers have the numbers of gfx11's encoding; `null` reads as zero.
enum ScalarRegister : uint16_t {
  kVcc = 106,
  kTtmp = 108,
  kNull = 124,
  kM0 = 125,
  kExec = 126,
  kScc = 128,  // as a source
  kPrivateBase = 130,
  kSharedBase = 132,
  kScalarRegisters = 134,
};

// The upper words of flat addresses that lead to a lane's scratch and to LDS: no host address has them.
constexpr uint32_t kPrivateAperture = 0x5c7a0001, kSharedAperture = 0x5c7a0002;

// The first word of a buffer description that means scratch memory.
constexpr uint32_t kScratchDescription = 0x5c7a7c40;

// Moves v_rcp, v_rsq, v_sqrt, v_exp and v_log by a unit in the last place, as hardware may.
enum class Ulp : int32_t { exact = 0, up = 1, down = 2, either = 3 };

struct Options {
  uint64_t seed = 0;  // of the order in which waves and work-groups run
  int32_t threads = 1;
  Ulp ulp = Ulp::exact;
};

using Counts = std::array<uint64_t, static_cast<size_t>(Class::count)>;

struct Launch {
  const Program* program;
  const ExtentList* memory;
  GlobalShadow* global;
  Options options;
  uint32_t grid[3], block[3];
  uint32_t shared_bytes;   // static and dynamic
  uint32_t private_bytes;  // of a lane
  std::vector<uint32_t> user_registers;
  bool group_id_in_register[3];  // else in ttmp registers
  bool group_ids_in_ttmp;
  bool wave_offset_register;  // gfx10: where a wave's private memory starts
  bool packed_ids;            // a work-item's three numbers in one register
};

struct Wave;

struct Group {
  const Launch* launch;
  uint32_t id[3];
  uint32_t number;  // in the grid
  std::vector<uint8_t> shared;
  Shadow shadow;
  uint32_t epoch = 0;    // barriers passed
  uint32_t signals = 0;  // waves that have arrived at the next one
  uint32_t alive = 0;

  std::vector<std::vector<bool>> stores_waited_for;  // by wave and barrier

  void arrive(const Wave& w);  // at a barrier
  // Whether a wave's stores of one epoch had been waited for at a barrier between it and another.
  bool stores_arrived(uint32_t wave, uint32_t from_epoch, uint32_t to_epoch) const;
  void one_less();  // a wave has ended
};

struct Wave {
  alignas(64) uint32_t v[kVectorRegisters][kLanes];
  uint32_t s[kScalarRegisters];
  const Launch* launch;
  Group* group;
  uint32_t number;                 // in the work-group
  uint32_t epoch = 0;              // barriers passed
  uint32_t caches_dropped_at = 0;  // epoch
  uint32_t pc = 0;                 // index of the next instruction
  bool done = false;
  bool signalled = false;        // arrived at a barrier, not yet let through
  bool blocked = false;          // the last instruction waits and has to be run again
  std::vector<uint8_t> scratch;  // a lane's private memory after the other's
  Waits waits;
  size_t extent_hint = 0;
  Counts counts{};
  uint64_t executed = 0;

  uint32_t exec() const { return s[kExec]; }
  uint64_t pair(int reg) const { return s[reg] | static_cast<uint64_t>(s[reg + 1]) << 32; }
  void set_scalar(int reg, uint32_t value) {
    if (reg != kNull) s[reg] = value;
  }
  void set_pair(int reg, uint64_t value) {
    set_scalar(reg, static_cast<uint32_t>(value));
    if (reg != kNull) s[reg + 1] = static_cast<uint32_t>(value >> 32);
  }
};

}  // namespace rdna
