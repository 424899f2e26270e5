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

// v_permlane's op_sel is no choice of halves: the first bit is DPP's fi, the second its bound_ctrl.
void select_lanes(Instruction& in, std::string_view op_sel);

}  // namespace rdna
