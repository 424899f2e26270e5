// Every configuration on the GPU against the CPU kernels, bit for bit, over a table of prompts.
#pragma once

#include <cstdint>
#include <string>

#include "options.h"
#include "problem.h"

namespace gdn::rec_parity {

struct Counts {
  int64_t checks = 0, failures = 0;
};

// Two checks; a line for each that fails.
void compare(Counts& counts, const std::string& what, const Shape& shape, const Outputs& actual,
             const Outputs& expected);

Counts parity(const Options& options);

}  // namespace gdn::rec_parity
