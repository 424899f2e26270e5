// gdn_rec_parity: the CUDA recurrences bit for bit against the CPU kernels, without torch, for work on the kernels; and
// their times, on the whole card or on fewer multiprocessors. docs/parity.md. Exit status: 0, 1 where a check failed or
// there was none, 2 for a wrong option, 77 where there is no GPU.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>

#include "bench.h"
#include "options.h"
#include "parity.h"

namespace {

constexpr int kFailed = 1, kWrongOption = 2, kSkipped = 77;

int run(int argc, char** argv) {
  const gdn::rec_parity::Options options = gdn::rec_parity::parse(argc, argv);
  if (options.help) {
    std::fputs(gdn::rec_parity::usage().c_str(), stdout);
    return 0;
  }
  // Every kernel is loaded at the start: loading one while multiprocessors are held could wait for them.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("gdn_rec_parity: skipped: no GPU");
    return kSkipped;
  }
  const gdn::rec_parity::Counts counts =
      options.bench ? gdn::rec_parity::bench(options) : gdn::rec_parity::parity(options);
  std::printf("%lld checks, %lld failures\n", static_cast<long long>(counts.checks),
              static_cast<long long>(counts.failures));
  return counts.checks > 0 && counts.failures == 0 ? 0 : kFailed;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "gdn_rec_parity: %s\n", error.what());
    return kWrongOption;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gdn_rec_parity: %s\n", error.what());
    return kFailed;
  }
}
