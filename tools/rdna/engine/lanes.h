// Operands as the 32 lanes see them, and handlers made from functions of one lane.
#pragma once

#include <cstring>
#include <tuple>
#include <type_traits>

#include "state.h"

namespace rdna {

using Half = _Float16;

template <class T>
struct Lanes {
  alignas(64) T at[kLanes];
};

template <class T, class U>
T bits_as(U value) {
  static_assert(sizeof(T) == sizeof(U));
  T out;
  std::memcpy(&out, &value, sizeof out);
  return out;
}

// The unsigned integer of a type's size.
template <class T>
using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;

// A constant of an instruction as a source of type T has it.
template <class T>
Bits<T> constant(const Operand& o) {
  if (o.kind == Operand::Kind::real) {
    if constexpr (sizeof(T) == 2) return bits_as<uint16_t>(static_cast<Half>(o.real));
    if constexpr (sizeof(T) == 8) return bits_as<uint64_t>(o.real);
    if constexpr (sizeof(T) == 4) return bits_as<uint32_t>(static_cast<float>(o.real));
  }
  if constexpr (sizeof(T) == 8) {  // a literal has 32 bits: the upper ones of a double
    if (o.literal && std::is_floating_point_v<T>) return static_cast<uint64_t>(o.integer) << 32;
    if (o.literal && std::is_signed_v<T>) return static_cast<int64_t>(static_cast<int32_t>(o.integer));
  }
  return static_cast<Bits<T>>(o.integer);
}

template <class T>
Bits<T> with_modifiers(const Operand& o, Bits<T> bits) {
  constexpr Bits<T> sign = static_cast<Bits<T>>(Bits<T>{1} << (8 * sizeof(T) - 1));
  if (o.absolute) bits &= static_cast<Bits<T>>(~sign);
  if (o.negate) bits ^= sign;
  return bits;
}

// A 32-bit register's part that the operand names.
inline uint32_t part(const Operand& o, uint32_t word) {
  if (o.bits == 32) return word;
  const uint32_t value = word >> o.shift, unused = 32u - o.bits;
  return o.sign_extend ? static_cast<uint32_t>(static_cast<int32_t>(value << unused) >> unused)
                       : value << unused >> unused;
}

template <class T>
T scalar_value(const Wave& w, const Operand& o) {
  Bits<T> bits;
  if (o.kind == Operand::Kind::scalar) {
    if constexpr (sizeof(T) == 8) {
      bits = w.pair(o.reg);
    } else {
      bits = static_cast<Bits<T>>(part(o, w.s[o.reg]));
    }
  } else {
    bits = constant<T>(o);
  }
  return bits_as<T>(with_modifiers<T>(o, bits));
}

template <class T>
void permute(const Wave& w, const LanePattern& pattern, Lanes<T>& x) {
  const Lanes<T> old = x;
  for (int l = 0; l < kLanes; ++l) {
    const int from = pattern.from[l];
    const bool valid = from >= 0 && (pattern.from_inactive || (w.exec() >> from & 1));
    x.at[l] = valid ? old.at[from] : T{};
  }
}

// Source `i` of every lane; the first source of an instruction goes through its lane pattern.
template <class T>
Lanes<T> read(const Wave& w, const Instruction& in, int i, bool first_source = false) {
  const Operand& o = in.op[i];
  Lanes<T> x;
  if (o.kind != Operand::Kind::vector) {
    const T value = scalar_value<T>(w, o);
    for (int l = 0; l < kLanes; ++l) x.at[l] = value;
    return x;
  }
  const uint32_t* low = w.v[o.reg];
  if constexpr (sizeof(T) == 8) {
    const uint32_t* high = w.v[o.reg + 1];
    for (int l = 0; l < kLanes; ++l) x.at[l] = bits_as<T>(low[l] | static_cast<uint64_t>(high[l]) << 32);
  } else if (o.bits == 32) {
    for (int l = 0; l < kLanes; ++l) x.at[l] = bits_as<T>(static_cast<Bits<T>>(low[l]));
  } else {
    for (int l = 0; l < kLanes; ++l) x.at[l] = bits_as<T>(static_cast<Bits<T>>(part(o, low[l])));
  }
  if (in.lanes && first_source) permute(w, *in.lanes, x);
  if (o.absolute || o.negate) {
    for (int l = 0; l < kLanes; ++l) x.at[l] = bits_as<T>(with_modifiers<T>(o, bits_as<Bits<T>>(x.at[l])));
  }
  return x;
}

// The lanes that an instruction writes.
inline uint32_t written_lanes(const Wave& w, const Instruction& in) {
  uint32_t mask = w.exec();
  if (!in.lanes) return mask;
  mask &= in.lanes->rows;
  if (in.lanes->zero_where_none) return mask;
  for (int l = 0; l < kLanes; ++l) {
    const int from = in.lanes->from[l];
    const bool valid = from >= 0 && (in.lanes->from_inactive || (w.exec() >> from & 1));
    if (!valid) mask &= ~(1u << l);
  }
  return mask;
}

inline void write_words(Wave& w, uint32_t mask, int reg, const Lanes<uint32_t>& x) {
  uint32_t* to = w.v[reg];
  if (mask == ~0u) {
    std::memcpy(to, x.at, sizeof x.at);
  } else {
    for (int l = 0; l < kLanes; ++l) to[l] = mask >> l & 1 ? x.at[l] : to[l];
  }
}

// 16-bit results leave the register's other half as it is; the parts that SDWA selects leave zeros.
template <class T>
void write(Wave& w, const Instruction& in, int i, const Lanes<T>& x) {
  const Operand& o = in.op[i];
  const uint32_t mask = written_lanes(w, in);
  Lanes<uint32_t> low;
  if constexpr (sizeof(T) == 8) {
    Lanes<uint32_t> high;
    for (int l = 0; l < kLanes; ++l) {
      const auto bits = bits_as<uint64_t>(x.at[l]);
      low.at[l] = static_cast<uint32_t>(bits);
      high.at[l] = static_cast<uint32_t>(bits >> 32);
    }
    write_words(w, mask, o.reg + 1, high);
  } else if constexpr (sizeof(T) == 2) {
    const uint32_t kept = ~(0xffffu << o.shift);
    for (int l = 0; l < kLanes; ++l) {
      low.at[l] = (w.v[o.reg][l] & kept) | static_cast<uint32_t>(bits_as<uint16_t>(x.at[l])) << o.shift;
    }
  } else if (o.bits < 32) {
    const uint32_t kept = (1u << o.bits) - 1;
    for (int l = 0; l < kLanes; ++l) low.at[l] = (bits_as<uint32_t>(x.at[l]) & kept) << o.shift;
  } else {
    std::memcpy(low.at, x.at, sizeof low.at);
  }
  write_words(w, mask, o.reg, low);
}

// A mask with a bit a lane, zero where a lane is inactive.
inline void write_mask(Wave& w, const Operand& to, uint32_t mask) { w.set_scalar(to.reg, mask); }

template <class F>
struct Signature : Signature<decltype(&F::operator())> {};
template <class F, class R, class... A>
struct Signature<R (F::*)(A...) const> {
  using Result = R;
  template <template <class...> class To>
  using Arguments = To<A...>;
};

template <class... A>
struct Types {};

// operand 0 = f(operand 1, operand 2, ...) in every lane.
template <auto f>
void lanewise(Wave& w, const Instruction& in) {
  using S = Signature<decltype(f)>;
  const auto run = [&]<class... A>(Types<A...>) {
    int i = 0;
    const auto next = [&]<class T>(Types<T>) {
      ++i;
      return read<T>(w, in, i, i == 1);
    };
    const std::tuple<Lanes<A>...> sources{next(Types<A>{})...};
    Lanes<typename S::Result> result;
    std::apply(
        [&](const auto&... x) {
          for (int l = 0; l < kLanes; ++l) result.at[l] = f(x.at[l]...);
        },
        sources);
    write(w, in, 0, result);
  };
  run(typename S::template Arguments<Types>{});
}

// operand 0 = f(operand 1, operand 2, operand 0)
template <auto f>
void accumulate(Wave& w, const Instruction& in) {
  using T = typename Signature<decltype(f)>::Result;
  const Lanes<T> a = read<T>(w, in, 1, true), b = read<T>(w, in, 2), c = read<T>(w, in, 0);
  Lanes<T> result;
  for (int l = 0; l < kLanes; ++l) result.at[l] = f(a.at[l], b.at[l], c.at[l]);
  write(w, in, 0, result);
}

// A line of the instruction tables.
struct Entry {
  const char* name;  // gfx12's, without _e32 and _e64
  Handler run;
};

}  // namespace rdna
