// Who touched which part of global memory in a launch: races between work-groups, which nothing orders, and between
// the waves of one, which a barrier orders if the writer's stores have been waited for before it, and if a reader has
// dropped its caches behind it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "extents.h"

namespace rdna {

struct Wave;

class GlobalShadow {
 public:
  explicit GlobalShadow(const ExtentList& memory) : extents_(memory.size()) {}
  // A wave touches [address, address + bytes) of an extent. Throws Fault.
  void touch(const Wave& w, size_t number, const Extent& extent, uint64_t address, uint32_t bytes, bool write);

 private:
  static constexpr uint64_t unit_bytes = 2;  // the smallest element that kernels write
  static constexpr uint64_t page_units = 2048;
  static constexpr uint32_t nobody = ~0u, several = ~0u - 1;
  struct Access {
    uint32_t group = nobody, wave = nobody, epoch = 0;
  };
  struct Unit {
    Access written, read;
  };
  struct Page {
    std::mutex mutex;
    Unit units[page_units];
  };
  struct Pages {
    std::mutex mutex;
    std::vector<std::unique_ptr<Page>> pages;
  };
  Page& page(size_t number, const Extent& extent, uint64_t index);
  static void touch(const Wave& w, Unit& unit, bool write);

  std::vector<Pages> extents_;
};

}  // namespace rdna
