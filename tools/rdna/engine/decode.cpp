#include "decode.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "lanes.h"
#include "names.h"
#include "operands.h"
#include "tables.h"
#include "text.h"

namespace rdna {
namespace {

constexpr int kFirstScalar = kVectorRegisters;  // in a set of registers

void add_registers(Registers& set, const Operand& o) {
  const bool vector = o.kind == Operand::Kind::vector;
  if ((!vector && o.kind != Operand::Kind::scalar) || (!vector && o.reg == kNull)) return;
  const int first = vector ? o.reg : kFirstScalar + o.reg;
  for (int i = 0; i < o.words; ++i) set.set(static_cast<size_t>(first + i));
}

// What instructions read that is no operand of their text.
bool reads_vcc(std::string_view name, int operands) {
  constexpr std::string_view always[] = {"v_div_fmas_f32", "s_cbranch_vccz", "s_cbranch_vccnz"};
  constexpr int with_mask = 4;
  return std::find(std::begin(always), std::end(always), name) != std::end(always) ||
         (name.substr(0, 9) == "v_cndmask" && operands < with_mask);
}

// "vmcnt(0) lgkmcnt(3)"
WaitLimits parse_old_wait(std::string_view rest) {
  struct Named {
    std::string_view name;
    Counter counter;
  };
  constexpr Named kNamed[] = {{"vmcnt", Counter::load}, {"lgkmcnt", Counter::shared}};
  WaitLimits limits = no_limits();
  for (const std::string_view word : split(rest, ' ')) {
    const size_t bracket = word.find('(');
    if (bracket == std::string_view::npos) {
      if (word.empty() || word == "&") continue;
      throw Fault("unknown wait '" + std::string(word) + "'");
    }
    const std::string_view name = word.substr(0, bracket);
    const auto value = parse_integer(word.substr(bracket + 1, word.size() - bracket - 2));
    const auto* known =
        std::find_if(std::begin(kNamed), std::end(kNamed), [&](const Named& n) { return n.name == name; });
    if (known != std::end(kNamed)) {
      limits[static_cast<size_t>(known->counter)] = static_cast<uint8_t>(value.value());
    } else if (name != "expcnt") {  // of exports: there are none
      throw Fault("unknown wait '" + std::string(word) + "'");
    }
  }
  return limits;
}

WaitLimits parse_wait(std::string_view name, const Instruction& in) {
  struct Named {
    std::string_view name;
    Counter counter;
    int shift;
  };
  constexpr Named kNamed[] = {
      {"s_waitcnt_vscnt", Counter::store, 0},        {"s_wait_loadcnt", Counter::load, 0},
      {"s_wait_storecnt", Counter::store, 0},        {"s_wait_dscnt", Counter::shared, 0},
      {"s_wait_kmcnt", Counter::scalar, 0},          {"s_wait_loadcnt_dscnt", Counter::load, 8},
      {"s_wait_loadcnt_dscnt", Counter::shared, 0},  {"s_wait_storecnt_dscnt", Counter::store, 8},
      {"s_wait_storecnt_dscnt", Counter::shared, 0},
  };
  constexpr int field = 0x3f;
  WaitLimits limits = no_limits();
  for (const Named& n : kNamed) {
    if (n.name != name) continue;
    const int64_t value = in.op[in.count - 1].integer;
    limits[static_cast<size_t>(n.counter)] = static_cast<uint8_t>(value >> n.shift & field);
  }
  return limits;
}

// Both halves read before either writes; they write different registers.
void run_both(Wave& w, const Instruction& in) {
  const Instruction& second = *in.other_half;
  uint32_t* first_register = w.v[in.op[0].reg];
  Lanes<uint32_t> before, after;
  std::memcpy(before.at, first_register, sizeof before.at);
  in.first_half(w, in);
  std::memcpy(after.at, first_register, sizeof after.at);
  std::memcpy(first_register, before.at, sizeof before.at);
  second.run(w, second);
  std::memcpy(first_register, after.at, sizeof after.at);
}

Instruction decode_one(std::string_view mnemonic, std::string_view rest) {
  constexpr std::string_view dual = "v_dual_";
  std::string name = plain_name(mnemonic);
  Instruction in;
  in.counted = class_of(name);
  if (name.substr(0, dual.size()) == dual) name = plain_name("v_" + name.substr(dual.size()));
  in.run = find_handler(name);
  if (in.run == nullptr) throw Fault("unknown instruction " + std::string(mnemonic));
  if (name == "s_waitcnt") in.limits = parse_old_wait(rest);
  if (has_free_text(name)) return in;

  const Fields fields = parse_fields(rest);
  if (fields.operands.size() > Instruction::most_operands) throw Fault("more operands than any instruction has");
  for (const std::string_view text : fields.operands) in.op[in.count++] = parse_operand(text);
  const bool between_rows = name.substr(0, 10) == "v_permlane";
  for (const Modifier& m : fields.modifiers) {
    if (between_rows && m.name == "op_sel") {
      select_lanes(in, m.value);
    } else {
      apply_modifier(in, m);
    }
  }
  if (in.counted == Class::wait) in.limits = parse_wait(name, in);

  for (int i = 0; i < in.count; ++i) add_registers(in.touched, in.op[i]);
  if (reads_vcc(name, in.count)) in.touched.set(kFirstScalar + kVcc);
  const bool loads = name.find("_load_") != std::string::npos || name.find("permute_") != std::string::npos ||
                     name.find("swizzle") != std::string::npos;
  if (loads) add_registers(in.written_late, in.op[0]);
  return in;
}

Instruction decode_line(const Line& line) {
  constexpr std::string_view separator = " :: ";
  const size_t at = line.rest.find(separator);
  if (at == std::string_view::npos) return decode_one(line.mnemonic, line.rest);
  Instruction first = decode_one(line.mnemonic, line.rest.substr(0, at));
  const std::string_view second = line.rest.substr(at + separator.size());
  const size_t space = second.find(' ');
  first.other_half = std::make_unique<Instruction>(decode_one(second.substr(0, space), trimmed(second.substr(space))));
  first.touched |= first.other_half->touched;
  first.first_half = first.run;
  first.run = run_both;
  return first;
}

bool is_branch(const Instruction& in) { return in.counted == Class::branch; }

}  // namespace

Program decode(std::string_view name, int generation, uint64_t base, std::string_view disassembly) {
  Program program;
  program.name = name;
  program.generation = generation;
  program.base = base;
  std::map<uint64_t, uint32_t> index_at;
  for (const std::string_view text : split(disassembly, '\n')) {
    const auto line = parse_line(text);
    if (!line) continue;
    try {
      Instruction in = decode_line(*line);
      in.text = line->text;
      in.next_address = line->next_address;
      in.immediate = line->low_bits;
      index_at[line->address] = static_cast<uint32_t>(program.instructions.size());
      program.instructions.push_back(std::move(in));
    } catch (const Fault& fault) {
      throw Fault(program.name + ": " + fault.what() + " in '" + std::string(line->text) + "'");
    }
  }
  for (Instruction& in : program.instructions) {
    if (!is_branch(in)) continue;
    constexpr int64_t word_bytes = 4;
    const uint64_t to = in.next_address + static_cast<uint64_t>(static_cast<int16_t>(in.op[0].integer) * word_bytes);
    const auto found = index_at.find(to);
    if (found == index_at.end()) throw Fault(program.name + ": '" + in.text + "' leads to no instruction");
    in.target = found->second;
  }
  return program;
}

Handler find_handler(std::string_view name) {
  static const std::map<std::string_view, Handler> handlers = [] {
    std::map<std::string_view, Handler> all;
    for (const auto entries :
         {vector_integer_entries(), vector_float_entries(), compare_entries(), cross_lane_entries(), matrix_entries(),
          scalar_entries(), memory_entries(), shared_entries(), control_entries()}) {
      for (const Entry& e : entries) all[e.name] = e.run;
    }
    return all;
  }();
  const auto found = handlers.find(name);
  return found == handlers.end() ? nullptr : found->second;
}

}  // namespace rdna
