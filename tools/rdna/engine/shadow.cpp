#include "shadow.h"

#include <string>

#include "instruction.h"

namespace rdna {
namespace {

std::string at(uint32_t byte) { return "LDS byte " + std::to_string(byte); }
std::string wave_name(uint32_t wave) { return "wave " + std::to_string(wave); }

}  // namespace

void Shadow::read(uint32_t first, uint32_t count, uint32_t wave, uint32_t epoch) {
  for (uint32_t i = first; i < first + count; ++i) {
    Byte& b = bytes_[i];
    if (b.writer == nobody) throw Fault("read of LDS that nobody wrote: " + at(i));
    if (b.writer != wave && b.written_at == epoch) {
      throw Fault("LDS race: " + at(i) + " is read and, with no barrier between, written by " + wave_name(b.writer));
    }
    const bool first_reader = b.reader == nobody || b.read_at != epoch;
    b.reader = first_reader ? static_cast<uint16_t>(wave) : b.reader == wave ? b.reader : several;
    b.read_at = epoch;
  }
}

void Shadow::write(uint32_t first, uint32_t count, uint32_t wave, uint32_t epoch) {
  for (uint32_t i = first; i < first + count; ++i) {
    Byte& b = bytes_[i];
    if (b.writer != nobody && b.writer != wave && b.written_at == epoch) {
      throw Fault("LDS race: " + at(i) + " is written here and, with no barrier between, by " + wave_name(b.writer));
    }
    if (b.reader != nobody && b.reader != wave && b.read_at == epoch) {
      throw Fault("LDS race: " + at(i) + " is written and, with no barrier between, read by " +
                  (b.reader == several ? "other waves" : wave_name(b.reader)));
    }
    b.writer = static_cast<uint16_t>(wave);
    b.written_at = epoch;
  }
}

}  // namespace rdna
