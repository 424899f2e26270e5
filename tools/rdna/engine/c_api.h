// The library's functions for Python (tools/rdna/engine.py) and for the host side of the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// 0, or -1 and a message.
const char* rdna_error();

// `base`: where the code object's address 0 lies in memory.
int rdna_program_new(const char* name, int generation, uint64_t base, const char* disassembly, size_t bytes,
                     void** program);
void rdna_program_delete(void* program);

// Memory that kernels may touch; of memory that a host allocator hands out, only what is live.
void rdna_memory_add(uint64_t begin, uint64_t bytes, int writable, const char* name);
void rdna_memory_remove(uint64_t begin);

struct RdnaLaunch {
  uint32_t grid[3], block[3];
  uint32_t shared_bytes, private_bytes;
  uint32_t user_register_count;
  uint32_t user_registers[32];
  int32_t group_id_in_register[3];
  int32_t group_ids_in_ttmp, wave_offset_register, packed_ids;
  int32_t threads, ulp;
  uint64_t seed;
};
constexpr int kRdnaClasses = 13;
int rdna_launch(void* program, const RdnaLaunch* launch, uint64_t* counts);

// The names of the classes that `counts` has, in its order.
const char* rdna_class_name(int index);

// Where the HIP runtime (hip_runtime.cpp) takes launches: 0, or the launch is refused with rdna_refuse's message.
using RdnaLauncher = int (*)(const char* kernel, const uint32_t* grid, const uint32_t* block, void** arguments,
                             uint32_t shared_bytes);
void rdna_set_launcher(RdnaLauncher launcher);
void rdna_refuse(const char* message);
// What it says of its only device.
void rdna_set_device(const char* arch, int multiprocessors, uint64_t shared_bytes);
}
