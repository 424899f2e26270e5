#include "c_api.h"

#include <algorithm>
#include <string>

#include "decode.h"
#include "launch.h"

namespace {

using namespace rdna;

thread_local std::string g_error;

Extents& extents() {
  static auto* all = new Extents;  // never destroyed: tensors may outlive this library's static objects
  return *all;
}

template <class F>
int caught(F f) {
  try {
    f();
    return 0;
  } catch (const std::exception& error) {
    g_error = error.what();
    return -1;
  }
}

constexpr const char* kClassNames[] = {"valu",       "dual", "transcendental", "matrix", "salu", "smem", "vmem_load",
                                       "vmem_store", "lds",  "barrier",        "branch", "wait", "other"};
static_assert(std::size(kClassNames) == static_cast<size_t>(Class::count), "a name a class");
static_assert(kRdnaClasses == static_cast<int>(Class::count), "a count a class");

}  // namespace

extern "C" {

const char* rdna_error() { return g_error.c_str(); }

int rdna_program_new(const char* name, int generation, uint64_t base, const char* disassembly, size_t bytes,
                     void** program) {
  return caught([&] { *program = new Program(decode(name, generation, base, {disassembly, bytes})); });
}

void rdna_program_delete(void* program) { delete static_cast<Program*>(program); }

void rdna_memory_add(uint64_t begin, uint64_t bytes, int writable, const char* name) {
  extents().add(begin, bytes, writable != 0, name);
}
void rdna_memory_remove(uint64_t begin) { extents().remove(begin); }

int rdna_launch(void* program, const RdnaLaunch* from, uint64_t* counts) {
  return caught([&] {
    const ExtentList memory = extents().now();
    Launch launch;
    launch.program = static_cast<const Program*>(program);
    launch.memory = &memory;
    GlobalShadow global(memory);
    launch.global = &global;
    launch.options = {from->seed, from->threads, static_cast<Ulp>(from->ulp)};
    std::copy_n(from->grid, 3, launch.grid);
    std::copy_n(from->block, 3, launch.block);
    launch.shared_bytes = from->shared_bytes;
    launch.private_bytes = from->private_bytes;
    launch.user_registers.assign(from->user_registers, from->user_registers + from->user_register_count);
    std::copy_n(from->group_id_in_register, 3, launch.group_id_in_register);
    launch.group_ids_in_ttmp = from->group_ids_in_ttmp != 0;
    launch.wave_offset_register = from->wave_offset_register != 0;
    launch.packed_ids = from->packed_ids != 0;
    const Counts made = run(launch);
    std::copy(made.begin(), made.end(), counts);
  });
}

const char* rdna_class_name(int index) { return kClassNames[index]; }

}  // extern "C"
