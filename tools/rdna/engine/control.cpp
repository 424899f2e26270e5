// Branches, barriers, waits, and instructions that change nothing here.
#include "lanes.h"
#include "tables.h"

namespace rdna {
namespace {

void end_program(Wave& w, const Instruction&) {
  w.done = true;
  w.group->one_less();
}

template <auto taken>
void branch(Wave& w, const Instruction& in) {
  if (taken(w)) w.pc = in.target;
}

void signal_barrier(Wave& w, const Instruction&) {
  if (w.signalled) throw Fault("a second signal of one barrier");
  w.waits.check_barrier();
  w.signalled = true;
  w.group->arrive(w);
}

void wait_at_barrier(Wave& w, const Instruction&) {
  if (!w.signalled) throw Fault("a wait at a barrier that this wave has not signalled");
  w.blocked = w.group->epoch == w.epoch;
  if (w.blocked) return;
  w.signalled = false;
  w.epoch = w.group->epoch;
}

void barrier(Wave& w, const Instruction& in) {
  if (!w.signalled) signal_barrier(w, in);
  wait_at_barrier(w, in);
}

void wait(Wave& w, const Instruction& in) { w.waits.wait(in.limits, w.launch->program->generation); }

void nothing(Wave&, const Instruction&) {}

void drop_caches(Wave& w, const Instruction&) { w.caches_dropped_at = w.epoch; }

// gfx10 says where flat addresses of scratch begin. A change of the rounding or denormal mode would be another matter.
void set_hardware_register(Wave&, const Instruction& in) {
  if (in.text.find("HW_REG_FLAT_SCR_") == std::string::npos) throw Fault("a hardware register that is not known");
}

void illegal(Wave&, const Instruction&) { throw Fault("padding that is no instruction"); }

constexpr Entry kEntries[] = {
    {"s_endpgm", end_program},
    {"s_branch", branch<[](const Wave&) { return true; }>},
    {"s_cbranch_scc0", branch<[](const Wave& w) { return w.s[kScc] == 0; }>},
    {"s_cbranch_scc1", branch<[](const Wave& w) { return w.s[kScc] != 0; }>},
    {"s_cbranch_vccz", branch<[](const Wave& w) { return w.s[kVcc] == 0; }>},
    {"s_cbranch_vccnz", branch<[](const Wave& w) { return w.s[kVcc] != 0; }>},
    {"s_cbranch_execz", branch<[](const Wave& w) { return w.exec() == 0; }>},
    {"s_cbranch_execnz", branch<[](const Wave& w) { return w.exec() != 0; }>},
    {"s_barrier", barrier},
    {"s_barrier_signal", signal_barrier},
    {"s_barrier_wait", wait_at_barrier},
    {"s_waitcnt", wait},
    {"s_waitcnt_vscnt", wait},
    {"s_wait_loadcnt", wait},
    {"s_wait_storecnt", wait},
    {"s_wait_dscnt", wait},
    {"s_wait_kmcnt", wait},
    {"s_wait_loadcnt_dscnt", wait},
    {"s_wait_storecnt_dscnt", wait},
    // Hazards between arithmetic instructions, and the instruction fetch: execution is in order.
    {"s_nop", nothing},
    {"s_clause", nothing},
    {"s_delay_alu", nothing},
    {"s_wait_alu", nothing},
    {"s_waitcnt_depctr", nothing},
    {"s_sendmsg", nothing},
    {"s_inst_prefetch", nothing},
    {"s_set_inst_prefetch_distance", nothing},
    {"s_code_end", nothing},
    {"buffer_gl0_inv", drop_caches},
    {"buffer_gl1_inv", nothing},
    {"global_inv", drop_caches},
    {"global_wb", nothing},
    {"s_setreg_b32", set_hardware_register},
    {"v_nop", nothing},
    {"v_illegal", illegal},
};

}  // namespace

std::span<const Entry> control_entries() { return kEntries; }

}  // namespace rdna
