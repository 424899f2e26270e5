// Operands and modifiers of an instruction's text.
#pragma once

#include <string_view>

#include "instruction.h"
#include "text.h"

namespace rdna {

// Throws Fault where it is not understood.
Operand parse_operand(std::string_view text);

// Changes the instruction as the modifier says. Throws Fault where it is not known.
void apply_modifier(Instruction& in, const Modifier& modifier);

}  // namespace rdna
