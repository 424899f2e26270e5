#include "waits.h"

#include <algorithm>

namespace rdna {
namespace {

std::string name_of(const Registers& registers) {
  for (size_t i = 0; i < registers.size(); ++i) {
    if (registers[i]) return i < 256 ? "v" + std::to_string(i) : "s" + std::to_string(i - 256);
  }
  return "no register";
}

constexpr int kSplitCounters = 12;  // the first generation in which LDS and scalar loads have counters of their own

bool same_counter(Counter a, Counter b, int generation) {
  const auto joined = [&](Counter c) {
    return generation < kSplitCounters && c == Counter::scalar ? Counter::shared : c;
  };
  return joined(a) == joined(b);
}

}  // namespace

void Waits::issue(Counter counter, const Instruction& in) {
  events_.push_back({counter, in.written_late, &in});
  pending_ |= in.written_late;
  ++count_;
}

void Waits::check_in_full(const Instruction& in) const {
  for (const Event& e : events_) {
    const Registers hit = in.touched & e.registers;
    if (hit.none()) continue;
    const bool both_load = in.written_late.any() && in.counted == e.instruction->counted;
    if (e.counter != Counter::scalar && both_load && (hit & ~in.written_late).none()) continue;
    throw Fault("missing wait: " + name_of(hit) + " is used while '" + e.instruction->text + "' has still to write it");
  }
}

// Loads of one counter arrive in order, except scalar ones: while one of those is under way, only a wait for zero says
// anything about that counter.
void Waits::complete(Counter counter, int generation, uint8_t limit) {
  const auto counts = [&](const Event& e) { return same_counter(e.counter, counter, generation); };
  auto under_way = std::count_if(events_.begin(), events_.end(), counts);
  if (under_way <= limit) return;
  const bool out_of_order = std::any_of(events_.begin(), events_.end(),
                                        [&](const Event& e) { return counts(e) && e.counter == Counter::scalar; });
  if (out_of_order && limit > 0) return;
  const auto arrived = [&](const Event& e) { return counts(e) && under_way-- > limit; };
  std::vector<Event> left;
  std::copy_if(events_.begin(), events_.end(), std::back_inserter(left), [&](const Event& e) { return !arrived(e); });
  events_ = std::move(left);
}

void Waits::wait(const WaitLimits& limits, int generation) {
  if (count_ == 0) return;
  for (int c = 0; c < kCounters; ++c) {
    if (limits[c] != kNoLimit) complete(static_cast<Counter>(c), generation, limits[c]);
  }
  count_ = static_cast<int>(events_.size());
  pending_.reset();
  for (const Event& e : events_) pending_ |= e.registers;
}

bool Waits::stores_under_way() const {
  return std::any_of(events_.begin(), events_.end(), [](const Event& e) { return e.counter == Counter::store; });
}

void Waits::check_barrier() const {
  for (const Event& e : events_) {
    if (e.counter != Counter::shared) continue;
    throw Fault("missing wait: '" + e.instruction->text + "' is under way at a barrier");
  }
}

}  // namespace rdna
