// Memory operations under way: which registers still wait for a value, and which waits bring it.
#pragma once

#include <vector>

#include "instruction.h"

namespace rdna {

class Waits {
 public:
  // Throws Fault where the instruction touches a register that a load has still to write. A load may follow another
  // one of the same counter into the same register where they arrive in order.
  void check(const Instruction& in) const {
    if (count_ > 0 && (in.touched & pending_).any()) check_in_full(in);
  }
  // An operation begins.
  void issue(Counter counter, const Instruction& in);
  // At most so many of each counter's operations are still under way.
  void wait(const WaitLimits& limits, int generation);
  // LDS operations under way: none may be at a barrier. Throws Fault.
  void check_barrier() const;
  bool stores_under_way() const;

 private:
  struct Event {
    Counter counter;
    Registers registers;  // written when it arrives
    const Instruction* instruction;
  };
  void check_in_full(const Instruction& in) const;
  void complete(Counter counter, int generation, uint8_t limit);

  std::vector<Event> events_;  // in the order of issue
  Registers pending_;
  int count_ = 0;  // of events
};

}  // namespace rdna
