// Runs a launch: its work-groups over threads, the waves of each in a shuffled order.
#pragma once

#include "state.h"

namespace rdna {

// Throws Fault with the kernel, the work-group, the wave and the instruction.
Counts run(const Launch& launch);

}  // namespace rdna
