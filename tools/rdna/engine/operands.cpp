#include "operands.h"

#include <charconv>
#include <cstdlib>

#include "state.h"

namespace rdna {
namespace {

struct Named {
  std::string_view name;
  uint16_t reg;
  uint8_t words;
};
constexpr Named kNamed[] = {
    {"src_private_base", kPrivateBase, 2},
    {"src_shared_base", kSharedBase, 2},
    {"vcc_lo", kVcc, 1},
    {"vcc_hi", kVcc + 1, 1},
    {"vcc", kVcc, 2},
    {"exec_lo", kExec, 1},
    {"exec_hi", kExec + 1, 1},
    {"exec", kExec, 2},
    {"m0", kM0, 1},
    {"null", kNull, 1},
    {"scc", kScc, 1},
    {"src_scc", kScc, 1},
};

struct File {
  std::string_view prefix;
  Operand::Kind kind;
  uint16_t first;
};
constexpr File kFiles[] = {
    {"ttmp", Operand::Kind::scalar, kTtmp}, {"v", Operand::Kind::vector, 0}, {"s", Operand::Kind::scalar, 0}};

int number(std::string_view text, std::string_view whole) {
  const auto value = parse_integer(text);
  if (!value || *value < 0) throw Fault("unknown operand '" + std::string(whole) + "'");
  return static_cast<int>(*value);
}

// Removes what stands around the inner text, such as | |; whether it was there.
bool unwrap(std::string_view& text, std::string_view before, std::string_view after) {
  if (text.size() < before.size() + after.size() || text.substr(0, before.size()) != before ||
      text.substr(text.size() - after.size()) != after) {
    return false;
  }
  text = text.substr(before.size(), text.size() - before.size() - after.size());
  return true;
}

bool parse_register(std::string_view text, Operand& o) {
  const std::string_view whole = text;
  for (const auto& [suffix, shift] : {std::pair(std::string_view(".l"), 0), std::pair(std::string_view(".h"), 16)}) {
    constexpr int half = 16;
    if (unwrap(text, "", suffix)) {
      o.bits = half;
      o.shift = static_cast<uint8_t>(shift);
    }
  }
  for (const Named& n : kNamed) {
    if (text != n.name) continue;
    o.kind = Operand::Kind::scalar;
    o.reg = n.reg;
    o.words = n.words;
    return true;
  }
  for (const File& f : kFiles) {
    if (text.substr(0, f.prefix.size()) != f.prefix) continue;
    text.remove_prefix(f.prefix.size());
    if (text.empty() || (text[0] != '[' && (text[0] < '0' || text[0] > '9'))) return false;
    int first, last;
    if (unwrap(text, "[", "]")) {
      const size_t colon = text.find(':');
      first = number(text.substr(0, colon), whole);
      last = colon == std::string_view::npos ? first : number(text.substr(colon + 1), whole);
    } else {
      first = last = number(text, whole);
    }
    o.kind = f.kind;
    o.reg = static_cast<uint16_t>(f.first + first);
    o.words = static_cast<uint8_t>(last - first + 1);
    return true;
  }
  return false;
}

bool parse_constant(std::string_view text, Operand& o) {
  if (const auto integer = parse_integer(text)) {
    o.kind = Operand::Kind::integer;
    o.integer = *integer;
    o.literal = text.find('x') != std::string_view::npos;
    return true;
  }
  double real = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), real);
  if (error != std::errc{} || end != text.data() + text.size()) return false;
  o.kind = Operand::Kind::real;
  o.real = real;
  return true;
}

LanePattern& pattern(Instruction& in) {
  if (!in.lanes) {
    in.lanes = std::make_unique<LanePattern>();
    in.lanes->rows = ~0u;
    in.lanes->zero_where_none = in.lanes->from_inactive = false;
    for (int l = 0; l < kLanes; ++l) in.lanes->from[l] = static_cast<int8_t>(l);
  }
  return *in.lanes;
}

std::vector<int> numbers(std::string_view list) {
  std::vector<int> values;
  unwrap(list, "[", "]");
  for (const std::string_view part : split(list, ',')) values.push_back(number(trimmed(part), list));
  return values;
}

// f(lane of a row, constant), negative or beyond the row: no lane
template <int f(int, int)>
void row(Instruction& in, std::string_view value) {
  constexpr int size = 16;
  const int n = value.empty() ? 0 : number(value, value);
  LanePattern& p = pattern(in);
  for (int l = 0; l < kLanes; ++l) {
    const int from = f(l % size, n);
    p.from[l] = static_cast<int8_t>(from < 0 || from >= size ? -1 : l / size * size + from);
  }
}

// Among groups of as many lanes as there are numbers.
void groups(Instruction& in, std::string_view value) {
  const std::vector<int> from = numbers(value);
  const int size = static_cast<int>(from.size());
  LanePattern& p = pattern(in);
  for (int l = 0; l < kLanes; ++l) p.from[l] = static_cast<int8_t>(l / size * size + from[l % size]);
}

