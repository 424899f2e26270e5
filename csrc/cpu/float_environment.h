// The float environment of the exact order: round to nearest, denormals kept. A thread may be set otherwise
// (torch.set_flush_denormal): then it is while a FloatEnvironment lives, and has its own setting back afterwards.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace gdn::cpu {

class FloatEnvironment {
 public:
  FloatEnvironment() : saved_(get()) {
    if (saved_ != kExact) set(kExact);
  }
  ~FloatEnvironment() {
    if (saved_ != kExact) set(saved_);
  }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  // MXCSR without its status flags, which stick: all exceptions masked, nothing flushed.
  using Control = uint32_t;
  static constexpr Control kExact = 0x1f80;
  static constexpr Control kFlags = 0x3f;
  static Control get() { return _mm_getcsr() & ~kFlags; }
  static void set(Control control) { _mm_setcsr(control); }
#elif defined(__aarch64__)
  using Control = uint64_t;  // FPCR
  static constexpr Control kExact = 0;
  static Control get() {
    Control control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control;
  }
  static void set(Control control) { __asm__ volatile("msr fpcr, %0" : : "r"(control) : "memory"); }
#else
  using Control = uint32_t;
  static constexpr Control kExact = 0;
  static Control get() { return kExact; }
  static void set(Control) {}
#endif

  Control saved_;
};

}  // namespace gdn::cpu
