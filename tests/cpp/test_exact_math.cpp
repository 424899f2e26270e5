// core/exact_math.h and core/half.h over all float32 inputs: accuracy, monotonicity, special values, and a golden
// checksum of every output bit. Torch-free. Prints one line a check and "N checks, M failures" last; exit status 0, 1
// for a failure, 2 for wrong arguments, 77 (skipped) where the processor lacks the instructions it was compiled for.
//
//   g++ -O3 -std=c++17 -ffp-contract=off -fno-math-errno -fno-trapping-math -pthread -I csrc
//   tests/cpp/test_exact_math.cpp
//   ./a.out [--stride N] [--threads N]
//
// --stride N visits every N-th bit pattern (sigmoid, silu and softplus, made of exp and log1p: every 13 N-th); golden
// checksums exist for the strides 1 and 1009. -DGDN_SOFT_FMA builds it on the software fma: slower by a factor of 40,
// the same checksums.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#if defined(__x86_64__) && !defined(GDN_SOFT_FMA)
#pragma GCC target("avx2,fma")
#define GDN_NEEDS_FMA 1
#endif

#include "core/exact_math.h"
#include "core/half.h"

namespace {

using gdn::bits_of;
using gdn::double_of;
using gdn::float_of;

constexpr uint64_t inputs_a_sign = uint64_t{1} << 31;
constexpr uint32_t quiet_nan = 0x7fc00000u;
constexpr uint32_t infinity = 0x7f800000u;
constexpr uint32_t sign_bit = 0x80000000u;
constexpr int block = 1024;              // inputs a block: one partial checksum
constexpr uint64_t most_stride = 65536;  // a block then spans less than the inputs of a sign

int checks = 0;
int failures = 0;

template <class... Values>
void check(bool passed, const char* format, Values... values) {
  ++checks;
  failures += !passed;
  std::printf("%s  ", passed ? "ok  " : "FAIL");
  std::printf(format, values...);
  std::printf("\n");
  std::fflush(stdout);
}

// ---- the reference, in double --------------------------------------------------------------------------------------
// Own code, because it has to be vectorised; it is compared with the C library's on a sample.

double reference_exp(double x) {
  constexpr double log2_e = 0x1.71547652b82fep0;
  constexpr double ln2_hi = 0x1.62e42feep-1;  // short: its product with n is exact
  constexpr double ln2_lo = 0x1.a39ef35793c76p-33;
  constexpr double round_magic = 0x1.8p52;
  const double c = x < -200.0 ? -200.0 : x > 200.0 ? 200.0 : x;
  const double shifted = c * log2_e + round_magic;
  const double n = shifted - round_magic;
  const double r = (c - n * ln2_hi) - n * ln2_lo;
  double p = 1.0;
  for (int k = 13; k >= 1; --k) p = p * r * (1.0 / k) + 1.0;  // Taylor: the next term is below 2^-55
  return p * double_of((bits_of(shifted) - bits_of(round_magic) + 1023) << 52);
}

// ln(1 + x) for x > -1, where 1 + x is rounded to double at most once.
double reference_log1p(double x) {
  constexpr double ln2 = 0x1.62e42fefa39efp-1;
  constexpr uint64_t lower_bits = 0x3fe8000000000000u;  // 0.75
  constexpr uint64_t exponent_mask = 0xfff0000000000000u;
  const double u = 1.0 + x;
  const uint64_t k_bits = (bits_of(u) - lower_bits) & exponent_mask;  // k << 52
  const double reduced = double_of(bits_of(u) - k_bits) - 1.0;
  const double f = k_bits == 0 ? x : reduced;
  // k to double: the 12 bits of k + 1024 below a magic exponent
  constexpr double magic = 0x1p52;
  const double k = double_of(bits_of(magic) + ((k_bits >> 52) + 1024) % 4096) - magic - 1024.0;
  const double s = f / (2.0 + f);  // ln(1 + f) = 2 artanh(s), |s| <= 0.2
  const double z = s * s;
  double p = 0.0;
  for (int j = 12; j >= 0; --j) p = p * z + 1.0 / (2 * j + 1);
  return k * ln2 + 2.0 * s * p;
}

// ---- the functions under test --------------------------------------------------------------------------------------
// Outside `varying(negative)`, a range of |x|, the result needs no reference: it is expected(x) bit for bit (any NaN
// equals any NaN).

struct Range {
  float begin;
  float end;  // exclusive
};

constexpr uint64_t composed_stride = 13;
constexpr float tiny_below = 0x1p-26f;
constexpr Range tiny_to_far = {tiny_below, 128.0f};

bool tiny(float x) { return std::fabs(x) < tiny_below; }

struct Exp {
  static constexpr const char* name = "exp";
  static constexpr double bound_ulp = 1.0;
  static constexpr bool monotone = true;
  static constexpr uint64_t sparser = 1;
  static float value(float x) { return gdn::exact::exp(x); }
  static double reference(double x) { return reference_exp(x); }
  static Range varying(bool) { return tiny_to_far; }
  static float expected(float x) {
    const float far = x > 0.0f ? float_of(infinity) : 0.0f;
    const float finite = tiny(x) ? 1.0f : far;
    return x != x ? x : finite;
  }
};

struct Log1p {
  static constexpr const char* name = "log1p";
  static constexpr double bound_ulp = 1.0;
  static constexpr bool monotone = true;
  static constexpr uint64_t sparser = 1;
  static float value(float x) { return gdn::exact::log1p(x); }
  static double reference(double x) { return reference_log1p(x); }
  static Range varying(bool negative) { return {tiny_below, negative ? 1.0f : float_of(infinity)}; }
  static float expected(float x) {
    const float edge = x == -1.0f ? -float_of(infinity) : x;
    return x < -1.0f ? float_of(quiet_nan) : edge;
  }
};

struct Sigmoid {
  static constexpr const char* name = "sigmoid";
  static constexpr double bound_ulp = 2.5;
  static constexpr bool monotone = true;
  static constexpr uint64_t sparser = composed_stride;
  static float value(float x) { return gdn::exact::sigmoid(x); }
  static double reference(double x) { return 1.0 / (1.0 + reference_exp(-x)); }
  // exp(-x) is infinite from x = -0x1.62e430p6, about -ln(2^128), on: the formula gives 0
  static Range varying(bool negative) { return {tiny_below, negative ? 0x1.62e430p6f : tiny_to_far.end}; }
  static float expected(float x) {
    const float far = x > 0.0f ? 1.0f : 0.0f;
    const float finite = tiny(x) ? 0.5f : far;
    return x != x ? x : finite;
  }
};

struct Silu {
  static constexpr const char* name = "silu";
  static constexpr double bound_ulp = 2.5;
  static constexpr bool monotone = false;
  static constexpr uint64_t sparser = composed_stride;
  static float value(float x) { return gdn::exact::silu(x); }
  static double reference(double x) { return x / (1.0 + reference_exp(-x)); }
  static Range varying(bool negative) { return Sigmoid::varying(negative); }
  static float expected(float x) {
    const float negative = x == -float_of(infinity) ? float_of(quiet_nan) : -0.0f;
    const float far = x > 0.0f ? x : negative;
    const float finite = tiny(x) ? x * 0.5f : far;
    return x != x ? x : finite;
  }
};

struct Softplus {
  static constexpr const char* name = "softplus";
  static constexpr double bound_ulp = 2.0;
  static constexpr bool monotone = true;
  static constexpr uint64_t sparser = composed_stride;
  static float value(float x) { return gdn::exact::softplus(x); }
  static double reference(double x) { return reference_log1p(reference_exp(x)); }
  static Range varying(bool) { return tiny_to_far; }
  static float expected(float x) {
    const float far = x > 0.0f ? x : 0.0f;
    const float finite = tiny(x) ? 0x1.62e430p-1f : far;
    return x != x ? x : finite;
  }
};

// ---- the walk ------------------------------------------------------------------------------------------------------

struct Worst {
  float error = 0.0f;  // in ulp
  float x = 0.0f;
};

struct Tally {
  uint64_t checksum = 0;
  Worst worst;
  uint64_t not_monotone = 0;
  float not_monotone_at = 0.0f;
};

uint64_t mixed(uint64_t h) {
  h = (h ^ (h >> 31)) * 0xa24baed4963ee407u;
  h = (h ^ (h >> 29)) * 0x9fb21c651e98df25u;
  return h ^ (h >> 32);
}

// |value - reference| in units of the last place of the reference; 2^128 stands for itself and all above.
float ulp_error(float value, double unbounded_reference) {
  constexpr double smallest_ulp = 0x1p-149;
  constexpr double beyond = 0x1p128;
  const double reference = unbounded_reference > beyond ? beyond : unbounded_reference;
  const double magnitude = double_of(bits_of(reference) & 0x7ff0000000000000u);
  const double ulp = magnitude * 0x1p-23 > smallest_ulp ? magnitude * 0x1p-23 : smallest_ulp;
  const double wide = static_cast<double>(value);
  const double finite = wide > beyond ? beyond : wide;
  return static_cast<float>(std::fabs(finite - reference) / ulp);
}

// Consecutive inputs of a walk: magnitudes first, first + step, ... with one sign.
struct Span {
  uint64_t id;  // of the block
  uint32_t sign;
  uint32_t first;
  uint32_t step;
  int count;

