#include "extents.h"

#include <algorithm>
#include <sstream>

#include "instruction.h"

namespace rdna {

const Extent& ExtentList::check(uint64_t address, uint32_t bytes, bool write, size_t* hint) const {
  const auto holds = [&](const Extent& e) {
    return address >= e.begin && address + bytes <= e.end && (e.writable || !write);
  };
  if (*hint < extents_.size() && holds(extents_[*hint])) return extents_[*hint];
  const auto after = std::upper_bound(extents_.begin(), extents_.end(), address,
                                      [](uint64_t value, const Extent& e) { return value < e.begin; });
  if (after == extents_.begin() || !holds(after[-1])) fail(address, bytes, write);
  *hint = static_cast<size_t>(after - extents_.begin()) - 1;
  return extents_[*hint];
}

void ExtentList::fail(uint64_t address, uint32_t bytes, bool write) const {
  std::ostringstream text;
  text << "out of bounds: " << (write ? "write" : "read") << " of " << bytes << " bytes at 0x" << std::hex << address
       << std::dec;
  const auto around = std::find_if(extents_.begin(), extents_.end(),
                                   [&](const Extent& e) { return address >= e.begin && address < e.end; });
  if (around != extents_.end()) {
    text << (address + bytes > around->end ? " runs over the end of " : " goes to read-only ") << around->name;
    throw Fault(text.str());
  }
  const char* joint = "";
  for (const Extent& e : extents_) {
    constexpr uint64_t near = 1 << 16;
    if (address >= e.end && address - e.end < near) {
      text << joint << ' ' << address - e.end << " bytes past the end of " << e.name;
      joint = " and";
    }
    if (address < e.begin && e.begin - address < near) {
      text << joint << ' ' << e.begin - address << " bytes before " << e.name;
      joint = " and";
    }
  }
  throw Fault(text.str());
}

void Extents::add(uint64_t begin, uint64_t bytes, bool writable, std::string name) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  extents_[begin] = {begin, begin + bytes, writable, std::move(name)};
}

void Extents::remove(uint64_t begin) {
  const std::lock_guard lock(mutex_);
  extents_.erase(begin);
}

ExtentList Extents::now() const {
  const std::lock_guard lock(mutex_);
  std::vector<Extent> list;
  for (const auto& [begin, extent] : extents_) list.push_back(extent);
  return ExtentList(std::move(list));
}

}  // namespace rdna
