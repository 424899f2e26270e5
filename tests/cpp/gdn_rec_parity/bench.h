// The recurrence's configurations in turn: their times on the whole card, or on fewer and fewer multiprocessors.
#pragma once

#include "options.h"
#include "parity.h"

namespace gdn::rec_parity {

// Checks: each configuration's bits before it is timed; with --sms where blocks land. Throws std::invalid_argument
// where --sms asks for what the card does not have.
Counts bench(const Options& options);

}  // namespace gdn::rec_parity
