#include "text.h"

#include <charconv>

namespace rdna {
namespace {

// Splits at commas that are in no bracket.
std::vector<std::string_view> split_operands(std::string_view text) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size()) {
      depth += text[i] == '[' || text[i] == '(';
      depth -= text[i] == ']' || text[i] == ')';
      if (text[i] != ',' || depth > 0) continue;
    }
    parts.push_back(trimmed(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  return parts;
}

Modifier parse_modifier(std::string_view word) {
  const size_t colon = word.find(':');
  if (colon == std::string_view::npos) return {word, {}};
  return {word.substr(0, colon), word.substr(colon + 1)};
}

// "v[2:3]" has a colon too, but behind a bracket.
bool is_modifier(std::string_view word) {
  const size_t colon = word.find(':'), bracket = word.find('[');
  return colon != std::string_view::npos && (bracket == std::string_view::npos || colon < bracket);
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r";
  const size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::optional<int64_t> parse_integer(std::string_view text) {
  const bool negative = !text.empty() && text[0] == '-';
  if (negative) text.remove_prefix(1);
  const bool hexadecimal = text.substr(0, 2) == "0x";
  if (hexadecimal) text.remove_prefix(2);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, hexadecimal ? 16 : 10);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return negative ? -static_cast<int64_t>(value) : static_cast<int64_t>(value);
}

std::optional<Line> parse_line(std::string_view line) {
  constexpr int hexadecimal = 16;
  const size_t comment = line.find("// ");
  if (comment == std::string_view::npos || line.empty() || line[0] != '\t') return std::nullopt;
  Line parsed;
  parsed.text = trimmed(line.substr(0, comment));
  const size_t space = parsed.text.find(' ');
  parsed.mnemonic = parsed.text.substr(0, space);
  if (space != std::string_view::npos) parsed.rest = trimmed(parsed.text.substr(space));
  const std::string_view encoding = line.substr(comment + 3);
  const char* end = encoding.data() + encoding.size();
  const auto [colon, error] = std::from_chars(encoding.data(), end, parsed.address, hexadecimal);
  if (error != std::errc{} || colon == end || *colon != ':') return std::nullopt;
  // ": D1234567 89ABCDEF <symbol+0x10>"
  constexpr int word_digits = 8, word_bytes = 4;
  parsed.next_address = parsed.address;
  for (std::string_view word : split(trimmed(std::string_view(colon + 1, end - colon - 1)), ' ')) {
    if (word.size() != word_digits || word[0] == '<') break;
    if (parsed.next_address == parsed.address) {
      std::from_chars(word.data() + word_digits / 2, word.data() + word_digits, parsed.low_bits, hexadecimal);
    }
    parsed.next_address += word_bytes;
  }
  return parsed;
}

Fields parse_fields(std::string_view rest) {
  Fields fields;
  if (rest.empty()) return fields;
  std::vector<std::string_view> parts = split_operands(rest);
  // Modifiers follow the last operand.
  const std::vector<std::string_view> words = split(parts.back(), ' ');
  parts.pop_back();
  for (const std::string_view& word : words) {
    if (word.empty()) continue;
    if (&word == &words.front() && !is_modifier(word)) {
      parts.push_back(word);
    } else {
      fields.modifiers.push_back(parse_modifier(word));
    }
  }
  fields.operands = std::move(parts);
  return fields;
}

}  // namespace rdna
