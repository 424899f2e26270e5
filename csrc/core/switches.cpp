#include "core/switches.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>

namespace gdn::policy {
namespace {

constexpr std::string_view kPrefix = "GDN_";
constexpr int32_t kMaxNumber = 1024;
constexpr int32_t kMaxChoices = 3;

enum class Form : int32_t { choice, number, architecture, list };

struct Entry {
  Switch id;
  const char* name;
  Form form;
  std::array<std::string_view, kMaxChoices> choices;  // Form::choice; empty ones do not count
  int32_t built_in;                                   // a choice's index, or kUnset
  Kind kind;
  const char* meaning;
};

constexpr auto kRuntime = Kind::runtime;
constexpr auto kBuild = Kind::build_time;

// clang-format off
constexpr Entry kTable[] = {
    {Switch::chunked, "GDN_CHUNKED", Form::choice, {"0", "1", "2"}, kUnset, kRuntime,
     "chunked prompt kernels: 0 never, 1 where they win, 2 without the SM-count test; unset: the row's measurement"},
    {Switch::keyhead, "GDN_KEYHEAD", Form::choice, {"0", "1"}, kUnset, kRuntime,
     "key-head recurrence: 0 never, 1 wherever it fits; unset: where it is expected to be the faster one"},
    {Switch::pipeline, "GDN_PIPELINE", Form::choice, {"0", "1"}, 1, kRuntime,
     "prompts with the next tokens' loads, or the next chunk's, in flight"},
    {Switch::lanes, "GDN_LANES", Form::choice, {"0", "1", "2"}, 0, kRuntime,
     "prompts on RDNA by rec_lanes with so many value columns a lane: 0 leaves them to rec_columns"},
    {Switch::step, "GDN_STEP", Form::choice, {"0", "1"}, 1, kRuntime,
     "the decode kernel for at most 16 tokens a sequence: 0 leaves them to the prompt recurrences"},
    {Switch::split, "GDN_SPLIT", Form::choice, {"0", "1"}, 0, kRuntime,
     "decode and verify steps: 1 over four blocks a head of V=128, 0 over as few as the kernels allow"},
    {Switch::step_heads, "GDN_STEP_HEADS", Form::choice, {"1", "2", "4"}, kUnset, kRuntime,
     "decode and verify steps: at most so many value heads of a key head in a block; unset: by tokens and card"},
    {Switch::fused_layer, "GDN_FUSED_LAYER", Form::choice, {"0", "1"}, kUnset, kRuntime,
     "decode_layer and verify_layer in one launch: 0 never, 1 wherever it fits; unset: for few sequences"},
    {Switch::commit_split, "GDN_COMMIT_SPLIT", Form::choice, {"0", "1"}, kUnset, kRuntime,
     "commits of all layers in one launch: 0 one launch a layer; unset: as 1, whatever GDN_SPLIT says"},
    {Switch::convl2, "GDN_CONVL2", Form::choice, {"0", "1"}, 0, kRuntime,
     "convolution, SiLU and L2 norm in one kernel inside decode_layer and verify_layer"},
    {Switch::seq_split, "GDN_SEQ_SPLIT", Form::number, {}, kUnset, kRuntime,
     "parts that the fast lane splits one long sequence into: 0 none; unset: by its length"},
    {Switch::cpu_isa, "GDN_CPU_ISA", Form::choice, {"baseline", "avx2", "avx512"}, kUnset, kRuntime,
     "instruction set of the CPU kernels; unset: the best that this CPU has"},
    {Switch::cuda_archs, "GDN_CUDA_ARCHS", Form::list, {}, kUnset, kBuild,
     "CUDA architectures to compile for, such as 80,90; none leaves the GPU out"},
    {Switch::hip_archs, "GDN_HIP_ARCHS", Form::list, {}, kUnset, kBuild,
     "ROCm architectures to compile for, such as gfx1100,gfx1201; none leaves the GPU out"},
    {Switch::wmma, "GDN_WMMA", Form::choice, {"0", "1"}, 0, kRuntime,
     "chunked prompt on WMMA on gfx11 and gfx12"},
    {Switch::emulate, "GDN_EMULATE", Form::architecture, {}, kUnset, kRuntime,
     "decide as if on that architecture; a kernel that the real one cannot run is not launched"},
    {Switch::arch_defaults, "GDN_ARCH_DEFAULTS", Form::choice, {"0", "1"}, 1, kRuntime,
     "0 turns the architectures' defaults of switches off"},
    {Switch::check, "GDN_CHECK", Form::choice, {"0", "1"}, 0, kRuntime,
     "1 checks the values in index tensors, with a synchronisation"},
    {Switch::log, "GDN_LOG", Form::choice, {"0", "1"}, 0, kRuntime,
     "1 prints each new decision once to stderr"},
};

struct ArchDefault {
  Vendor vendor;
  int32_t first;  // architectures first..last
  int32_t last;
  Switch id;
  int32_t number;
};

// Carried over from tuned engines on these cards; a measurement of ours replaces a line.
constexpr ArchDefault kArchDefaults[] = {
    {Vendor::hip, 0x1151, 0x1151, Switch::split,  1},
    {Vendor::hip, 0x1151, 0x1151, Switch::convl2, 1},
    {Vendor::hip, 0x1151, 0x1151, Switch::lanes,  2},
    {Vendor::hip, 0x1200, 0x1201, Switch::split,  0},
    {Vendor::hip, 0x1200, 0x1201, Switch::convl2, 1},
    {Vendor::hip, 0x1200, 0x1201, Switch::lanes,  1},
};
// clang-format on

constexpr bool in_order() {
  for (int32_t i = 0; i < kSwitchCount; ++i) {
    if (static_cast<int32_t>(kTable[i].id) != i) return false;
  }
  return true;
}
static_assert(sizeof(kTable) / sizeof(kTable[0]) == kSwitchCount, "every Switch has one line in the table");
static_assert(in_order(), "the table has the order of the enum, so that an id is an index");

constexpr const Entry& entry(Switch id) { return kTable[static_cast<int32_t>(id)]; }

const Entry* find(std::string_view name) {
  for (const Entry& e : kTable) {
    if (name == e.name) return &e;
  }
  return nullptr;
}

std::string_view nearest_switch(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Entry& e : kTable) names.push_back(e.name);
  return nearest(name, names);
}

std::string allowed_words(const Entry& e) {
  switch (e.form) {
    case Form::number: return "a whole number from 0 to " + std::to_string(kMaxNumber);
    case Form::architecture: return "an architecture such as sm_86, gfx1151 or cpu-avx2";
    case Form::list: return "a list of architectures";
    case Form::choice: break;
  }
  std::vector<std::string_view> words;
  std::copy_if(e.choices.begin(), e.choices.end(), std::back_inserter(words), [](auto c) { return !c.empty(); });
  return join_words(words, "or");
}

// The value's number, or nullopt if it is not allowed.
std::optional<int32_t> parse_value(const Entry& e, std::string_view value, Overrides& into) {
  switch (e.form) {
    case Form::choice:
      for (int32_t i = 0; i < kMaxChoices; ++i) {
        if (!value.empty() && value == e.choices[i]) return i;
      }
      return std::nullopt;
    case Form::number: {
      constexpr size_t kMaxDigits = 4;
      const auto number = detail::parse_number(value, 10, kMaxDigits);
      return number && *number <= kMaxNumber ? number : std::nullopt;
    }
    case Form::architecture:
      into.emulate = parse_arch(value);
      return into.emulate ? std::optional<int32_t>(0) : std::nullopt;
    case Form::list: return 0;
  }
  return std::nullopt;
}

// Every environment that was ever read, so that a reference into an old one stays good on the thread that holds it;
// equal ones are kept once. Never destroyed: ops may run until the process is gone.
struct Environment {
  std::mutex mutex;
  std::vector<std::unique_ptr<const Overrides>> read;
  std::set<std::string> warned_names;
  std::atomic<const Overrides*> current{nullptr};
  std::atomic<WarningHandler> handler{nullptr};
};

Environment& environment() {
  static auto* instance = new Environment;
  return *instance;
}

struct Scope {
  int64_t id;
  Assignments changes;
};

struct ThreadScopes {
  std::vector<Scope> scopes;
  Overrides resolved;               // `base` under all scopes
  const Overrides* base = nullptr;  // nullptr: to be resolved
};
thread_local ThreadScopes t_scopes;

void warn(const std::vector<std::string>& names) {
  if (names.empty()) return;
  std::string sentence = names.size() == 1 ? "unknown switch " : "unknown switches ";
  for (size_t i = 0; i < names.size(); ++i) {
    sentence += (i ? ", " : "") + names[i] + " (nearest known name: " + std::string(nearest_switch(names[i])) + ")";
  }
  if (const WarningHandler handler = environment().handler.load()) {
    handler(sentence);
  } else {
    std::fprintf(stderr, "strata_gdn: warning: %s\n", sentence.c_str());
  }
}

const Overrides* read_environment() {
  Assignments known;
  std::vector<std::string> unknown;
  for (char** line = environ; line && *line; ++line) {
    const std::string_view text = *line;
    const size_t equals = text.find('=');
    if (text.substr(0, kPrefix.size()) != kPrefix || equals == std::string_view::npos) continue;
    std::string name(text.substr(0, equals));
    if (find(name)) {
      known.push_back({std::move(name), std::string(text.substr(equals + 1))});
    } else {
      unknown.push_back(std::move(name));
    }
  }
  auto fresh = std::make_unique<const Overrides>(parse_overrides(known, Overrides{}, Source::environment));

  Environment& env = environment();
  const Overrides* current = nullptr;
  {
    const std::lock_guard<std::mutex> lock(env.mutex);
    for (const auto& old : env.read) {
      if (old->settings == fresh->settings) current = old.get();
    }
    if (!current) {
      current = fresh.get();
      env.read.push_back(std::move(fresh));
    }
    env.current.store(current, std::memory_order_release);
    unknown.erase(std::remove_if(unknown.begin(), unknown.end(),
                                 [&](const std::string& name) { return !env.warned_names.insert(name).second; }),
                  unknown.end());
  }
  std::sort(unknown.begin(), unknown.end());
  warn(unknown);  // outside the lock: the handler may wait for Python's
  return current;
}

}  // namespace