// A bit a row, or a bit a bank: four lanes of each row.
void rows_written(Instruction& in, std::string_view value, int lanes, int count) {
  const int bits = number(value, value);
  for (int l = 0; l < kLanes; ++l) {
    if (!(bits >> (l / lanes % count) & 1)) pattern(in).rows &= ~(1u << l);
  }
}

void op_sel(Instruction& in, std::string_view value) {
  // A bit a source, then the destination's. True16 prints the halves in the operands too.
  constexpr uint8_t half = 16;
  const std::vector<int> high = numbers(value);
  for (size_t i = 0; i < high.size(); ++i) {
    Operand& o = in.op[i + 1 == high.size() ? 0 : i + 1];
    if (o.bits == half || high[i] == 0) continue;
    o.bits = half;
    o.shift = half;
  }
}

void select(Operand& o, std::string_view value) {
  struct Selected {
    std::string_view name;
    uint8_t shift, bits;
  };
  constexpr Selected kSelected[] = {{"BYTE_0", 0, 8},  {"BYTE_1", 8, 8},   {"BYTE_2", 16, 8}, {"BYTE_3", 24, 8},
                                    {"WORD_0", 0, 16}, {"WORD_1", 16, 16}, {"DWORD", 0, 32}};
  for (const Selected& s : kSelected) {
    if (s.name != value) continue;
    o.shift = s.shift;
    o.bits = s.bits;
    return;
  }
  throw Fault("unknown selection '" + std::string(value) + "'");
}

int first_source(const Instruction& in) {  // behind a comparison's or an ordinary instruction's result
  return in.count > 2 ? 1 : in.count - 1;
}

void ignored(Instruction&, std::string_view) {}

struct Known {
  std::string_view name;
  void (*apply)(Instruction&, std::string_view value);
};
constexpr Known kModifiers[] = {
    {"offset",
     [](Instruction& in, std::string_view v) {
       if (v.substr(0, 7) != "swizzle") in.offset = static_cast<int32_t>(parse_integer(v).value());
     }},
    {"offset0", [](Instruction& in, std::string_view v) { in.offset = number(v, v); }},
    {"offset1", [](Instruction& in, std::string_view v) { in.second_offset = number(v, v); }},
    {"offen", ignored},
    {"op_sel", op_sel},
    {"quad_perm", groups},
    {"dpp8", groups},
    {"row_shl", row<[](int l, int n) { return l + n; }>},
    {"row_shr", row<[](int l, int n) { return l - n; }>},
    {"row_ror", row<[](int l, int n) { return (l - n) & 15; }>},
    {"row_mirror", row<[](int l, int) { return 15 - l; }>},
    {"row_half_mirror", row<[](int l, int) { return l ^ 7; }>},
    {"row_share", row<[](int, int n) { return n; }>},
    {"row_xmask", row<[](int l, int n) { return l ^ n; }>},
    {"row_mask", [](Instruction& in, std::string_view v) { rows_written(in, v, 16, 4); }},
    {"bank_mask", [](Instruction& in, std::string_view v) { rows_written(in, v, 4, 4); }},
    {"bound_ctrl", [](Instruction& in, std::string_view) { pattern(in).zero_where_none = true; }},
    {"fi", [](Instruction& in, std::string_view v) { pattern(in).from_inactive = v != "0"; }},
    {"dst_sel", [](Instruction& in, std::string_view v) { select(in.op[0], v); }},
    {"dst_unused",
     [](Instruction& in, std::string_view v) {
       if (v != "UNUSED_PAD" && in.op[0].bits != 32) throw Fault("unknown dst_unused:" + std::string(v));
     }},
    {"src0_sel", [](Instruction& in, std::string_view v) { select(in.op[first_source(in)], v); }},
    {"src1_sel", [](Instruction& in, std::string_view v) { select(in.op[first_source(in) + 1], v); }},
    // Caches and their order: there are none.
    {"scope", ignored},
    {"th", ignored},
    {"glc", ignored},
    {"slc", ignored},
    {"dlc", ignored},
};

}  // namespace

Operand parse_operand(std::string_view text) {
  Operand o;
  if (text == "off") return o;
  std::string_view inner = text;
  const bool negative_constant = inner.size() > 1 && inner[0] == '-' && inner[1] >= '0' && inner[1] <= '9';
  if (!negative_constant) o.negate = unwrap(inner, "-", "");
  o.absolute = unwrap(inner, "|", "|");
  o.sign_extend = unwrap(inner, "sext(", ")");
  unwrap(inner, "lit(", ")");
  if (parse_register(inner, o) || parse_constant(inner, o)) return o;
  throw Fault("unknown operand '" + std::string(text) + "'");
}

void select_lanes(Instruction& in, std::string_view op_sel) {
  const std::vector<int> bits = numbers(op_sel);
  LanePattern& p = pattern(in);
  p.from_inactive = bits.at(0) != 0;
  p.zero_where_none = bits.at(1) != 0;
}

void apply_modifier(Instruction& in, const Modifier& modifier) {
  for (const Known& known : kModifiers) {
    if (known.name == modifier.name) return known.apply(in, modifier.value);
  }
  throw Fault("unknown modifier '" + std::string(modifier.name) + "'");
}

}  // namespace rdna
