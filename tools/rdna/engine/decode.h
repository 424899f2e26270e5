// From a kernel's disassembly to a program.
#pragma once

#include <string_view>

#include "instruction.h"

namespace rdna {

// `base`: where the code object's address 0 lies in memory. Throws Fault that names the instruction where a mnemonic,
// an operand or a modifier is not known.
Program decode(std::string_view name, int generation, uint64_t base, std::string_view disassembly);

}  // namespace rdna
