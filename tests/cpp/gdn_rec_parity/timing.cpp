#include "timing.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

namespace gdn::rec_parity {
namespace {

// Timings of the same shape on the same multiprocessors, in the order in which they were made.
using Group = std::vector<const Timing*>;

std::vector<Group> groups(const std::vector<Timing>& timings) {
  std::vector<Group> all;
  for (const Timing& timing : timings) {
    const bool same = !all.empty() && all.back().front()->sms == timing.sms &&
                      all.back().front()->shape.name() == timing.shape.name();
    if (!same) all.emplace_back();
    all.back().push_back(&timing);
  }
  return all;
}

bool faster(const Timing* a, const Timing* b) { return a->median() < b->median(); }

// The fastest, and how much longer the next one takes (1: there is none).
struct Winner {
  const Timing* timing;
  double lead;
};

Winner winner(Group group) {
  std::sort(group.begin(), group.end(), faster);
  return {group.front(), group.size() > 1 ? group[1]->median() / group[0]->median() : 1.0};
}

void print_table(const std::vector<Timing>& timings) {
  const std::vector<Group> rows = groups(timings);
  std::printf("\n%s, us a token\n  %5s", timings.front().shape.name().c_str(), "SMs");
  for (const Timing* timing : rows.front()) std::printf("  %14s", timing->configuration.name().c_str());
  std::printf("  %-14s  %6s  %s\n", "fastest", "lead", "the registry's");
  for (const Group& row : rows) {
    const Winner best = winner(row);
    std::printf("  %5d", row.front()->sms);
    for (const Timing* timing : row) std::printf("  %14.4f", timing->a_token());
    std::printf("  %-14s  %6.3f", best.timing->configuration.name().c_str(), best.lead);
    for (const Timing* timing : row) {
      if (!timing->chosen) continue;
      std::printf("  %s, %.3f times the fastest", timing->configuration.name().c_str(),
                  timing->median() / best.timing->median());
    }
    std::printf("\n");
  }
  for (const Band& band : bands_of(timings)) {
    std::printf("  band %d to %d SMs: %s, the next one takes %.3f to %.3f times as long\n", band.most_sms,
                band.fewest_sms, band.fastest.c_str(), band.least_lead, band.most_lead);
  }
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

// Items as the lines of a JSON array.
void write_list(std::FILE* file, const char* name, const std::vector<std::string>& items) {
  std::fprintf(file, " \"%s\": [", name);
  for (size_t i = 0; i < items.size(); ++i) std::fprintf(file, "%s\n  %s", i == 0 ? "" : ",", items[i].c_str());
  std::fprintf(file, "\n ],\n");
}

std::string formatted(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string record(const Timing& timing) {
  const HeadShape& heads = timing.shape.heads;
  std::string text = "{";
  const std::pair<const char*, int64_t> numbers[] = {{"T", timing.shape.tokens},
                                                     {"H", heads.key_heads},
                                                     {"HV", heads.value_heads},
                                                     {"K", heads.key_dim},
                                                     {"V", heads.value_dim},
                                                     {"sms", timing.sms},
                                                     {"heads", timing.configuration.heads},
                                                     {"columns", timing.configuration.columns},
                                                     {"samples", static_cast<int64_t>(timing.microseconds.size())}};
  for (const auto& [name, value] : numbers) text += quoted(name) + ": " + std::to_string(value) + ", ";
  text += "\"dtype\": " + quoted(name(timing.shape.dtype)) + ", \"kernel\": " + quoted(timing.configuration.kernel);
  text += ", \"median_us\": " + formatted("%.3f", timing.median());
  text += ", \"us_a_token\": " + formatted("%.6f", timing.a_token());
  return text + ", \"chosen\": " + (timing.chosen ? "true" : "false") + "}";
}

std::string record(const Landing& landing) {
  return "{\"held\": " + std::to_string(landing.held) + ", \"alone\": " + std::to_string(landing.alone) +
         ", \"small\": " + std::to_string(landing.small) + ", \"on_held\": " + std::to_string(landing.on_held) + "}";
}

template <class T>
std::vector<std::string> records(const std::vector<T>& items) {
  std::vector<std::string> texts;
  for (const T& item : items) texts.push_back(record(item));
  return texts;
}

}  // namespace

double Timing::median() const {
  std::vector<double> sorted = microseconds;
  std::sort(sorted.begin(), sorted.end());
  const size_t n = sorted.size();
  return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

void print_times(const std::vector<Timing>& timings) {
  std::printf("%-52s %-14s  %10s  %10s  %s\n", "prompt", "kernel", "us", "us a token", "to rec_columns' best");
  for (const Group& group : groups(timings)) {
    Group columns;
    std::copy_if(group.begin(), group.end(), std::back_inserter(columns),
                 [](const Timing* timing) { return timing->configuration.heads == 1; });
    for (const Timing* timing : group) {
      const std::string ratio =
          columns.empty() ? "-" : formatted("%.3f", timing->median() / winner(columns).timing->median());
      std::printf("%-52s %-14s  %10.1f  %10.4f  %s%s\n", timing->shape.name().c_str(),
                  timing->configuration.name().c_str(), timing->median(), timing->a_token(), ratio.c_str(),
                  timing->chosen ? "  chosen" : "");
    }
  }
}

std::vector<Band> bands_of(const std::vector<Timing>& timings) {
  std::vector<Band> bands;
  for (const Group& row : groups(timings)) {
    const Winner best = winner(row);
    const std::string fastest = best.timing->configuration.name();
    if (bands.empty() || bands.back().fastest != fastest) {
      bands.push_back({row.front()->sms, row.front()->sms, fastest, best.lead, best.lead});
    }
    Band& band = bands.back();
    band.fewest_sms = row.front()->sms;
    band.least_lead = std::min(band.least_lead, best.lead);
    band.most_lead = std::max(band.most_lead, best.lead);
  }
  return bands;
}

void print_bands(const std::vector<Timing>& timings) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<Timing>> of_shape;
  for (const Timing& timing : timings) {
    std::vector<Timing>& own = of_shape[timing.shape.name()];
    if (own.empty()) order.push_back(timing.shape.name());
    own.push_back(timing);
  }
  for (const std::string& shape : order) print_table(of_shape[shape]);
}

void write_json(const Options& options, const Measured& measured, const Counts& counts) {
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(options.json.c_str(), "w"), close);
  if (!file) throw std::runtime_error(options.json + ": " + std::strerror(errno));
  std::vector<std::string> command;
  for (const std::string& word : options.command) command.push_back(quoted(word));
  std::fprintf(file.get(), "{\n");
  write_list(file.get(), "command", command);
  std::fprintf(file.get(), " \"card\": {\"name\": %s, \"arch\": %s, \"sms\": %d},\n",
               quoted(measured.card.name).c_str(), quoted(measured.card.arch).c_str(), measured.card.sms);
  write_list(file.get(), "landings", records(measured.landings));
  write_list(file.get(), "results", records(measured.timings));
  std::fprintf(file.get(), " \"checks\": %lld,\n \"failures\": %lld\n}\n", static_cast<long long>(counts.checks),
               static_cast<long long>(counts.failures));
  if (std::ferror(file.get()) != 0) throw std::runtime_error(options.json + ": cannot be written");
}

}  // namespace gdn::rec_parity
