// How a torch-free CPU kernel is spread over threads: it gets a function that runs `body(begin, end)` over parts of
// [0, count). The torch binding passes torch's own thread pool, the torch-free tests a serial loop.
#pragma once

#include <cstdint>

namespace gdn {

struct Parallel {
  using Body = void (*)(int64_t begin, int64_t end, void* context);
  void (*run)(int64_t count, int64_t grain, Body body, void* context);
  int64_t threads = 1;  // that run() may use

  template <class F>
  void operator()(int64_t count, int64_t grain, F&& body) const {
    run(
        count, grain, [](int64_t begin, int64_t end, void* context) { (*static_cast<F*>(context))(begin, end); },
        &body);
  }
};

}  // namespace gdn
