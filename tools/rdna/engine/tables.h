// The instructions that the runner knows, a table a subject.
#pragma once

#include <span>
#include <string_view>

#include "instruction.h"

namespace rdna {

struct Entry;

std::span<const Entry> vector_integer_entries();
std::span<const Entry> vector_float_entries();
std::span<const Entry> compare_entries();
std::span<const Entry> cross_lane_entries();
std::span<const Entry> matrix_entries();
std::span<const Entry> scalar_entries();
std::span<const Entry> memory_entries();
std::span<const Entry> shared_entries();
std::span<const Entry> control_entries();

// nullptr: unknown.
Handler find_handler(std::string_view name);

}  // namespace rdna