  uint32_t magnitude(int i) const { return std::min(first + static_cast<uint32_t>(i) * step, ~sign_bit); }
  float x(int i) const { return float_of(sign | magnitude(i)); }
  // How many of the span's inputs have a magnitude below `bound`.
  int below(float bound) const {
    const int64_t distance = static_cast<int64_t>(bits_of(bound)) - first;
    return static_cast<int>(std::clamp<int64_t>((distance + step - 1) / step, 0, count));
  }
};

// body(span, &tally) on all inputs, over the threads.
template <class T, class Body, class Merge>
void walk(uint64_t stride, unsigned threads, T* total, Body body, Merge merge) {
  const uint64_t inputs = (inputs_a_sign + stride - 1) / stride;
  const uint64_t blocks = (inputs + block - 1) / block;
  constexpr uint64_t blocks_a_turn = 1024;
  std::atomic<uint64_t> next{0};
  std::mutex merging;
  const auto work = [&] {
    T mine;
    for (uint64_t turn; (turn = next.fetch_add(blocks_a_turn)) < 2 * blocks;) {
      for (uint64_t id = turn; id < std::min(2 * blocks, turn + blocks_a_turn); ++id) {
        const uint64_t first = id % blocks * block;
        body(Span{id, id < blocks ? 0u : sign_bit, static_cast<uint32_t>(first * stride), static_cast<uint32_t>(stride),
                  static_cast<int>(std::min<uint64_t>(block, inputs - first))},
             &mine);
      }
    }
    const std::lock_guard<std::mutex> lock(merging);
    merge(total, mine);
  };
  std::vector<std::thread> pool;
  for (unsigned i = 0; i < threads; ++i) pool.emplace_back(work);
  for (std::thread& thread : pool) thread.join();
}

uint32_t canonical_bits(float y) { return y != y ? quiet_nan : bits_of(y); }

// Each loop is simple enough to be vectorised.
template <class F>
void visit(const Span& span, Tally* tally) {
  const int count = span.count;
  float x[block + 1];
  float y[block + 1];  // one more than counted: the next block's first
  for (int i = 0; i <= count; ++i) x[i] = span.x(i);
  for (int i = 0; i <= count; ++i) y[i] = F::value(x[i]);

  uint32_t sum = 0;
  for (int i = 0; i < count; ++i) {
    const uint32_t bits = canonical_bits(y[i]);
    const uint32_t weight =
        0x9e3779b1u * static_cast<uint32_t>(2 * i + 1);  // odd: any one changed output changes the sum
    sum += (bits ^ (bits >> 15)) * weight;
  }
  tally->checksum += mixed((span.id << 32) | sum);

  if (F::monotone) {
    const float* lower = span.sign == 0 ? y : y + 1;  // magnitudes ascend, so that negative inputs descend
    const float* upper = span.sign == 0 ? y + 1 : y;
    int falling = 0;
    for (int i = 0; i < count; ++i) falling += upper[i] < lower[i];  // false with a NaN
    tally->not_monotone += falling;
    for (int i = 0; falling != 0 && i < count; ++i) {
      if (upper[i] < lower[i]) tally->not_monotone_at = x[i];
    }
  }

  const Range range = F::varying(span.sign != 0);
  const int begin = span.below(range.begin);
  const int end = std::max(begin, span.below(range.end));
  uint32_t error_bits[block];
  const auto compare = [&](int from, int to) {
    for (int i = from; i < to; ++i) {
      error_bits[i] = canonical_bits(y[i]) == canonical_bits(F::expected(x[i])) ? 0u : infinity;
    }
  };
  compare(0, begin);
  for (int i = begin; i < end; ++i) {
    error_bits[i] = bits_of(ulp_error(y[i], F::reference(static_cast<double>(x[i]))));
  }
  compare(end, count);
  uint32_t largest = 0;  // errors are not negative: their bits are ordered like them, a NaN above all
  for (int i = 0; i < count; ++i) largest = std::max(largest, error_bits[i]);
  if (largest > bits_of(tally->worst.error)) {
    const int at = static_cast<int>(std::find(error_bits, error_bits + count, largest) - error_bits);
    tally->worst = {float_of(largest), x[at]};
  }
}

struct Golden {
  const char* name;
  uint64_t stride;
  uint64_t checksum;
};
constexpr Golden goldens[] = {
    {"exp", 1, 0x587a25f5f7f13eceu},      {"exp", 1009, 0x1df2877fa9fc4e22u},
    {"log1p", 1, 0x29b1629f6b0b638fu},    {"log1p", 1009, 0x7699e3664e3da24au},
    {"sigmoid", 1, 0x52e7d018549e618du},  {"sigmoid", 1009, 0xaf456d38f40ff54au},
    {"silu", 1, 0xf17a7dec8ce22f04u},     {"silu", 1009, 0x16892bd68a17fb27u},
    {"softplus", 1, 0xe32d63d25ae58f19u}, {"softplus", 1009, 0xd7165368a6a4521au},
};

template <class F>
void check_function(uint64_t stride, unsigned threads) {
  Tally tally;
  walk(
      stride * F::sparser, threads, &tally, [](const Span& span, Tally* mine) { visit<F>(span, mine); },
      [](Tally* total, const Tally& part) {
        total->checksum += part.checksum;
        if (bits_of(part.worst.error) > bits_of(total->worst.error)) total->worst = part.worst;
        if (part.not_monotone != 0) total->not_monotone_at = part.not_monotone_at;
        total->not_monotone += part.not_monotone;
      });
  check(tally.worst.error <= F::bound_ulp, "%s accuracy: worst %.4f ulp at x = %a (bound %.1f)", F::name,
        tally.worst.error, tally.worst.x, F::bound_ulp);
  if (F::monotone) {
    check(tally.not_monotone == 0, "%s monotone: %llu steps the wrong way (one after x = %a)", F::name,
          static_cast<unsigned long long>(tally.not_monotone), tally.not_monotone_at);
  }
  const auto golden = std::find_if(std::begin(goldens), std::end(goldens), [stride](const Golden& g) {
    return std::strcmp(g.name, F::name) == 0 && g.stride == stride;
  });
  if (golden == std::end(goldens)) {
    std::printf("      %s checksum at stride %llu: 0x%016llx (no golden)\n", F::name,
                static_cast<unsigned long long>(stride), static_cast<unsigned long long>(tally.checksum));
  } else {
    check(tally.checksum == golden->checksum, "%s checksum at stride %llu: 0x%016llx (golden 0x%016llx)", F::name,
          static_cast<unsigned long long>(stride), static_cast<unsigned long long>(tally.checksum),
          static_cast<unsigned long long>(golden->checksum));
  }
}

// ---- the reference against the C library ---------------------------------------------------------------------------

void check_references() {
  constexpr uint64_t sample_stride = 20011;
  constexpr double bound = 0x1p-48;  // relative; 2^-10 ulp of float is 2^-34
  double worst_exp = 0.0;
  double worst_log1p = 0.0;
  for (uint64_t b = 0; b < 2 * inputs_a_sign; b += sample_stride) {
    const double x = static_cast<double>(float_of(static_cast<uint32_t>(b)));
    if (std::fabs(x) < 128.0) {
      worst_exp = std::max(worst_exp, std::fabs(reference_exp(x) / std::exp(x) - 1.0));
    }
    if (x > -1.0 && x < HUGE_VAL && x != 0.0) {
      worst_log1p = std::max(worst_log1p, std::fabs(reference_log1p(x) / std::log1p(x) - 1.0));
    }
  }
  check(worst_exp < bound, "reference exp against the C library: worst relative difference %.2e", worst_exp);
  check(worst_log1p < bound, "reference log1p against the C library: worst relative difference %.2e", worst_log1p);
}

// ---- special values ------------------------------------------------------------------------------------------------

void check_special_values() {
  const float inf = float_of(infinity);
  const float nan = float_of(quiet_nan);
  constexpr float smallest = 0x1p-149f;
  struct Case {
    const char* function;
    float (*f)(float);
    float x;
    float y;
  };
  const Case cases[] = {
      {"exp", Exp::value, 0.0f, 1.0f},
      {"exp", Exp::value, -0.0f, 1.0f},
      {"exp", Exp::value, inf, inf},
      {"exp", Exp::value, -inf, 0.0f},
      {"exp", Exp::value, nan, nan},
      {"exp", Exp::value, 0x1.62e430p6f, inf},              // the first float above ln(2^128)
      {"exp", Exp::value, 0x1.62e42ep6f, 0x1.ffff08p127f},  // the last one below
      {"exp", Exp::value, -0x1.9fe368p6f, smallest},        // the last float whose exponential rounds to a subnormal
      {"exp", Exp::value, -0x1.9fe36ap6f, 0.0f},
      {"log1p", Log1p::value, 0.0f, 0.0f},
      {"log1p", Log1p::value, -0.0f, -0.0f},
      {"log1p", Log1p::value, smallest, smallest},
      {"log1p", Log1p::value, -smallest, -smallest},
      {"log1p", Log1p::value, -1.0f, -inf},
      {"log1p", Log1p::value, -0x1.000002p0f, nan},
      {"log1p", Log1p::value, -inf, nan},
      {"log1p", Log1p::value, inf, inf},
      {"log1p", Log1p::value, nan, nan},
      {"sigmoid", Sigmoid::value, 0.0f, 0.5f},
      {"sigmoid", Sigmoid::value, inf, 1.0f},
      {"sigmoid", Sigmoid::value, -inf, 0.0f},
      {"sigmoid", Sigmoid::value, nan, nan},
      {"silu", Silu::value, 0.0f, 0.0f},
      {"silu", Silu::value, -0.0f, -0.0f},
      {"silu", Silu::value, inf, inf},
      {"silu", Silu::value, -100.0f, -0.0f},
      {"silu", Silu::value, -inf, nan},  // -inf / inf: the formula as it stands
      {"silu", Silu::value, nan, nan},
      {"softplus", Softplus::value, -inf, 0.0f},
      {"softplus", Softplus::value, -0x1.9fe368p6f, smallest},  // 0 only where exp underflows
      {"softplus", Softplus::value, -0x1.9fe36ap6f, 0.0f},
      {"softplus", Softplus::value, 20.0f, 20.0f},
      {"softplus", Softplus::value, inf, inf},
      {"softplus", Softplus::value, nan, nan},
  };
  for (const Case& c : cases) {
    const float y = c.f(c.x);
    check(bits_of(y) == bits_of(c.y) || (y != y && c.y != c.y), "%s(%a) = %a (expected %a)", c.function, c.x, y, c.y);
  }
}

// ---- the software fma ----------------------------------------------------------------------------------------------

bool same(float a, float b) { return bits_of(a) == bits_of(b) || (a != a && b != b); }

float naive_fma(float a, float b, float c) {
  return static_cast<float>(static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c));
}

