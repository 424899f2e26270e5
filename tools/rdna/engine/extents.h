// The memory that kernels may touch.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace rdna {

struct Extent {
  uint64_t begin, end;
  bool writable;
  std::string name;
};

// What a launch may touch: extents in order, which do not overlap.
class ExtentList {
 public:
  explicit ExtentList(std::vector<Extent> extents) : extents_(std::move(extents)) {}

  size_t size() const { return extents_.size(); }

  // The extent with all of [address, address + bytes); throws Fault where there is none, or it may not be written.
  // `hint`: the number of the extent that the last access was in, and then of this one's.
  const Extent& check(uint64_t address, uint32_t bytes, bool write, size_t* hint) const;

 private:
  [[noreturn]] void fail(uint64_t address, uint32_t bytes, bool write) const;

  std::vector<Extent> extents_;
};

// What has been registered so far.
class Extents {
 public:
  void add(uint64_t begin, uint64_t bytes, bool writable, std::string name);
  void remove(uint64_t begin);
  ExtentList now() const;

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, Extent> extents_;
};

}  // namespace rdna
