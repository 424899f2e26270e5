// Names of architectures: "sm_90", "gfx1151", "cpu-avx512". Parsed without allocating, since every decision starts
// here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gdn::policy {

enum class Vendor : int32_t { cpu = 0, cuda = 1, hip = 2 };
enum class Isa : int32_t { baseline = 0, avx2 = 1, avx512 = 2 };

inline constexpr std::string_view kIsaNames[] = {"baseline", "avx2", "avx512"};
inline constexpr int32_t kIsaCount = 3;

struct Arch {
  Vendor vendor = Vendor::cpu;
  int32_t number = 0;  // cuda: 90 for sm_90; hip: 0x1151 for gfx1151; cpu: the Isa

  bool operator==(const Arch& other) const { return vendor == other.vendor && number == other.number; }
};

namespace detail {

// The value of a whole string of digits in `base`, of at most `max_digits`; nullopt for anything else.
inline std::optional<int32_t> parse_number(std::string_view digits, int32_t base, size_t max_digits) {
  if (digits.empty() || digits.size() > max_digits) return std::nullopt;
  int32_t value = 0;
  for (char c : digits) {
    const int32_t digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : base;
    if (digit >= base) return std::nullopt;
    value = value * base + digit;
  }
  return value;
}

inline std::optional<std::string_view> after(std::string_view text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return std::nullopt;
  return text.substr(prefix.size());
}

}  // namespace detail

inline std::optional<Arch> parse_arch(std::string_view text) {
  if (auto isa = detail::after(text, "cpu-")) {
    for (int32_t i = 0; i < kIsaCount; ++i) {
      if (*isa == kIsaNames[i]) return Arch{Vendor::cpu, i};
    }
    return std::nullopt;
  }
  constexpr size_t kMaxDigits = 4;
  if (auto digits = detail::after(text, "sm_")) {
    const auto number = detail::parse_number(*digits, 10, kMaxDigits);
    return number ? std::optional<Arch>({Vendor::cuda, *number}) : std::nullopt;
  }
  if (auto digits = detail::after(text, "gfx")) {
    const auto number = detail::parse_number(*digits, 16, kMaxDigits);
    return number ? std::optional<Arch>({Vendor::hip, *number}) : std::nullopt;
  }
  return std::nullopt;
}

inline std::string name(Arch arch) {
  if (arch.vendor == Vendor::cpu) return "cpu-" + std::string(kIsaNames[arch.number]);
  if (arch.vendor == Vendor::cuda) return "sm_" + std::to_string(arch.number);
  std::string digits;
  for (int32_t rest = arch.number; rest > 0; rest /= 16) digits.insert(digits.begin(), "0123456789abcdef"[rest % 16]);
  return "gfx" + digits;
}

}  // namespace gdn::policy