struct FmaCount {
  uint64_t cases = 0;
  uint64_t wrong = 0;
  uint64_t naive_wrong = 0;
  float a = 0.0f, b = 0.0f, c = 0.0f;  // a wrong case

  void visit(float x, float y, float z) {
    const float truth = std::fmaf(x, y, z);
    ++cases;
    naive_wrong += !same(naive_fma(x, y, z), truth);
    if (same(gdn::soft_fma(x, y, z), truth)) return;
    ++wrong;
    a = x, b = y, c = z;
  }
};

// The sign and significand of `bits` with a biased exponent in [low, low + span), span a power of two.
float with_exponent(uint32_t bits, uint32_t low, uint32_t span) {
  return float_of((bits & 0x807fffffu) | ((low + (bits >> 23) % span) << 23));
}

// Any bit patterns; addends near the product; addends that nearly cancel it; results among the subnormals.
void check_soft_fma_random(uint64_t stride) {
  const int triples = stride == 1 ? 4'000'000 : 500'000;
  std::mt19937 random(1);
  FmaCount count;
  for (int i = 0; i < triples; ++i) {
    const auto bits = [&random] { return static_cast<uint32_t>(random()); };
    count.visit(float_of(bits()), float_of(bits()), float_of(bits()));
    count.visit(with_exponent(bits(), 119, 16), with_exponent(bits(), 119, 16), with_exponent(bits(), 95, 64));
    const float x = with_exponent(bits(), 119, 16);
    const float y = with_exponent(bits(), 119, 16);
    count.visit(x, y, -(x * y));
    count.visit(with_exponent(bits(), 48, 16), with_exponent(bits(), 48, 16), float_of(bits() & 0x81ffffffu));
  }
  check(count.wrong == 0,
        "soft_fma on %llu random triples: %llu wrong, one is fma(%a, %a, %a); the naive formula: %llu",
        static_cast<unsigned long long>(count.cases), static_cast<unsigned long long>(count.wrong), count.a, count.b,
        count.c, static_cast<unsigned long long>(count.naive_wrong));
}

