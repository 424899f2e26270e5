// Decoded instructions.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace rdna {

struct Wave;
struct Instruction;
using Handler = void (*)(Wave&, const Instruction&);

// A fault of the program that is run, or of the code object: what was expected, what came.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What instructions are counted as.
enum class Class : uint8_t {
  valu,
  dual,  // two of them issued as one
  transcendental,
  matrix,
  salu,
  smem,
  vmem_load,
  vmem_store,
  lds,
  barrier,
  branch,
  wait,
  other,
  count,
};

struct Operand {
  enum class Kind : uint8_t { none, vector, scalar, integer, real };
  Kind kind = Kind::none;
  uint8_t words = 1;  // registers it names
  uint16_t reg = 0;
  bool negate = false, absolute = false, sign_extend = false;
  uint8_t shift = 0, bits = 32;  // the part of a register: true16's halves, gfx10's SDWA
  bool literal = false;          // an integer printed in hexadecimal: 32 bits, not an inline constant
  int64_t integer = 0;
  double real = 0.0;
};

// Which lane each lane reads its first source from: DPP.
struct LanePattern {
  int8_t from[32];  // -1: no lane
  uint32_t rows;    // lanes that are written, from row_mask and bank_mask
  bool zero_where_none;
  bool from_inactive;
};

using Registers = std::bitset<400>;  // 256 vector registers, then scalar ones

// The counters of memory operations under way. Before gfx12 `shared` and `scalar` are one, lgkmcnt.
enum class Counter : uint8_t { load, store, shared, scalar };
constexpr int kCounters = 4;
using WaitLimits = std::array<uint8_t, kCounters>;
constexpr uint8_t kNoLimit = 0xff;
constexpr WaitLimits no_limits() { return {kNoLimit, kNoLimit, kNoLimit, kNoLimit}; }

struct Instruction {
  static constexpr int most_operands = 6;
  Handler run = nullptr;
  Handler first_half = nullptr;  // of a dual instruction
  Class counted = Class::other;
  uint8_t count = 0;  // operands
  Operand op[most_operands];
  int32_t offset = 0, second_offset = 0;
  int64_t immediate = 0;
  uint32_t target = 0;  // of a branch
  WaitLimits limits = no_limits();
  std::unique_ptr<LanePattern> lanes;
  std::unique_ptr<Instruction> other_half;

  Registers touched;       // read or written
  Registers written_late;  // by a load, when it arrives
  std::string text;
  uint64_t next_address = 0;
};

struct Program {
  std::string name;
  int generation;  // 10, 11, 12
  uint64_t base;   // in memory, of the code object's address 0
  std::vector<Instruction> instructions;
};

}  // namespace rdna
