// Keeps some of a card's multiprocessors busy with nothing, so that other kernels find only the rest of them.
//
// One block a multiprocessor with all the shared memory that a block may have leaves no room for another block beside
// it; it sleeps until it is released, and gives up after kHoldLimit: nothing hangs, and the measurement is void. Where
// blocks land then is probed, not assumed.
#pragma once

#include <cstdint>
#include <set>

#include "landing.h"
#include "runtime.h"

namespace gdn::rec_parity {

constexpr double kHoldLimitSeconds = 20.0;

class SmHolder {
 public:
  // Allocates all that is needed later, and loads the kernels: while blocks are held nothing may wait for the device.
  SmHolder();
  ~SmHolder();
  SmHolder(const SmHolder&) = delete;
  SmHolder& operator=(const SmHolder&) = delete;

  int sms() const { return sms_; }
  // Returns when `count` multiprocessors are held. Throws std::runtime_error if they are not within seconds.
  void hold(int count);
  // Where blocks land now.
  Landing probe(cudaStream_t stream);
  // Lets the held ones go and waits for them. False: they had given up before.
  bool release();

 private:
  std::set<uint32_t> probed(cudaStream_t stream, int blocks, int shared_bytes, bool all_at_once, int* on_held);

  int sms_ = 0, shared_bytes_ = 0, held_ = 0;
  std::set<uint32_t> held_sms_;
  Stream stream_;
  MappedArray<uint32_t> flags_;    // kReleased, kExpired
  MappedArray<uint32_t> held_at_;  // of each held block: its multiprocessor + 1
  MappedArray<uint32_t> probe_at_;
  DeviceBuffer arrived_;  // blocks of a probe
};

}  // namespace gdn::rec_parity