// c plus or minus half its last place, the half being off by a relative 2^-46 or 2^-34: double rounds the sum to the
// tie, and the second rounding then goes to the even neighbour, which is the wrong one.
void check_soft_fma_double_rounding() {
  constexpr float unit = 0x1p-23f;
  struct Half {
    float a, b;         // a * b is just below or just above 1
    uint32_t last_bit;  // of c: the tie's even neighbour is then the wrong one
  };
  const Half halves[] = {
      {1.0f + unit, 1.0f - unit, 1},                // 1 - 2^-46: towards c, but the tie moves away from an odd c
      {1.0f + 2896 * unit, 1.0f - 2895 * unit, 0},  // 1 + 2^-33.8: away from c, but the tie keeps an even c
  };
  std::mt19937 random(2);
  FmaCount count;
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {  // biased; 0: subnormal results
    for (int i = 0; i < 200; ++i) {
      for (const Half& half : halves) {
        const uint32_t significand = static_cast<uint32_t>(random()) & 0x7fffffu;
        const uint32_t large = significand | 0x600000u;  // far from a power of two, and 24 bits below a subnormal's top
        const float c = float_of((exponent << 23) | (large & ~1u) | half.last_bit);
        const int half_exponent = static_cast<int>(std::max(exponent, 1u)) - 127 - 24;
        const float scale_a = std::ldexp(1.0f, half_exponent / 2);
        const float scale_b = std::ldexp(1.0f, half_exponent - half_exponent / 2);
        for (const float sign : {1.0f, -1.0f}) {
          count.visit(half.a * scale_a, sign * half.b * scale_b, sign * c);
          count.visit(half.a * scale_a, sign * half.b * scale_b, -sign * c);
        }
      }
    }
  }
  check(count.wrong == 0, "soft_fma on %llu double-rounding triples: %llu wrong, one is fma(%a, %a, %a)",
        static_cast<unsigned long long>(count.cases), static_cast<unsigned long long>(count.wrong), count.a, count.b,
        count.c);
  check(count.naive_wrong == count.cases, "the naive formula is wrong on each of them: on %llu",
        static_cast<unsigned long long>(count.naive_wrong));
}

