// Who touched which byte of a work-group's LDS since the last barrier: races between waves, reads of what nobody wrote.
#pragma once

#include <cstdint>
#include <vector>

namespace rdna {

class Shadow {
 public:
  void resize(uint32_t bytes) { bytes_.assign(bytes, Byte{}); }
  // A wave that has passed `epoch` barriers touches bytes [first, first + count). Throw Fault.
  void read(uint32_t first, uint32_t count, uint32_t wave, uint32_t epoch);
  void write(uint32_t first, uint32_t count, uint32_t wave, uint32_t epoch);

 private:
  static constexpr uint16_t nobody = 0xffff, several = 0xfffe;
  struct Byte {
    uint32_t written_at = 0, read_at = 0;  // epochs
    uint16_t writer = nobody, reader = nobody;
  };
  std::vector<Byte> bytes_;
};

}  // namespace rdna
