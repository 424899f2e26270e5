// core/quick_silu.h with the worst exp2 and reciprocal that its error bound allows: what it decides is what the exact
// function rounds to, and it decides nearly always. A negative control: with errors beyond the bound it is caught.
//
//   test_quick_silu     every 509th float32 input, each with all combinations of errors; returns 0 or 1
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <initializer_list>

#include "core/exact_math.h"
#include "core/quick_silu.h"

namespace {

using namespace gdn;

// Relative errors, as a factor.
struct Worst {
  double exp2_factor, reciprocal_factor;
  float exp2(float x) const { return static_cast<float>(std::exp2(static_cast<double>(x)) * exp2_factor); }
  float reciprocal(float x) const { return static_cast<float>(1.0 / static_cast<double>(x) * reciprocal_factor); }
};

struct Tally {
  int64_t wrong = 0, decided = 0, in_range = 0;
};

template <class Element>
void visit(float x, float p, const Worst& worst, Tally* tally) {
  if (!quick::in_range(x)) return;
  const float gate = x * quick::sigmoid(x, worst);
  if (!quick::keeps_precision(gate)) return;
  ++tally->in_range;
  const auto [word, decided] = quick::round_both<Element>(p * gate, p * gate);
  if (!decided) return;
  ++tally->decided;
  if (word != pack2<Element>(p * exact::silu(x), p * exact::silu(x))) ++tally->wrong;
}

template <class Element>
Tally visit_all(double exp2_error, double reciprocal_error) {
  constexpr uint64_t stride = 509;
  Tally tally;
  uint32_t random = 1;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += stride) {
    const float x = float_of(static_cast<uint32_t>(bits));
    if (x != x || std::isinf(x)) continue;
    random = random * 1664525u + 1013904223u;
    const float p = float_of((random >> 9) | 0x3f800000u);  // in [1, 2)
    for (const double sign : {1.0, -1.0}) {
      visit<Element>(x, p, {1.0 + sign * exp2_error, 1.0 + sign * reciprocal_error}, &tally);
      visit<Element>(x, p, {1.0 + sign * exp2_error, 1.0 - sign * reciprocal_error}, &tally);
    }
  }
  return tally;
}

int failures = 0;

void check(bool condition, const char* what, const Tally& tally) {
  std::printf("  %-70s %s: %lld in range, %lld decided, %lld wrong\n", what, condition ? "ok" : "FAILED",
              static_cast<long long>(tally.in_range), static_cast<long long>(tally.decided),
              static_cast<long long>(tally.wrong));
  failures += condition ? 0 : 1;
}

}  // namespace

int main() {
  constexpr double exp2_error = 0x1p-22, reciprocal_error = 0x1p-23, beyond = 0x1p-16;
  const Tally bf16_tally = visit_all<bf16>(exp2_error, reciprocal_error);
  check(bf16_tally.wrong == 0, "bfloat16: what is decided is right", bf16_tally);
  check(bf16_tally.decided > bf16_tally.in_range * 99 / 100, "bfloat16: decided in 99 of 100", bf16_tally);
  const Tally f16_tally = visit_all<f16>(exp2_error, reciprocal_error);
  check(f16_tally.wrong == 0, "float16: what is decided is right", f16_tally);
  const Tally control = visit_all<bf16>(beyond, beyond);
  check(control.wrong > 0, "negative control: errors of 2^-16 are caught", control);
  return failures == 0 ? 0 : 1;
}
