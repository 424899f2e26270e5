#include "launch.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

namespace rdna {

void Group::arrive(const Wave& w) {
  stores_waited_for[w.number].push_back(!w.waits.stores_under_way());
  ++signals;
  if (signals < alive) return;
  signals = 0;
  ++epoch;
}

bool Group::stores_arrived(uint32_t wave, uint32_t from_epoch, uint32_t to_epoch) const {
  const std::vector<bool>& waited_for = stores_waited_for[wave];
  for (size_t barrier = from_epoch; barrier < to_epoch && barrier < waited_for.size(); ++barrier) {
    if (waited_for[barrier]) return true;
  }
  return false;
}

// Waves that have ended are not waited for.
void Group::one_less() {
  --alive;
  if (alive == 0 || signals < alive) return;
  signals = 0;
  ++epoch;
}

namespace {

// Unwritten LDS and registers: a NaN that is easy to recognise.
constexpr uint8_t kPoisonByte = 0xff;
constexpr uint32_t kPoison = 0xffffffff;

uint32_t threads_of(const Launch& launch) { return launch.block[0] * launch.block[1] * launch.block[2]; }

void set_group_ids(const Launch& launch, const Group& group, Wave& w, uint32_t next) {
  constexpr int x_register = kTtmp + 9, yz_register = kTtmp + 7;
  if (launch.group_ids_in_ttmp) {
    w.s[x_register] = group.id[0];
    w.s[yz_register] = group.id[1] | group.id[2] << 16;
  }
  for (int axis = 0; axis < 3; ++axis) {
    if (launch.group_id_in_register[axis]) w.s[next++] = group.id[axis];
  }
  if (launch.wave_offset_register) w.s[next] = 0;
}

void set_item_ids(const Launch& launch, Wave& w) {
  constexpr int bits = 10;
  for (uint32_t l = 0; l < kLanes; ++l) {
    const uint32_t item = w.number * kLanes + l;
    const uint32_t id[3] = {item % launch.block[0], item / launch.block[0] % launch.block[1],
                            item / (launch.block[0] * launch.block[1])};
    for (int axis = 0; axis < 3; ++axis) {
      if (!launch.packed_ids) w.v[axis][l] = id[axis];
    }
    if (launch.packed_ids) w.v[0][l] = id[0] | id[1] << bits | id[2] << (2 * bits);
  }
}

std::unique_ptr<Wave> new_wave(const Launch& launch, Group& group, uint32_t number) {
  auto w = std::make_unique<Wave>();
  std::fill_n(&w->v[0][0], kVectorRegisters * kLanes, kPoison);
  std::fill_n(w->s, kScalarRegisters, kPoison);
  w->s[kNull] = w->s[kScc] = 0;
  w->set_pair(kPrivateBase, uint64_t{kPrivateAperture} << 32);
  w->set_pair(kSharedBase, uint64_t{kSharedAperture} << 32);
  w->launch = &launch;
  w->group = &group;
  w->number = number;
  const uint32_t items = std::min<uint32_t>(kLanes, threads_of(launch) - number * kLanes);
  w->s[kExec] = items == kLanes ? ~0u : (1u << items) - 1;
  w->s[kExec + 1] = 0;
  std::copy(launch.user_registers.begin(), launch.user_registers.end(), w->s);
  set_group_ids(launch, group, *w, static_cast<uint32_t>(launch.user_registers.size()));
  set_item_ids(launch, *w);
  w->scratch.assign(static_cast<size_t>(launch.private_bytes) * kLanes, kPoisonByte);
  return w;
}

std::string place(const Wave& w) {
  const Launch& launch = *w.launch;
  const Group& g = *w.group;
  std::string text = launch.program->name + ", work-group (" + std::to_string(g.id[0]) + ", " +
                     std::to_string(g.id[1]) + ", " + std::to_string(g.id[2]) + "), wave " + std::to_string(w.number);
  if (w.pc > 0) text += ", '" + launch.program->instructions[w.pc - 1].text + "'";
  return text;
}

// More than any kernel of a test executes: a wave that waits for what no other one does.
constexpr uint64_t kMostInstructions = uint64_t{1} << 30;

// Until the wave ends, waits at a barrier, or has had its turn.
void run_turn(Wave& w, uint32_t instructions) {
  const std::vector<Instruction>& program = w.launch->program->instructions;
  for (uint32_t i = 0; i < instructions && !w.done; ++i) {
    if (w.pc >= program.size()) throw Fault("the program goes on past its end");
    const Instruction& in = program[w.pc++];
    w.waits.check(in);
    in.run(w, in);
    if (w.blocked) {
      --w.pc;
      return;
    }
    ++w.counts[static_cast<size_t>(in.counted)];
    if (++w.executed > kMostInstructions) throw Fault("a wave that does not end");
  }
}

Counts run_group(const Launch& launch, uint32_t number, const uint32_t (&id)[3], std::mt19937_64 random) {
  constexpr uint32_t turns = 9;  // of 1, 2, 4, ... 256 instructions: short ones interleave the waves finely
  Group group;
  group.launch = &launch;
  group.number = number;
  std::copy(std::begin(id), std::end(id), group.id);
  group.shared.assign(launch.shared_bytes, kPoisonByte);
  group.shadow.resize(launch.shared_bytes);
  const uint32_t count = (threads_of(launch) + kLanes - 1) / kLanes;
  group.alive = count;
  group.stores_waited_for.resize(count);
  std::vector<std::unique_ptr<Wave>> waves;
  for (uint32_t i = 0; i < count; ++i) waves.push_back(new_wave(launch, group, i));
  std::vector<Wave*> running;
  for (const auto& w : waves) running.push_back(w.get());
  while (!running.empty()) {
    std::shuffle(running.begin(), running.end(), random);
    bool moved = false;
    for (Wave* w : running) {
      try {
        const uint32_t epoch = group.epoch, pc = w->pc;
        run_turn(*w, 1u << random() % turns);
        moved = moved || w->done || !w->blocked || w->pc != pc || group.epoch != epoch;
        w->blocked = false;
      } catch (const Fault& fault) {
        throw Fault(std::string(fault.what()) + "; in " + place(*w));
      }
    }
    if (!moved) throw Fault("every wave waits at a barrier that cannot complete; in " + place(*running.front()));
    std::erase_if(running, [](const Wave* w) { return w->done; });
  }
  Counts counts{};
  for (const auto& w : waves) {
    for (size_t i = 0; i < counts.size(); ++i) counts[i] += w->counts[i];
  }
  return counts;
}

}  // namespace

Counts run(const Launch& launch) {
  const uint64_t groups = static_cast<uint64_t>(launch.grid[0]) * launch.grid[1] * launch.grid[2];
  std::vector<uint64_t> order(groups);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(launch.options.seed));
  std::atomic<uint64_t> next{0};
  std::mutex mutex;
  Counts counts{};
  std::exception_ptr first_fault;
  const auto work = [&] {
    for (uint64_t i = next++; i < groups; i = next++) {
      const uint64_t g = order[i];
      const uint32_t id[3] = {static_cast<uint32_t>(g % launch.grid[0]),
                              static_cast<uint32_t>(g / launch.grid[0] % launch.grid[1]),
                              static_cast<uint32_t>(g / launch.grid[0] / launch.grid[1])};
      try {
        const Counts c =
            run_group(launch, static_cast<uint32_t>(g), id, std::mt19937_64(launch.options.seed ^ (g + 1)));
        const std::lock_guard lock(mutex);
        for (size_t k = 0; k < counts.size(); ++k) counts[k] += c[k];
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first_fault) first_fault = std::current_exception();
        next = groups;
      }
    }
  };
  const auto threads =
      static_cast<size_t>(std::min<uint64_t>(groups, static_cast<uint64_t>(std::max(1, launch.options.threads))));
  std::vector<std::thread> others;
  for (size_t i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& t : others) t.join();
  if (first_fault) std::rethrow_exception(first_fault);
  return counts;
}

}  // namespace rdna
