// A line of llvm-objdump's disassembly taken apart. The views point into the text that was parsed.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace rdna {

struct Modifier {
  std::string_view name, value;  // "offset:16"; a bare word such as "glc" has no value
};

struct Line {
  uint64_t address = 0;
  uint64_t next_address = 0;
  uint16_t low_bits = 0;      // of the encoding
  std::string_view text;      // mnemonic and rest, for messages
  std::string_view mnemonic;  // as printed
  std::string_view rest;      // what follows it, untouched
};

// What follows a mnemonic, as operands and modifiers.
struct Fields {
  std::vector<std::string_view> operands;
  std::vector<Modifier> modifiers;
};

// nullopt: the line is no instruction (a label, a section's title, elided zeros).
std::optional<Line> parse_line(std::string_view line);

Fields parse_fields(std::string_view rest);

std::vector<std::string_view> split(std::string_view text, char separator);
std::string_view trimmed(std::string_view text);

// Decimal or 0x hexadecimal, with a sign; nullopt for anything else.
std::optional<int64_t> parse_integer(std::string_view text);

}  // namespace rdna