void check_soft_fma_special() {
  const float inf = float_of(infinity);
  const float nan = float_of(quiet_nan);
  const float values[] = {
      0.0f,      -0.0f,     1.0f, -1.0f, inf, -inf, nan, 0x1p-149f, -0x1p-149f, 0x1.fffffep127f, -0x1.fffffep127f,
      0x1p-126f, -0x1p-126f};
  FmaCount count;
  for (const float a : values) {
    for (const float b : values) {
      for (const float c : values) count.visit(a, b, c);
    }
  }
  check(count.wrong == 0, "soft_fma on %llu triples of special values: %llu wrong, one is fma(%a, %a, %a)",
        static_cast<unsigned long long>(count.cases), static_cast<unsigned long long>(count.wrong), count.a, count.b,
        count.c);
}

// ---- 16-bit storage ------------------------------------------------------------------------------------------------
// Widening: all 65536 against the definition. Narrowing is a step function; it is right everywhere when it is monotone
// over all inputs, gives every value back, and steps exactly at the midpoints (a midpoint itself to the even
// neighbour).

struct F16Format {
  using Type = gdn::f16;
  static constexpr const char* name = "float16";
  static constexpr int significand_bits = 10;
  static constexpr int bias = 15;
};
struct Bf16Format {
  using Type = gdn::bf16;
  static constexpr const char* name = "bfloat16";
  static constexpr int significand_bits = 7;
  static constexpr int bias = 127;
};

