// The command line of gdn_rec_parity.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/params.h"

namespace gdn::rec_parity {

using Pair = std::pair<int64_t, int64_t>;

// Lists that are empty were not given.
struct Options {
  std::vector<std::string> kernels;
  std::vector<int64_t> tokens;
  std::vector<Pair> heads;  // H, HV
  std::vector<Pair> dims;   // K, V
  std::vector<DType> dtypes;
  bool help = false;
  bool bench = false;
  bool fewer_sms = false;            // --sms
  std::vector<int64_t> sms;          // its values
  std::string json;                  // the file's path
  std::vector<std::string> command;  // as a record names it: the program and the file without their folders
};

// Throws std::invalid_argument with a message for the user.
Options parse(int argc, const char* const* argv);

std::string usage();

// "f32", "bf16", "f16".
const char* name(DType dtype);

}  // namespace gdn::rec_parity
