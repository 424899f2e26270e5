#include "global_shadow.h"

#include <string>

#include "state.h"

namespace rdna {
namespace {

[[noreturn]] void race(const std::string& what, const std::string& where, const std::string& why) {
  throw Fault("global race: " + what + " " + where + ", " + why);
}

}  // namespace

GlobalShadow::Page& GlobalShadow::page(size_t number, const Extent& extent, uint64_t index) {
  Pages& of_extent = extents_[number];
  const std::lock_guard lock(of_extent.mutex);
  if (of_extent.pages.empty()) {
    constexpr uint64_t page_bytes = unit_bytes * page_units;
    of_extent.pages.resize((extent.end - extent.begin + page_bytes - 1) / page_bytes);
  }
  std::unique_ptr<Page>& page = of_extent.pages[index];
  if (!page) page = std::make_unique<Page>();
  return *page;
}

void GlobalShadow::touch(const Wave& w, size_t number, const Extent& extent, uint64_t address, uint32_t bytes,
                         bool write) {
  uint64_t unit = (address - extent.begin) / unit_bytes;
  const uint64_t end = (address - extent.begin + bytes + unit_bytes - 1) / unit_bytes;
  while (unit < end) {
    Page& p = page(number, extent, unit / page_units);
    const std::lock_guard lock(p.mutex);
    do {
      touch(w, p.units[unit % page_units], write);
      ++unit;
    } while (unit < end && unit % page_units != 0);
  }
}

void GlobalShadow::touch(const Wave& w, Unit& unit, bool write) {
  const uint32_t group = w.group->number;
  const char* here = write ? "written here" : "read here";
  if (unit.written.group != nobody && unit.written.group != group) {
    race(here, "and written by work-group " + std::to_string(unit.written.group), "which nothing orders");
  }
  if (unit.written.group == group && unit.written.wave != w.number) {
    const std::string where = "and written by wave " + std::to_string(unit.written.wave);
    if (unit.written.epoch == w.epoch) race(here, where, "with no barrier between");
    if (!w.group->stores_arrived(unit.written.wave, unit.written.epoch, w.epoch)) {
      race(here, where, "whose store no barrier between has waited for");
    }
    if (!write && w.caches_dropped_at <= unit.written.epoch) race(here, where, "with the caches not dropped since");
  }
  if (!write) {
    Access& r = unit.read;
    const bool other_group = r.group != nobody && r.group != group;
    const bool other_wave = r.group == group && r.epoch == w.epoch && r.wave != w.number;
    r = {other_group ? several : group, other_wave ? several : w.number, w.epoch};
    return;
  }
  if (unit.read.group != nobody && unit.read.group != group) {
    race(here, "and read by another work-group", "which nothing orders");
  }
  if (unit.read.group == group && unit.read.wave != w.number && unit.read.epoch == w.epoch) {
    race(here, "and read by another wave", "with no barrier between");
  }
  unit.written = {group, w.number, w.epoch};
}

}  // namespace rdna