template <class Format>
uint32_t infinity_of() {
  return 0x8000u - (1u << Format::significand_bits);
}

// The non-negative finite value number h; h at infinity gives the power of two above the largest.
template <class Format>
double value_of(uint32_t h) {
  const int exponent = static_cast<int>(h >> Format::significand_bits);
  const int significand = static_cast<int>(h & ((1u << Format::significand_bits) - 1));
  const int hidden = exponent == 0 ? 0 : 1 << Format::significand_bits;
  return std::ldexp(static_cast<double>(significand + hidden),
                    std::max(exponent, 1) - Format::bias - Format::significand_bits);
}

template <class Format>
uint32_t narrowed(float x) {
  return gdn::from_f32<typename Format::Type>(x).bits;
}

struct NarrowTally {
  uint64_t wrong = 0;
  float at = 0.0f;
};

template <class Format>
void check_16_bit(uint64_t stride, unsigned threads) {
  using Type = typename Format::Type;
  int wide_wrong = 0;
  int round_trip_wrong = 0;
  int midpoint_wrong = 0;
  for (uint32_t h = 0; h < 0x8000u; ++h) {
    for (const uint32_t sign : {0u, 0x8000u}) {
      const float x = gdn::to_f32(Type{static_cast<uint16_t>(h | sign)});
      const bool is_nan = h > infinity_of<Format>();
      const double value = h == infinity_of<Format>() ? HUGE_VAL : value_of<Format>(h);
      const bool right = is_nan ? x != x : std::fabs(static_cast<double>(x)) == value && std::signbit(x) == (sign != 0);
      wide_wrong += !right;
      const uint32_t back = narrowed<Format>(x);
      round_trip_wrong += is_nan ? (back & 0x7fffu) <= infinity_of<Format>() : back != (h | sign);
      if (h < infinity_of<Format>()) {
        // exact in float: one bit more than the format has; above the largest bfloat16 it is still finite
        const float middle = static_cast<float>((value_of<Format>(h) + value_of<Format>(h + 1)) / 2);
        const uint32_t b = bits_of(middle) | sign << 16;
        midpoint_wrong += narrowed<Format>(float_of(b - 1)) != (h | sign);
        midpoint_wrong += narrowed<Format>(float_of(b)) != ((h + (h & 1u)) | sign);
        midpoint_wrong += narrowed<Format>(float_of(b + 1)) != ((h + 1) | sign);
      }
    }
  }
  check(wide_wrong == 0, "%s to float32, all values: %d wrong", Format::name, wide_wrong);
  check(round_trip_wrong == 0, "%s to float32 and back, all values: %d wrong", Format::name, round_trip_wrong);
  check(midpoint_wrong == 0, "float32 to %s, all midpoints and their neighbours: %d wrong", Format::name,
        midpoint_wrong);

  NarrowTally tally;
  walk(
      stride, threads, &tally,
      [](const Span& span, NarrowTally* mine) {
        uint32_t h[block + 1];
        for (int i = 0; i <= span.count; ++i) h[i] = narrowed<Format>(span.x(i));
        const uint32_t sign = span.sign >> 16;
        const uint32_t largest = sign | infinity_of<Format>();
        const int numbers = span.below(float_of(infinity + 1));  // infinity is one
        int wrong = 0;
        for (int i = 0; i < numbers; ++i) wrong += (h[i] < sign) | (h[i] > largest) | (h[i + 1] < h[i]);
        for (int i = numbers; i < span.count; ++i) wrong += (h[i] < largest + 1) | (h[i] > (sign | 0x7fffu));
        mine->wrong += wrong;
        if (wrong != 0) mine->at = span.x(0);
      },
      [](NarrowTally* total, const NarrowTally& part) {
        total->wrong += part.wrong;
        if (part.wrong != 0) total->at = part.at;
      });
  check(tally.wrong == 0, "float32 to %s: sign, NaN and monotone: %llu wrong (some from x = %a on)", Format::name,
        static_cast<unsigned long long>(tally.wrong), tally.at);
}

