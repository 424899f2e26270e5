// WMMA: a 16 x 16 product of 16 x 16 operands with 16-bit elements, added to float32. The order in which hardware adds
// is not known: here it is ascending, each step rounded once.
#include <cmath>

#include "lanes.h"
#include "tables.h"

namespace rdna {
namespace {

constexpr int kSize = 16;
constexpr int kResultRegisters = 8;
constexpr int kTwoLayouts = 12;  // from this generation on half of the lanes hold half of an operand

float element(Half, uint16_t bits) { return static_cast<float>(bits_as<Half>(bits)); }
struct Bfloat {};
float element(Bfloat, uint16_t bits) { return bits_as<float>(static_cast<uint32_t>(bits) << 16); }

// Element k of row (of A) or column (of B) `line`. gfx11: in lane `line` (and again in line + 16), two a register.
// gfx12: the first eight in lane `line`, the others in line + 16.
template <class Element>
float operand(const Wave& w, const Operand& o, int line, int k) {
  const bool halves = w.launch->program->generation >= kTwoLayouts;
  constexpr int half = kSize / 2;
  const int lane = halves ? line + kSize * (k / half) : line;
  const int index = halves ? k % half : k;
  const uint32_t word = w.v[o.reg + index / 2][lane];
  return element(Element{}, static_cast<uint16_t>(word >> (16 * (index % 2))));
}

// Row of the result that register r of a lane holds; its column is lane % 16.
int result_row(int generation, int r, int lane) {
  return generation >= kTwoLayouts ? kResultRegisters * (lane / kSize) + r : 2 * r + lane / kSize;
}

template <class Element>
void multiply(Wave& w, const Instruction& in) {
  const int generation = w.launch->program->generation;
  float result[kResultRegisters][kLanes];
  for (int r = 0; r < kResultRegisters; ++r) {
    for (int l = 0; l < kLanes; ++l) {
      const Operand& c = in.op[3];
      float sum = c.kind == Operand::Kind::vector ? bits_as<float>(w.v[c.reg + r][l]) : scalar_value<float>(w, c);
      for (int k = 0; k < kSize; ++k) {
        sum = std::fma(operand<Element>(w, in.op[1], result_row(generation, r, l), k),
                       operand<Element>(w, in.op[2], l % kSize, k), sum);
      }
      result[r][l] = sum;
    }
  }
  std::memcpy(w.v[in.op[0].reg], result, sizeof result);
}

constexpr Entry kEntries[] = {
    {"v_wmma_f32_16x16x16_f16", multiply<Half>},
    {"v_wmma_f32_16x16x16_bf16", multiply<Bfloat>},
};

}  // namespace

std::span<const Entry> matrix_entries() { return kEntries; }

}  // namespace rdna
