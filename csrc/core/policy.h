// The registry: one table of kernels, one table of switches, one pure function that picks. No torch, no GPU runtime.
// docs/registry.md is the user's view of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/arch.h"
#include "core/params.h"
#include "core/switches.h"

namespace gdn::policy {

// One a user-visible op (docs/ops.md). The in-place and the out-of-place form of an op share a row.
enum class Op : int32_t {
  gated_delta_rule,  // gated_delta_rule, gated_delta_rule_
  verify,            // gated_delta_rule_verify
  commit,            // gated_delta_rule_commit_
  commit_layers,     // gated_delta_rule_commit_layers_
  commit_verify,     // gated_delta_rule_commit_verify_
  conv,              // causal_conv1d, causal_conv1d_
  conv_verify,       // causal_conv1d_verify
  conv_commit,       // causal_conv1d_commit_, causal_conv1d_commit_layers_
  qk_l2norm,
  gates,         // gdn_gates
  norm,          // gated_rms_norm
  decode_layer,  // gdn_decode_layer_
  verify_layer,  // gdn_verify_layer
};

enum class Precision : int32_t { automatic = 0, exact = 1, fp32 = 2, fast = 3 };
enum class Layout : int32_t { kv = 0, vk = 1 };

// What is asked. Fields that an op does not have stay at their defaults.
struct Request {
  Op op = Op::gated_delta_rule;
  int64_t sequences = 1;      // N
  int64_t tokens = 1;         // T a sequence; with cu_seqlens the mean, rounded up
  int64_t key_heads = 16;     // H
  int64_t value_heads = 48;   // HV
  int64_t key_dim = 128;      // K
  int64_t value_dim = 128;    // V
  int64_t layers = 1;         // L (commit_layers)
  int64_t conv_width = 4;     // W (the fused layers)
  DType dtype = DType::bf16;  // of q, k, v or of x
  HeadMap head_map = HeadMap::grouped;
  Layout layout = Layout::kv;
  Precision precision = Precision::automatic;
  bool tree = false;             // a verify with parents
  bool state_vectors = true;     // StateView::in_vectors()
  bool work_buffer = true;       // the allocator has not refused one
  int32_t alignment_bytes = 16;  // the largest power of two, up to 16, that divides every pointer and row stride
};

// Which card or processor. `arch` is "sm_90", "gfx1151", "cpu-avx512", "cpu-avx2" or "cpu-baseline".
struct Device {
  std::string arch;
  int32_t sms = 0;                  // SMs or CUs; 0: unknown
  int64_t shared_memory_bytes = 0;  // opt-in shared memory or LDS a block may have; 0: from the arch table
};

// Why a row of the table cannot serve a request.
enum class Cause : int32_t {
  none,          // it can
  no_row,        // the op has no kernel for this vendor
  architecture,  // the kernel needs a newer or another architecture of the vendor
  real_card,     // it would run on GDN_EMULATE's architecture, but not on the real one
  isa,           // GDN_CPU_ISA asks for what the CPU lacks
  precision,
  key_dim,
  value_dim,
  tokens,
  switched_off,    // a switch says so
  unmeasured,      // on this vendor's cards: it serves only where a switch asks for it
  state_view,      // the state's addresses or strides are not those of whole vectors
  split,           // GDN_SPLIT=1 divides what the kernel needs whole
  wide_head,       // a head's state is more than a block holds
  conv_width,      // the convolution has another number of taps
  cluster,         // more value heads a key head than blocks a cluster
  busy_card,       // more heads than the card holds at once: other kernels are faster
  tree,            // the kernel takes a chain
  head_group,      // the value heads of a key head do not fit its threads
  idle_card,       // another kernel spreads these few heads over more of the card
  few_tokens,      // the chunked form begins to pay with more
  few_sms,         // a sequence's blocks are more than the card holds at once
  many_sequences,  // several windows of the work buffer, each with few of the sequences
  shared_memory,   // a block needs more than the card gives one
  work_buffer,     // the allocator refused it
};

struct Rejected {
  std::string_view kernel;
  Cause cause;
  std::string reason;
};

// What will run. `kernel` is empty when nothing can; the caller's error is then explain()'s sentence.
struct Decision {
  std::string_view kernel;    // registry id = kernel name = file name
  Isa isa = Isa::baseline;    // CPU kernels
  int32_t heads = 0;          // value heads: of a thread (rec_columns, rec_keyhead), of a block (decode, chunk_fp32)
  int32_t columns = 0;        // value columns a block (CUDA kernels that work on states)
  bool one_launch = false;    // the fused layers: all in one kernel
  bool norm_fused = false;    // the fused layers: the output norm is the step's epilogue
  bool normed_keys = false;   // the fused layers: queries and keys leave the convolution normalised
  bool early = false;         // the same: may start before the kernel before it has ended
  bool pipelined = true;      // prompts on a GPU: the next tokens' loads, or the next chunk's, are under way
  bool batched = true;        // commits: all layers in one launch
  std::string_view reason;    // a few static words; explain() has the details
  Cause cause = Cause::none;  // where kernel is empty: why the last candidate was not taken
  int32_t row = -1;           // index into the table, for served counts
  explicit operator bool() const { return row >= 0; }
};

// Pure: the same for every build, so that a decision can be looked up on any machine. `rejected`, where given, collects
// the kernels that came before the chosen one (or all of them) and why each was not taken; without it nothing is
// allocated. Throws std::invalid_argument if `device.arch` is no architecture.
Decision decide(const Request& request, const Device& device, const Overrides& overrides,
                std::vector<Rejected>* rejected = nullptr);

// The decision for a launch. Where there is none, throws with the op's name in front: std::invalid_argument if an
// argument (precision, K, V, T) or a switch rules it out, std::runtime_error if the device has no kernel or this build
// none for it.
Decision require(const char* op_name, const Request& request, const Device& device, const Overrides& overrides);

// The decision's reason in a sentence.
std::string explain(const Request& request, const Device& device, const Overrides& overrides, const Decision& decision);

// Whether the kernels for a vendor's devices are compiled in.
bool built_with(Vendor vendor);

// The CPU this process runs on, under GDN_CPU_ISA. Throws std::invalid_argument if that asks for what the CPU lacks.
Device cpu_device(const Overrides& overrides);

// Counts a launch of the decision's kernel; with GDN_LOG=1 prints each new decision once. Called once a launch, after
// the launch was accepted.
void count_served(const Request& request, const Device& device, const Decision& decision);

// Says once on stderr that the decision's kernel gave way to another because the allocator refused its work buffer.
void report_refused(const char* op_name, const Decision& decision, int64_t bytes, const Decision& next);

// Launches of each kernel since the start or the last reset; kernels that served nothing are left out.
std::vector<std::pair<std::string_view, int64_t>> served();
void reset_served();

// GDN_CHECK=1: the values in index tensors are checked, with a synchronisation.
bool check_values(const Overrides& overrides);

// The table's row name: "gated_delta_rule", "gated_delta_rule_verify", ... (no trailing underscore).
const char* name(Op op);
const char* name(Precision precision);

// The row name's Op, or that of another op that shares the row; a trailing underscore is ignored. Throws
// std::invalid_argument with the nearest known name.
Op parse_op(std::string_view op_name);

// One line of the table, for `info`.
struct Row {
  std::string_view kernel;
  Op op;
  std::string architectures;  // "cpu", "sm_75 or newer"
  Precision lane;
  std::string_view measured;  // the file in benchmarks/ that put the row there, or words: "only kernel"
};
std::vector<Row> rows();

// The switches that a kernel of this op on this device reads.
std::vector<Switch> switches_read(Op op, Arch arch);

}  // namespace gdn::policy
