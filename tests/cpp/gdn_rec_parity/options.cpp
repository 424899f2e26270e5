#include "options.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <string_view>

#include "configurations.h"

namespace gdn::rec_parity {
namespace {

[[noreturn]] void fail(const std::string& expected, const std::string& got) {
  throw std::invalid_argument("expected " + expected + "; got '" + got + "'");
}

int64_t count(const std::string& text) {
  const bool digits =
      !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  errno = 0;
  const long long value = digits ? std::strtoll(text.c_str(), nullptr, 10) : 0;
  if (value < 1 || errno != 0) fail("a number of at least 1", text);
  return value;
}

Pair pair(const std::string& text) {
  const size_t comma = text.find(',');
  if (comma == std::string::npos) fail("two numbers such as 16,48", text);
  return {count(text.substr(0, comma)), count(text.substr(comma + 1))};
}

constexpr struct {
  const char* name;
  DType dtype;
} kDTypes[] = {{"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}};

DType dtype(const std::string& text) {
  for (const auto& known : kDTypes) {
    if (text == known.name) return known.dtype;
  }
  fail("f32, bf16 or f16", text);
}

Pair heads(const std::string& text) {
  const Pair found = pair(text);
  if (found.second % found.first != 0) fail("H,HV with HV a multiple of H", text);
  return found;
}

Pair dims(const std::string& text) {
  const Pair found = pair(text);
  for (const int64_t dim : {found.first, found.second}) {
    if (dim != 64 && dim != 128 && dim != 256) fail("K,V of 64, 128 or 256 each", text);
  }
  return found;
}

constexpr size_t kAny = std::numeric_limits<size_t>::max();

struct Option {
  const char* name;
  const char* values;  // in the usage
  const char* help;
  size_t fewest, most;
  void (*take)(Options&, const std::vector<std::string>&);
};

template <auto member, auto convert>
void append(Options& options, const std::vector<std::string>& values) {
  for (const std::string& value : values) (options.*member).push_back(convert(value));
}

std::string kernel(const std::string& text) {
  std::string known;
  for (const Configuration& configuration : kConfigurations) {
    if (text == configuration.kernel) return text;
    if (known.find(configuration.kernel) != std::string::npos) continue;
    known += (known.empty() ? "" : " or ") + std::string(configuration.kernel);
  }
  fail(known, text);
}

const Option kOptions[] = {
    {"--kernel", "NAME...", "only these kernels: rec_columns, rec_keyhead", 1, kAny, append<&Options::kernels, kernel>},
    {"--tokens", "T...", "lengths (default: 1 to 4099; --bench: 128 to 32768; --sms: 2048)", 1, kAny,
     append<&Options::tokens, count>},
    {"--heads", "H,HV...", "key and value heads (default: 1, 2, 3, 4 and 8 value heads a key head; --bench: layers)", 1,
     kAny, append<&Options::heads, heads>},
    {"--dims", "K,V...", "key and value dimensions (default: in turn; --bench: 128,128)", 1, kAny,
     append<&Options::dims, dims>},
    {"--dtype", "NAME...", "of q, k, v and o: f32, bf16, f16 (default: in turn; --bench: bf16)", 1, kAny,
     append<&Options::dtypes, dtype>},
    {"--bench", "", "times instead: every configuration in turn", 0, 0,
     [](Options& o, const std::vector<std::string>&) { o.bench = true; }},
    {"--sms", "[N...]", "with --bench: on so many SMs, the others held (default: all of them down to 32)", 0, kAny,
     [](Options& o, const std::vector<std::string>& values) {
       o.fewer_sms = true;
       append<&Options::sms, count>(o, values);
     }},
    {"--json", "FILE", "with --bench: writes card, command and medians", 1, 1,
     [](Options& o, const std::vector<std::string>& values) { o.json = values[0]; }},
    {"--help", "", "this text", 0, 0, [](Options& o, const std::vector<std::string>&) { o.help = true; }},
};

bool is_option(std::string_view word) { return word.substr(0, 2) == "--"; }

std::string file_name(const std::string& path) { return std::filesystem::path(path).filename().string(); }

}  // namespace

Options parse(int argc, const char* const* argv) {
  Options options;
  options.command.push_back(file_name(argv[0]));
  for (int i = 1; i < argc;) {
    const std::string word = argv[i++];
    const auto* option =
        std::find_if(std::begin(kOptions), std::end(kOptions), [&](const Option& known) { return word == known.name; });
    if (option == std::end(kOptions)) throw std::invalid_argument("unknown option '" + word + "'; --help lists them");
    std::vector<std::string> values;
    while (i < argc && !is_option(argv[i]) && values.size() < option->most) values.push_back(argv[i++]);
    if (values.size() < option->fewest) throw std::invalid_argument(word + " needs a value");
    try {
      option->take(options, values);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(word + ": " + error.what());
    }
    options.command.push_back(word);
    for (const std::string& value : values) options.command.push_back(word == "--json" ? file_name(value) : value);
  }
  if ((options.fewer_sms || !options.json.empty()) && !options.bench) {
    throw std::invalid_argument("--sms and --json need --bench");
  }
  return options;
}

std::string usage() {
  std::string lines = "gdn_rec_parity: the CUDA recurrences against the CPU's bits, and their times\n";
  for (const Option& option : kOptions) {
    std::string head = std::string("  ") + option.name + " " + option.values;
    head.resize(std::max<size_t>(head.size() + 2, 22), ' ');
    lines += head + option.help + "\n";
  }
  return lines;
}

const char* name(DType dtype) {
  for (const auto& known : kDTypes) {
    if (dtype == known.dtype) return known.name;
  }
  throw std::logic_error("name: a DType without a line in kDTypes");
}

}  // namespace gdn::rec_parity