SwitchInfo info(Switch id) {
  const Entry& e = entry(id);
  return {e.name, allowed_words(e), e.kind, e.meaning};
}

const char* name(Switch id) { return entry(id).name; }

const char* name(Source source) {
  constexpr const char* kNames[] = {"built-in", "arch default", "environment", "override"};
  return kNames[static_cast<int32_t>(source)];
}

Overrides parse_overrides(const Assignments& changes, const Overrides& base, Source source) {
  Overrides result = base;
  for (const Assignment& change : changes) {
    const Entry* e = find(change.name);
    if (!e) {
      throw std::invalid_argument("unknown switch " + change.name +
                                  " (nearest known name: " + std::string(nearest_switch(change.name)) + ")");
    }
    if (e->kind == Kind::build_time && source == Source::override_scope) {
      throw std::invalid_argument(change.name + " is read when the package is built and cannot be overridden");
    }
    Setting& setting = result.settings[static_cast<size_t>(e->id)];
    if (!change.value) {
      setting = Setting{};
      if (e->id == Switch::emulate) result.emulate.reset();
      continue;
    }
    const auto number = parse_value(*e, *change.value, result);
    if (!number) {
      throw std::invalid_argument(change.name + " must be " + allowed_words(*e) + "; got '" + *change.value + "'");
    }
    setting = {source, *number, *change.value};
  }
  return result;
}

