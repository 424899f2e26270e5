// What was measured, as tables and as a record.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "configurations.h"
#include "landing.h"
#include "options.h"
#include "parity.h"
#include "problem.h"

namespace gdn::rec_parity {

struct Card {
  std::string name, arch;
  int sms = 0;
};

// One configuration on one shape.
struct Timing {
  Shape shape;
  int sms = 0;  // that were free
  Configuration configuration;
  std::vector<double> microseconds;  // a launch each
  bool chosen = false;               // what the registry takes on a card of so many multiprocessors

  double median() const;
  double a_token() const { return median() / static_cast<double>(shape.tokens); }
};

struct Measured {
  Card card;
  std::vector<Timing> timings;
  std::vector<Landing> landings;
};

// Neighbouring numbers of free multiprocessors on which one configuration is the fastest for a shape.
struct Band {
  int most_sms, fewest_sms;
  std::string fastest;
  double least_lead, most_lead;  // how many times as long the next one takes; 1 where there is none
};

// Of timings of one shape, from all multiprocessors down.
std::vector<Band> bands_of(const std::vector<Timing>& timings);

// A line a timing: µs a token, and the ratio to the best of rec_columns.
void print_times(const std::vector<Timing>& timings);

// For each shape a table of µs a token by free multiprocessors, and the bands: where which configuration is fastest.
void print_bands(const std::vector<Timing>& timings);

// Throws std::runtime_error where the file cannot be written.
void write_json(const Options& options, const Measured& measured, const Counts& counts);

}  // namespace gdn::rec_parity
