// Mnemonics of all generations as gfx12's.
#pragma once

#include <string>
#include <string_view>

#include "instruction.h"

namespace rdna {

// Without the encoding's suffix (_e32, _e64, _dpp, _sdwa), and renamed where gfx10 or gfx11 has another name.
std::string plain_name(std::string_view mnemonic);

Class class_of(std::string_view name);

// Whether what follows the mnemonic is no list of operands.
bool has_free_text(std::string_view name);

}  // namespace rdna