Effective effective(const Overrides& overrides, Switch id, const Arch* arch) {
  const auto choice = [](const Entry& e, int32_t number) {
    return number == kUnset ? std::string_view{} : e.choices[static_cast<size_t>(number)];
  };
  const Entry& e = entry(id);
  const Setting& setting = overrides[id];
  if (setting.source >= Source::environment) return {setting.number, setting.text, setting.source};
  if (arch && id != Switch::arch_defaults && effective(overrides, Switch::arch_defaults, nullptr).number == 1) {
    for (const ArchDefault& row : kArchDefaults) {
      if (row.id == id && row.vendor == arch->vendor && arch->number >= row.first && arch->number <= row.last) {
        return {row.number, choice(e, row.number), Source::arch_default};
      }
    }
  }
  return {e.built_in, choice(e, e.built_in), Source::built_in};
}

Arch emulated(Arch real, const Overrides& overrides) {
  if (!overrides.emulate) return real;
  const Arch asked = *overrides.emulate;
  if ((asked.vendor == Vendor::cpu) != (real.vendor == Vendor::cpu)) return real;
  if (real.vendor == Vendor::cpu) return {Vendor::cpu, std::min(real.number, asked.number)};
  return asked;
}

const Overrides& current_overrides() {
  const Overrides* base = environment().current.load(std::memory_order_acquire);
  if (!base) base = read_environment();
  ThreadScopes& thread = t_scopes;
  if (thread.scopes.empty()) return *base;
  if (thread.base != base) {
    thread.resolved = *base;
    for (const Scope& scope : thread.scopes) {
      thread.resolved = parse_overrides(scope.changes, thread.resolved, Source::override_scope);
    }
    thread.base = base;
  }
  return thread.resolved;
}

void reload_environment() { read_environment(); }

int64_t push_overrides(const Assignments& changes) {
  static std::atomic<int64_t> next_id{0};
  parse_overrides(changes, current_overrides(), Source::override_scope);  // throws before anything changes
  ThreadScopes& thread = t_scopes;
  const int64_t id = next_id++;
  thread.scopes.push_back({id, changes});
  thread.base = nullptr;
  return id;
}

void pop_overrides(int64_t id) {
  ThreadScopes& thread = t_scopes;
  const auto scope =
      std::find_if(thread.scopes.begin(), thread.scopes.end(), [&](const Scope& s) { return s.id == id; });
  if (scope == thread.scopes.end()) {
    throw std::runtime_error("registry.overrides: a scope must be left on the thread that entered it");
  }
  thread.scopes.erase(scope);
  thread.base = nullptr;
}

void set_warning_handler(WarningHandler handler) { environment().handler.store(handler); }

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates) {
  std::string_view best;
  size_t best_distance = static_cast<size_t>(-1);
  std::vector<size_t> row;
  for (std::string_view candidate : candidates) {
    row.resize(candidate.size() + 1);
    for (size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j < row.size(); ++j) {
        const size_t substituted = diagonal + (word[i - 1] != candidate[j - 1]);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

std::string join_words(const std::vector<std::string_view>& words, std::string_view last) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i) text += i + 1 == words.size() ? " " + std::string(last) + " " : ", ";
    text += words[i];
  }
  return text;
}

}  // namespace gdn::policy