// ---- main ----------------------------------------------------------------------------------------------------------

// A positive number, or 0 where it is none.
uint64_t positive(const char* text) {
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text, &end, 10);
  return end != text && *end == '\0' ? value : 0;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t stride = 1;
  uint64_t threads = std::max(1u, std::thread::hardware_concurrency());
  for (int i = 1; i < argc; i += 2) {
    const uint64_t value = i + 1 < argc ? positive(argv[i + 1]) : 0;
    if (std::strcmp(argv[i], "--stride") == 0 && value != 0 && value <= most_stride) {
      stride = value;
    } else if (std::strcmp(argv[i], "--threads") == 0 && value != 0) {
      threads = value;
    } else {
      std::fprintf(stderr, "usage: %s [--stride N] [--threads N], 0 < stride <= %llu; got %s\n", argv[0],
                   static_cast<unsigned long long>(most_stride), argv[i]);
      return 2;
    }
  }
#if defined(GDN_NEEDS_FMA)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    std::printf("skipped: this processor has no AVX2 and FMA\n");
    return 77;
  }
#endif
  const unsigned workers = static_cast<unsigned>(threads);
  check_references();
  check_special_values();
  check_soft_fma_special();
  check_soft_fma_double_rounding();
  check_soft_fma_random(stride);
  check_16_bit<F16Format>(stride, workers);
  check_16_bit<Bf16Format>(stride, workers);
  check_function<Exp>(stride, workers);
  check_function<Log1p>(stride, workers);
  check_function<Sigmoid>(stride, workers);
  check_function<Silu>(stride, workers);
  check_function<Softplus>(stride, workers);
  std::printf("%d checks, %d failures\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
