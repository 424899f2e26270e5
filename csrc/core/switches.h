// The switches: one table (switches.cpp) from which parsing, errors, warnings, docs and `info` derive, and the values
// that the environment and the scopes of registry.overrides() give them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/arch.h"

namespace gdn::policy {

// In the table's order.
enum class Switch : int32_t {
  chunked,
  keyhead,
  pipeline,
  lanes,
  step,
  split,
  step_heads,
  fused_layer,
  commit_split,
  convl2,
  seq_split,
  cpu_isa,
  cuda_archs,
  hip_archs,
  wmma,
  emulate,
  arch_defaults,
  check,
  log,
};
inline constexpr int32_t kSwitchCount = static_cast<int32_t>(Switch::log) + 1;

enum class Kind : int32_t { runtime, build_time };
enum class Source : int32_t { built_in, arch_default, environment, override_scope };

// A value's number: a choice's index (which for "0", "1", "2" is its value and for GDN_CPU_ISA the Isa), a whole number
// itself, or kUnset. GDN_EMULATE's is only "set": its architecture is in Overrides::emulate.
inline constexpr int32_t kUnset = -1;

struct SwitchInfo {
  std::string name;
  std::string allowed;  // in words: "0 or 1"
  Kind kind = Kind::runtime;
  std::string meaning;
};

// What the user said about one switch; with any other source than the environment or a scope: nothing.
struct Setting {
  Source source = Source::built_in;
  int32_t number = kUnset;
  std::string text;

  bool operator==(const Setting& other) const {
    return source == other.source && number == other.number && text == other.text;
  }
};

// Filled only by parse_overrides, so every value in it is an allowed one.
struct Overrides {
  std::array<Setting, kSwitchCount> settings;
  std::optional<Arch> emulate;

  const Setting& operator[](Switch id) const { return settings[static_cast<size_t>(id)]; }
};

// A switch's value on an architecture and where it comes from; `text` is empty and `number` kUnset where nothing has
// spoken. The text lives as long as the Overrides.
struct Effective {
  int32_t number = kUnset;
  std::string_view text;
  Source source = Source::built_in;
};

struct Assignment {
  std::string name;
  std::optional<std::string> value;  // nullopt: as if unset
};
using Assignments = std::vector<Assignment>;

SwitchInfo info(Switch id);
const char* name(Switch id);
const char* name(Source source);  // "environment", "override", "arch default", "built-in"

// `base` under `changes`. Throws std::invalid_argument for an unknown name (with the nearest known one), a value that
// is not allowed (with the allowed ones), or a build-time switch in a scope.
Overrides parse_overrides(const Assignments& changes, const Overrides& base, Source source);

// The user's setting, whatever its value; else the architecture's default, unless GDN_ARCH_DEFAULTS=0; else the
// built-in. `arch` nullptr: no architecture in particular.
Effective effective(const Overrides& overrides, Switch id, const Arch* arch);

// The architecture that decisions and arch defaults go by: `real`, or GDN_EMULATE's where both are GPUs, or the lesser
// of both where both are CPUs.
Arch emulated(Arch real, const Overrides& overrides);

// The environment (read on first use) under this thread's scopes. Throws std::invalid_argument while the environment
// has a value that is not allowed. The reference holds until this thread's next push, pop or call after a reload.
const Overrides& current_overrides();

// Reads the environment again. If it throws, what was read before stays.
void reload_environment();

// A scope of this thread on top of the environment and of its outer scopes; the id closes it, on the same thread.
int64_t push_overrides(const Assignments& changes);
void pop_overrides(int64_t id);

// Gets each unknown GDN_ name of the environment once, in a sentence. Without a handler the sentence goes to stderr.
using WarningHandler = void (*)(const std::string& sentence);
void set_warning_handler(WarningHandler handler);

// The candidate with the least edit distance to `word`, the first of equals.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

// "a", "a or b", "a, b or c".
std::string join_words(const std::vector<std::string_view>& words, std::string_view last);

}  // namespace gdn::policy
