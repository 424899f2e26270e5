// What SmHolder's probe saw.
#pragma once

namespace gdn::rec_parity {

// Where blocks landed while some multiprocessors were held.
struct Landing {
  int held = 0;     // multiprocessors
  int alone = 0;    // distinct ones on which blocks landed that each need a whole one, as many as there are free
  int small = 0;    // ... on which many small blocks landed
  int on_held = 0;  // blocks of both kinds that landed on a held one: must be none
};

}  // namespace gdn::rec_parity
