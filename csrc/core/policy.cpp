#include "core/policy.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <set>
#include <stdexcept>

#include "core/chunk_shapes.h"
#include "core/rec_shapes.h"

namespace gdn::policy {
namespace {

// What a kernel asks of a request beyond its op and architecture.
struct Need {
  bool key_dim;             // K is one of kHeadDims
  bool value_dim;           // V is
  int64_t max_tokens;       // 0: any number
  bool chain = false;       // no tree
  bool whole_head = false;  // a block has all columns of a head: not with GDN_SPLIT=1, and states in_vectors()
  bool one_launch = false;  // of a fused layer
  bool convl2 = false;      // a fused layer's convolution normalises queries and keys
};
constexpr int64_t kHeadDims[] = {64, 128, 256};
constexpr std::string_view kHeadDimWords = "64, 128 or 256";

constexpr Need kAny = {false, false, 0};
constexpr Need kKeys = {true, false, 0};
constexpr Need kValues = {false, true, 0};
constexpr Need kHeads = {true, true, 0};
constexpr Need kWindow = {false, false, kMaxWindowTokens};  // the tokens that a verify takes
constexpr Need kDraft = {true, true, kMaxWindowTokens};
constexpr Need kDraftChain = {true, true, kMaxWindowTokens, true};
constexpr Need kFewTokens = {true, true, 16};
constexpr Need kLayer = {true, true, kMaxLayerTokens};
constexpr Need kLayerFused = {true, true, kMaxLayerTokens, false, true};
constexpr Need kLayerFusedChain = {true, true, kMaxLayerTokens, true, true};
constexpr Need kLayerOne = {true, true, kMaxLayerTokens, false, true, true};
constexpr Need kLayerOneChain = {true, true, kMaxLayerTokens, true, true, true};
constexpr Need kLayerL2 = {true, true, kMaxLayerTokens, false, false, false, true};
constexpr Need kLayerL2Chain = {true, true, kMaxLayerTokens, true, false, false, true};
constexpr Need kLayerL2Fused = {true, true, kMaxLayerTokens, false, true, false, true};
constexpr Need kLayerL2FusedChain = {true, true, kMaxLayerTokens, true, true, false, true};
constexpr Need kLayerChain = {true, true, kMaxLayerTokens, true};

constexpr int64_t kMostClusterBlocks = 8;
constexpr int64_t kChunkedTokens = 256;  // with fewer an exact kernel is faster (benchmarks/chunk_h200.json)
constexpr int32_t kChunkedSms = 128;     // on a smaller card likewise
constexpr int64_t kLayerRounds = 1;  // of such a layer's blocks, a head each, on the multiprocessors: more are slower

constexpr uint32_t bit(Switch id) { return uint32_t{1} << static_cast<uint32_t>(id); }
static_assert(kSwitchCount <= 32, "a row's set of switches is a 32-bit mask");
constexpr uint32_t kReadsIsa = bit(Switch::cpu_isa);
constexpr uint32_t kReadsPipeline = bit(Switch::pipeline);
constexpr uint32_t kReadsKeyhead = bit(Switch::keyhead) | kReadsPipeline;
constexpr uint32_t kReadsChunked = bit(Switch::chunked) | kReadsPipeline;
constexpr uint32_t kReadsSplit = bit(Switch::split) | bit(Switch::step_heads);
constexpr uint32_t kReadsLanes = bit(Switch::lanes) | kReadsPipeline;
constexpr uint32_t kReadsStep = bit(Switch::step) | kReadsSplit;
constexpr uint32_t kReadsL2 = kReadsSplit | bit(Switch::convl2);
constexpr uint32_t kReadsFused = kReadsSplit | bit(Switch::fused_layer);
constexpr uint32_t kReadsCommitSplit = bit(Switch::commit_split);
constexpr uint32_t kReadsNone = 0;

// The measurement that put a row there is a file in benchmarks/; where an op has one kernel on a device there was
// nothing to measure it against.
constexpr std::string_view kOnlyKernel = "only kernel";
constexpr std::string_view kMeasured = "benchmarks/";
constexpr std::string_view kPromptH200 = "benchmarks/prompt_h200.json";
constexpr std::string_view kChunkH200 = "benchmarks/chunk_h200.json";
constexpr std::string_view kDecodeH200 = "benchmarks/decode_h200.json";
// Where nothing was measured: the order of CUDA's rows, or what engines tuned on such cards do.
constexpr std::string_view kAsOnCuda = "in CUDA's order, not measured on RDNA";
constexpr std::string_view kCarriedOver = "carried over from tuned engines, not measured here";

struct Entry {
  Vendor vendor;
  int32_t first_arch;  // of the vendor's numbers; the kernel runs on this one and newer
  Op op;
  Precision lane;
  Need need;
  std::string_view kernel;
  uint32_t reads;  // the switches that it goes by, as bits; every decision goes by GDN_EMULATE
  std::string_view measured;
};

constexpr auto kCpu = Vendor::cpu;
constexpr auto kCuda = Vendor::cuda;
constexpr auto kHip = Vendor::hip;
constexpr int32_t kRdna2 = 0x1030;
constexpr auto kExact = Precision::exact;
constexpr auto kFp32 = Precision::fp32;
constexpr int32_t kEarlyArch = 90;  // the first whose kernels may start before the one before them has ended

// A fused layer is one launch after another.
constexpr std::string_view kDecodeLayerFused = "conv_gates, step_norm";
constexpr std::string_view kVerifyLayerFused = "conv_gates, verify_norm";
constexpr std::string_view kDecodeLayer = "conv_gates, step, gated_rms_norm";
constexpr std::string_view kVerifyLayer = "conv_gates, verify, gated_rms_norm";
constexpr std::string_view kVerifyTreeLayer = "conv_gates, verify_tree, gated_rms_norm";
constexpr std::string_view kDecodeLayerL2Fused = "conv_l2, step_norm";
constexpr std::string_view kVerifyLayerL2Fused = "conv_l2, verify_norm";
constexpr std::string_view kDecodeLayerL2 = "conv_l2, step, gated_rms_norm";
constexpr std::string_view kVerifyLayerL2 = "conv_l2, verify, gated_rms_norm";
constexpr std::string_view kVerifyTreeLayerL2 = "conv_l2, verify_tree, gated_rms_norm";

// Of the rows that fit a request the first one serves it.
// clang-format off
constexpr Entry kTable[] = {
    {kCpu,   0, Op::gated_delta_rule, kExact, kHeads,           "rec_cpu",              kReadsIsa,         kOnlyKernel},
    {kCpu,   0, Op::verify,           kExact, kDraft,           "verify_cpu",           kReadsIsa,         kOnlyKernel},
    {kCpu,   0, Op::commit,           kExact, kHeads,           "commit_cpu",           kReadsIsa,         kOnlyKernel},
    {kCpu,   0, Op::commit_layers,    kExact, kHeads,           "commit_cpu",           kReadsIsa,         kOnlyKernel},
    {kCpu,   0, Op::commit_verify,    kExact, kDraft,           "commit_verify_cpu",    kReadsIsa,         kOnlyKernel},
    {kCpu,   0, Op::conv,             kExact, kAny,             "conv_cpu",             kReadsIsa,         kOnlyKernel},
    {kCpu,   0, Op::conv_verify,      kExact, kWindow,          "conv_cpu",             kReadsIsa,         kOnlyKernel},
    {kCpu,   0, Op::conv_commit,      kExact, kAny,             "conv_commit_cpu",      kReadsIsa,         kOnlyKernel},
    {kCpu,   0, Op::qk_l2norm,        kExact, kKeys,            "l2norm_cpu",           kReadsIsa,         kOnlyKernel},
    {kCpu,   0, Op::gates,            kExact, kAny,             "gates_cpu",            kReadsIsa,         kOnlyKernel},
    {kCpu,   0, Op::norm,             kExact, kValues,          "norm_cpu",             kReadsIsa,         kOnlyKernel},
    {kCpu,   0, Op::decode_layer,     kExact, kLayer,           "decode_layer_cpu",     kReadsIsa,         kOnlyKernel},
    {kCpu,   0, Op::verify_layer,     kExact, kLayer,           "verify_layer_cpu",     kReadsIsa,         kOnlyKernel},
    {kCuda, 75, Op::gated_delta_rule, kExact, kFewTokens,       "step",                 kReadsStep,        kDecodeH200},
    {kCuda, 80, Op::gated_delta_rule, kFp32,  kHeads,           "chunk_fp32",           kReadsChunked,     kChunkH200},
    {kCuda, 80, Op::gated_delta_rule, kExact, kHeads,           "rec_keyhead",          kReadsKeyhead,     kPromptH200},
    {kCuda, 75, Op::gated_delta_rule, kExact, kHeads,           "rec_columns",          kReadsPipeline,    kPromptH200},
    {kCuda, 75, Op::verify,           kExact, kDraftChain,      "verify",               kReadsSplit,       kDecodeH200},
    {kCuda, 75, Op::verify,           kExact, kDraft,           "verify_tree",          kReadsSplit,       kOnlyKernel},
    {kCuda, 75, Op::commit,           kExact, kHeads,           "commit",               kReadsNone,        kOnlyKernel},
    {kCuda, 75, Op::commit_layers,    kExact, kHeads,           "commit",               kReadsCommitSplit, kDecodeH200},
    {kCuda, 75, Op::commit_verify,    kExact, kDraftChain,      "commit_verify",        kReadsSplit,       kDecodeH200},
    {kCuda, 75, Op::commit_verify,    kExact, kDraft,           "commit, verify_tree",  kReadsSplit,       kOnlyKernel},
    {kCuda, 90, Op::decode_layer,     kExact, kLayerOne,        "decode_layer",         kReadsFused,       kDecodeH200},
    {kCuda, 75, Op::decode_layer,     kExact, kLayerFused,      kDecodeLayerFused,      kReadsSplit,       kDecodeH200},
    {kCuda, 75, Op::decode_layer,     kExact, kLayer,           kDecodeLayer,           kReadsSplit,       kDecodeH200},
    {kCuda, 75, Op::verify_layer,     kExact, kLayerOneChain,   "verify_layer",         kReadsFused,       kDecodeH200},
    {kCuda, 75, Op::verify_layer,     kExact, kLayerFusedChain, kVerifyLayerFused,      kReadsSplit,       kDecodeH200},
    {kCuda, 75, Op::verify_layer,     kExact, kLayerChain,      kVerifyLayer,           kReadsSplit,       kDecodeH200},
    {kCuda, 75, Op::verify_layer,     kExact, kLayer,           kVerifyTreeLayer,       kReadsSplit,       kOnlyKernel},
    {kCuda, 75, Op::conv,             kExact, kAny,             "causal_conv1d",        kReadsNone,        kOnlyKernel},
    {kCuda, 75, Op::conv_verify,      kExact, kWindow,          "causal_conv1d",        kReadsNone,        kOnlyKernel},
    {kCuda, 75, Op::conv_commit,      kExact, kAny,             "conv_commit",          kReadsCommitSplit, kOnlyKernel},
    {kCuda, 75, Op::qk_l2norm,        kExact, kKeys,            "qk_l2norm",            kReadsNone,        kOnlyKernel},
    {kCuda, 75, Op::gates,            kExact, kAny,             "gdn_gates",            kReadsNone,        kOnlyKernel},
    {kCuda, 75, Op::norm,             kExact, kValues,          "gated_rms_norm",       kReadsNone,        kOnlyKernel},
    {kHip, kRdna2, Op::gated_delta_rule,  kExact, kFewTokens,         "step",                 kReadsStep,        kCarriedOver},
    {kHip, kRdna2, Op::gated_delta_rule,  kExact, kHeads,             "rec_keyhead",          kReadsKeyhead,     kAsOnCuda},
    {kHip, kRdna2, Op::gated_delta_rule,  kExact, kHeads,             "rec_lanes",            kReadsLanes,       kCarriedOver},
    {kHip, kRdna2, Op::gated_delta_rule,  kExact, kHeads,             "rec_columns",          kReadsPipeline,    kAsOnCuda},
    {kHip, kRdna2, Op::verify,            kExact, kDraftChain,        "verify",               kReadsSplit,       kAsOnCuda},
    {kHip, kRdna2, Op::verify,            kExact, kDraft,             "verify_tree",          kReadsSplit,       kOnlyKernel},
    {kHip, kRdna2, Op::commit,            kExact, kHeads,             "commit",               kReadsNone,        kOnlyKernel},
    {kHip, kRdna2, Op::commit_layers,     kExact, kHeads,             "commit",               kReadsCommitSplit, kCarriedOver},
    {kHip, kRdna2, Op::commit_verify,     kExact, kDraftChain,        "commit_verify",        kReadsSplit,       kAsOnCuda},
    {kHip, kRdna2, Op::commit_verify,     kExact, kDraft,             "commit, verify_tree",  kReadsSplit,       kOnlyKernel},
    {kHip, kRdna2, Op::decode_layer,      kExact, kLayerL2Fused,      kDecodeLayerL2Fused,    kReadsL2,          kCarriedOver},
    {kHip, kRdna2, Op::decode_layer,      kExact, kLayerFused,        kDecodeLayerFused,      kReadsSplit,       kAsOnCuda},
    {kHip, kRdna2, Op::decode_layer,      kExact, kLayerL2,           kDecodeLayerL2,         kReadsL2,          kCarriedOver},
    {kHip, kRdna2, Op::decode_layer,      kExact, kLayer,             kDecodeLayer,           kReadsSplit,       kCarriedOver},
    {kHip, kRdna2, Op::verify_layer,      kExact, kLayerOneChain,     "verify_layer",         kReadsFused,       kAsOnCuda},
    {kHip, kRdna2, Op::verify_layer,      kExact, kLayerL2FusedChain, kVerifyLayerL2Fused,    kReadsL2,          kCarriedOver},
    {kHip, kRdna2, Op::verify_layer,      kExact, kLayerFusedChain,   kVerifyLayerFused,      kReadsSplit,       kAsOnCuda},
    {kHip, kRdna2, Op::verify_layer,      kExact, kLayerL2Chain,      kVerifyLayerL2,         kReadsL2,          kCarriedOver},
    {kHip, kRdna2, Op::verify_layer,      kExact, kLayerChain,        kVerifyLayer,           kReadsSplit,       kCarriedOver},
    {kHip, kRdna2, Op::verify_layer,      kExact, kLayerL2,           kVerifyTreeLayerL2,     kReadsL2,          kCarriedOver},
    {kHip, kRdna2, Op::verify_layer,      kExact, kLayer,             kVerifyTreeLayer,       kReadsSplit,       kAsOnCuda},
    {kHip, kRdna2, Op::conv,              kExact, kAny,               "causal_conv1d",        kReadsNone,        kOnlyKernel},
    {kHip, kRdna2, Op::conv_verify,       kExact, kWindow,            "causal_conv1d",        kReadsNone,        kOnlyKernel},
    {kHip, kRdna2, Op::conv_commit,       kExact, kAny,               "conv_commit",          kReadsCommitSplit, kOnlyKernel},
    {kHip, kRdna2, Op::qk_l2norm,         kExact, kKeys,              "qk_l2norm",            kReadsNone,        kOnlyKernel},
    {kHip, kRdna2, Op::gates,             kExact, kAny,               "gdn_gates",            kReadsNone,        kOnlyKernel},
    {kHip, kRdna2, Op::norm,              kExact, kValues,            "gated_rms_norm",       kReadsNone,        kOnlyKernel},
};
// clang-format on
constexpr size_t kRows = sizeof(kTable) / sizeof(kTable[0]);

// A vendor's rows are neighbours: a decision passes over no others.
constexpr size_t first_row(Vendor vendor) {
  size_t i = 0;
  while (i < kRows && kTable[i].vendor != vendor) ++i;
  return i;
}
constexpr size_t kFirstRow[] = {first_row(Vendor::cpu), first_row(Vendor::cuda), first_row(Vendor::hip)};
constexpr bool are_neighbours() {
  for (size_t i = 1; i < kRows; ++i) {
    if (kTable[i].vendor < kTable[i - 1].vendor) return false;
  }
  return true;
}
static_assert(are_neighbours(), "the table is in the order of vendors");

struct OpName {
  Op op;
  const char* name;  // without a trailing underscore; an op's first line is its row name
};
constexpr OpName kOpNames[] = {
    {Op::gated_delta_rule, "gated_delta_rule"},
    {Op::verify, "gated_delta_rule_verify"},
    {Op::commit, "gated_delta_rule_commit"},
    {Op::commit_layers, "gated_delta_rule_commit_layers"},
    {Op::commit_verify, "gated_delta_rule_commit_verify"},
    {Op::conv, "causal_conv1d"},
    {Op::conv_verify, "causal_conv1d_verify"},
    {Op::conv_commit, "causal_conv1d_commit"},
    {Op::conv_commit, "causal_conv1d_commit_layers"},
    {Op::qk_l2norm, "qk_l2norm"},
    {Op::gates, "gdn_gates"},
    {Op::norm, "gated_rms_norm"},
    {Op::decode_layer, "gdn_decode_layer"},
    {Op::verify_layer, "gdn_verify_layer"},
};

bool is_head_dim(int64_t dim) {
  return std::find(std::begin(kHeadDims), std::end(kHeadDims), dim) != std::end(kHeadDims);
}

Arch arch_of(const Device& device) {
  const auto arch = parse_arch(device.arch);
  if (!arch) {
    throw std::invalid_argument("arch must be an architecture such as sm_86, gfx1151 or cpu-avx2; got '" + device.arch +
                                "'");
  }
  return *arch;
}

bool lacks_isa(Arch arch, const Overrides& overrides) {
  return arch.vendor == Vendor::cpu && overrides[Switch::cpu_isa].number > arch.number;
}

// What a token of the whole request takes: as many rounds as the blocks need on the card, or, on an unknown card, each
// block's share of a full one. On RDNA, where no block was timed, the blocks: each prepares keys and queries anew.
double token_cost(const RecShape& shape, const Request& request, const Device& device, Arch seen) {
  const auto blocks = static_cast<double>(request.sequences * (request.value_heads / shape.heads) *
                                          (request.value_dim / shape.columns));
  if (seen.vendor == Vendor::hip) return blocks;
  const double at_once = device.sms * shape.resident;
  return device.sms > 0 ? std::ceil(blocks / at_once) * shape.token_ns : blocks / shape.resident * shape.token_ns;
}

int64_t most_shared_bytes(Arch arch) { return arch.vendor == Vendor::hip ? kLdsBytes : opt_in_bytes(arch.number); }

// What a block may have: of an emulated card no more than the real one has.
int64_t shared_bytes(const Device& device, Arch seen) {
  const Arch real = arch_of(device);
  const int64_t of_card = device.shared_memory_bytes > 0 ? device.shared_memory_bytes : most_shared_bytes(real);
  return seen == real ? of_card : std::min(of_card, most_shared_bytes(seen));
}

bool rec_shape_fits(const RecShape& shape, const Request& request, const Device& device, Arch seen) {
  const int64_t group = request.key_heads > 0 ? request.value_heads / request.key_heads : 0;
  return group > 0 && group % shape.heads == 0 && has_room(shape, request.key_dim, shared_bytes(device, seen));
}

// The cheapest shape with one head a thread, or with several; nullptr: none fits.
const RecShape* cheapest(bool several_heads, const Request& request, const Device& device, Arch seen) {
  const RecShape* best = nullptr;
  for (const RecShape& shape : kRecShapes) {
    if ((shape.heads > 1) != several_heads || !rec_shape_fits(shape, request, device, seen)) continue;
    if (best == nullptr || token_cost(shape, request, device, seen) < token_cost(*best, request, device, seen))
      best = &shape;
  }
  return best;
}

bool keyhead_pays(const Request& request, const Device& device, Arch seen) {
  return token_cost(*cheapest(true, request, device, seen), request, device, seen) <
         token_cost(*cheapest(false, request, device, seen), request, device, seen);
}

// Value heads of a block of the chunked scan; 0: there is no key head.
int chunk_heads(const Request& request) {
  return request.key_heads > 0 ? chunk::block_heads(request.key_dim, request.value_heads / request.key_heads) : 0;
}

int64_t chunk_shared_bytes(const Request& request, int stages) {
  return chunk::scan_shared_bytes(request.key_dim, chunk_heads(request), stages);
}

// Blocks of the chunked scan that one sequence has.
int64_t chunk_blocks(const Request& request) {
  return request.value_heads / chunk_heads(request) * (request.value_dim / chunk::kBlockColumns);
}

// Chunks that a window of the chunked form's work buffer has room for.
int64_t chunk_window(const Request& request) {
  return chunk::fitting_chunks(
      {request.key_heads, request.value_heads, request.key_dim, request.value_dim, HeadMap::grouped});
}

// Whether the chunked form is expected to win: a sequence's blocks are on the card at once, a multiprocessor each; all
// blocks keep most of it busy; and where there are several windows, for each of which all sequences' blocks are
// launched, most of them find a chunk.
Cause chunk_loses(const Request& request, const Device& device) {
  constexpr double most = 0.75;
  const int64_t blocks = chunk_blocks(request);
  if (device.sms < kChunkedSms || blocks > device.sms) return Cause::few_sms;
  if (static_cast<double>(request.sequences * blocks) < most * device.sms) return Cause::idle_card;
  const int64_t chunks = chunk::most_chunks({request.sequences, request.tokens, {}}), window = chunk_window(request);
  return chunks > window && 2 * request.sequences > window ? Cause::many_sequences : Cause::none;
}

// Whether the scan has two stages of shared memory: where they fit, but for blocks of one chain that are more than the
// multiprocessors, where one has room for several of them with a stage each.
bool chunk_pipelined(const Request& request, const Device& device, Arch seen) {
  const int64_t most = shared_bytes(device, seen);
  const bool several = chunk::chains(chunk_heads(request)) == 1 && device.sms > 0 &&
                       request.sequences * chunk_blocks(request) > device.sms &&
                       has_room(2, chunk_shared_bytes(request, 1), most);
  return !several && chunk_shared_bytes(request, 2) <= most;
}

// Why the chunked form does not serve a request: an order asks for it whatever it costs, a switch from so many tokens
// on and, with GDN_CHUNKED=1, where it wins.
Cause chunk_unmet(const Request& request, const Device& device, Arch seen, const Overrides& overrides) {
  const bool ordered = request.precision == kFp32;
  const int32_t chunked = effective(overrides, Switch::chunked, &seen).number;
  if (chunk_heads(request) == 0) return Cause::head_group;
  if (!ordered && (chunked == kUnset || chunked == 0)) return Cause::switched_off;
  if (chunk_shared_bytes(request, 1) > shared_bytes(device, seen)) return Cause::shared_memory;
  if (!ordered && request.tokens < kChunkedTokens) return Cause::few_tokens;
  const Cause loses = !ordered && chunked == 1 ? chunk_loses(request, device) : Cause::none;
  return loses != Cause::none ? loses : request.work_buffer ? Cause::none : Cause::work_buffer;
}

// Columns of a block of the kernels that hold a head's state in warps' tiles: 2048 / K columns a warp, four warps, or
// with GDN_SPLIT=1 so few that a head of V = 128 is four blocks.
int64_t block_columns(const Request& request, bool split) {
  constexpr int64_t most_warps = 4, split_columns = 32;
  const int64_t tile = kTileValues / request.key_dim, most = std::min(most_warps * tile, request.value_dim);
  return split ? std::min(most, std::max(tile, split_columns)) : most;
}

// Warps of a multiprocessor that the step's registers leave room for (StepTraits::resident_threads).
int64_t resident_warps(const Request& request, Arch seen) {
  constexpr int32_t many_registers_arch = 90;
  return request.key_dim == 128 && seen.number >= many_registers_arch ? 16 : 8;
}

// Value heads of a block: as many as GDN_STEP_HEADS allows, or all of a key head, so that keys and queries are prepared
// once, where there are so many tokens and blocks that it pays.
int64_t block_heads(const Request& request, const Device& device, Arch seen, int32_t asked) {
  constexpr int64_t rounds = 3;
  const int64_t group = request.key_heads > 0 ? request.value_heads / request.key_heads : 1;
  if (request.tree) return 1;
  if (asked == kUnset) {
    const int64_t warps = request.sequences * request.key_heads * request.value_dim * request.key_dim / kTileValues;
    const bool full =
        seen.vendor == Vendor::cuda && device.sms > 0 && warps >= rounds * device.sms * resident_warps(request, seen);
    return request.tokens > 1 && full ? group : 1;
  }
  int64_t heads = std::min(group, int64_t{1} << asked);
  while (group % heads != 0) --heads;
  return heads;
}

// Fills the configuration of a decision for `row`.
void configure(const Entry& row, const Request& request, const Device& device, Arch seen, const Overrides& overrides,
               Decision* decision) {
  if (row.vendor == Vendor::cpu) return;
  const auto number = [&](Switch id) { return effective(overrides, id, &seen).number; };
  if (row.reads & kReadsPipeline) decision->pipelined = number(Switch::pipeline) != 0;
  if (row.reads & bit(Switch::chunked)) {
    decision->heads = chunk_heads(request);
    decision->columns = chunk::kBlockColumns;
    decision->pipelined = decision->pipelined && chunk_pipelined(request, device, seen);
  } else if (row.reads & bit(Switch::lanes)) {
    decision->heads = 1;
    decision->columns = kRecLaneColumns * number(Switch::lanes);
  } else if (row.reads & kReadsPipeline) {
    const RecShape* shape = cheapest((row.reads & bit(Switch::keyhead)) != 0, request, device, seen);
    decision->heads = shape->heads;
    decision->columns = shape->columns;
  }
  const auto columns = [&](bool split) { return static_cast<int32_t>(block_columns(request, split)); };
  if (row.reads & bit(Switch::split)) {
    const int32_t heads = number(Switch::step_heads);
    decision->columns =
        row.need.whole_head ? static_cast<int32_t>(request.value_dim) : columns(number(Switch::split) == 1);
    decision->heads = static_cast<int32_t>(block_heads(request, device, seen, heads));
  }
  if (row.op == Op::commit || row.op == Op::commit_layers) decision->columns = columns(false);
  decision->one_launch = row.need.one_launch;
  if (row.need.one_launch) decision->heads = 1;
  decision->norm_fused = row.need.whole_head;
  decision->normed_keys = row.need.convl2;
  decision->early =
      row.need.whole_head && !row.need.one_launch && row.vendor == Vendor::cuda && arch_of(device).number >= kEarlyArch;
  if (row.reads & kReadsCommitSplit) decision->batched = number(Switch::commit_split) != 0;
}

// `seen`: the architecture that the decision goes by, `real` the one that has to run the kernel (see emulated()).
Cause unmet(const Entry& row, const Request& request, const Device& device, Arch seen, Arch real,
            const Overrides& overrides) {
  if (seen.number < row.first_arch) return Cause::architecture;
  if (real.vendor != row.vendor || real.number < row.first_arch) return Cause::real_card;
  if (lacks_isa(real, overrides)) return Cause::isa;
  if (request.precision != Precision::automatic && request.precision != row.lane) return Cause::precision;
  if (row.need.key_dim && !is_head_dim(request.key_dim)) return Cause::key_dim;
  if (row.need.value_dim && !is_head_dim(request.value_dim)) return Cause::value_dim;
  if (row.need.max_tokens && request.tokens > row.need.max_tokens) return Cause::tokens;
  if (row.need.chain && request.tree) return Cause::tree;
  if (row.need.whole_head && !request.state_vectors) return Cause::state_view;
  if (row.need.whole_head && request.key_dim * request.value_dim > kMostBlockValues) return Cause::wide_head;
  if (row.need.whole_head && effective(overrides, Switch::split, &seen).number == 1) return Cause::split;
  if (row.need.convl2 && effective(overrides, Switch::convl2, &seen).number != 1) return Cause::switched_off;
  if (row.need.one_launch) {
    const int32_t fused = effective(overrides, Switch::fused_layer, &seen).number;
    if (request.conv_width != kLayerTaps) return Cause::conv_width;
    if (row.op == Op::decode_layer && request.value_heads > kMostClusterBlocks * request.key_heads) {
      return Cause::cluster;
    }
    if (fused == 0) return Cause::switched_off;
    if (fused == kUnset && row.vendor == Vendor::hip) return Cause::unmeasured;
    if (fused == kUnset && request.sequences * request.value_heads > kLayerRounds * device.sms) {
      return Cause::busy_card;
    }
  }
  if (row.reads & bit(Switch::chunked)) {
    if (const Cause cause = chunk_unmet(request, device, seen, overrides); cause != Cause::none) return cause;
  }
  if ((row.reads & bit(Switch::step)) && effective(overrides, Switch::step, &seen).number == 0) {
    return Cause::switched_off;
  }
  if ((row.reads & bit(Switch::lanes)) && effective(overrides, Switch::lanes, &seen).number == 0) {
    return Cause::switched_off;
  }
  if (row.reads & bit(Switch::keyhead)) {
    const int32_t keyhead = effective(overrides, Switch::keyhead, &seen).number;
    if (keyhead == 0) return Cause::switched_off;
    if (keyhead == kUnset && row.vendor == Vendor::hip) return Cause::unmeasured;
    if (cheapest(true, request, device, seen) == nullptr) return Cause::head_group;
    if (keyhead == kUnset && !keyhead_pays(request, device, seen)) return Cause::idle_card;
  }
  return Cause::none;
}

// How errors name a device: K and V of a request matter on "cpu", not its instruction set.
std::string device_words(Arch arch) { return arch.vendor == Vendor::cpu ? "cpu" : name(arch); }

std::string architecture_words(const Entry& row) {
  if (row.vendor == Vendor::cpu) return "cpu";
  return name(Arch{row.vendor, row.first_arch}) + " or newer";
}

bool has_lane(Op op, Vendor vendor, Precision lane) {
  return std::any_of(std::begin(kTable), std::end(kTable),
                     [&](const Entry& row) { return row.op == op && row.vendor == vendor && row.lane == lane; });
}

// Not taken because it computes in another precision than the ordered one, which other rows have: they decide.
bool in_another_lane(Cause cause, const Request& request, Arch seen) {
  return cause == Cause::precision && has_lane(request.op, seen.vendor, request.precision);
}

std::string available_precisions(Op op, Vendor vendor) {
  std::vector<std::string_view> words = {"\"auto\""};
  constexpr std::pair<Precision, std::string_view> kLanes[] = {
      {Precision::exact, "\"exact\""}, {Precision::fp32, "\"fp32\""}, {Precision::fast, "\"fast\""}};
  for (const auto& [lane, word] : kLanes) {
    if (has_lane(op, vendor, lane)) words.push_back(word);
  }
  return join_words(words, "and");
}

// The instruction sets up to `best`.
std::string isa_words(int32_t best) {
  std::vector<std::string_view> words;
  for (int32_t i = best; i >= 0; --i) words.push_back(kIsaNames[i]);
  return join_words(words, "and");
}

std::string lacks_isa_words(int32_t has, const Overrides& overrides) {
  return "GDN_CPU_ISA=" + overrides[Switch::cpu_isa].text + ", but this CPU has only " + isa_words(has);
}

// Whether the op has a kernel for that many tokens a sequence: then a row's limit is its own, not the op's.
bool op_takes_tokens(const Request& request, Vendor vendor) {
  return std::any_of(std::begin(kTable), std::end(kTable), [&](const Entry& row) {
    return row.op == request.op && row.vendor == vendor &&
           (row.need.max_tokens == 0 || request.tokens <= row.need.max_tokens);
  });
}

std::string describe(Cause cause, const Entry& row, const Request& request, const Device& device, Arch seen, Arch real,
                     const Overrides& overrides) {
  switch (cause) {
    case Cause::architecture: return "needs " + architecture_words(row) + "; this is " + name(seen);
    case Cause::real_card:
      return "GDN_EMULATE=" + overrides[Switch::emulate].text + ", but the real device is " + name(real) +
             ", which cannot run it";
    case Cause::isa: return lacks_isa_words(real.number, overrides);
    case Cause::precision:
      if (in_another_lane(cause, request, seen)) {
        return "computes in precision=\"" + std::string(name(row.lane)) + "\"; asked for is \"" +
               name(request.precision) + "\"";
      }
      return "precision=\"" + std::string(name(request.precision)) + "\" is not available on " + device_words(seen) +
             ": available are " + available_precisions(request.op, seen.vendor);
    case Cause::key_dim: return "K must be " + std::string(kHeadDimWords) + "; got " + std::to_string(request.key_dim);
    case Cause::value_dim:
      return "V must be " + std::string(kHeadDimWords) + "; got " + std::to_string(request.value_dim);
    case Cause::tokens: {
      const std::string most = std::to_string(row.need.max_tokens), got = std::to_string(request.tokens);
      return op_takes_tokens(request, row.vendor) ? "takes at most " + most + " tokens a sequence; this is T=" + got
                                                  : "T must be at most " + most + "; got " + got;
    }
    case Cause::tree: return "takes a chain of tokens; this is a tree";
    case Cause::switched_off:
      if (row.reads & bit(Switch::chunked)) {
        const bool unset = effective(overrides, Switch::chunked, &seen).number == kUnset;
        return unset ? "GDN_CHUNKED is not set" : "GDN_CHUNKED=0";
      }
      return row.need.convl2                        ? "GDN_CONVL2=0"
             : row.reads & bit(Switch::step)        ? "GDN_STEP=0"
             : row.reads & bit(Switch::fused_layer) ? "GDN_FUSED_LAYER=0"
             : row.reads & bit(Switch::lanes)       ? "GDN_LANES=0"
                                                    : "GDN_KEYHEAD=0";
    case Cause::unmeasured:
      return "not measured on RDNA; " + std::string(row.need.one_launch ? "GDN_FUSED_LAYER=1" : "GDN_KEYHEAD=1") +
             " asks for it";
    case Cause::conv_width:
      return "takes a convolution of " + std::to_string(kLayerTaps) +
             " taps; got W=" + std::to_string(request.conv_width);
    case Cause::cluster:
      return "takes at most " + std::to_string(kMostClusterBlocks) +
             " value heads a key head; got H=" + std::to_string(request.key_heads) +
             ", HV=" + std::to_string(request.value_heads);
    case Cause::busy_card:
      return "N*HV=" + std::to_string(request.sequences * request.value_heads) + " heads have no SM each: " +
             (device.sms > 0 ? std::to_string(device.sms) + " SMs" : std::string("how many there are is not known"));
    case Cause::wide_head:
      return "its blocks have whole heads of K*V of at most " + std::to_string(kMostBlockValues) + "; got " +
             std::to_string(request.key_dim * request.value_dim);
    case Cause::state_view: return "needs a state on a 16-byte boundary with strides of whole vectors";
    case Cause::split: return "its blocks have whole heads; GDN_SPLIT=1";
    case Cause::head_group:
      if (row.vendor == Vendor::hip) {
        return "no block of several value heads fits " + std::to_string(kLdsBytes / 1024) +
               " KB of LDS; got K=" + std::to_string(request.key_dim) + ", H=" + std::to_string(request.key_heads) +
               ", HV=" + std::to_string(request.value_heads);
      }
      return "needs a multiple of 2 value heads a key head, or for K=64 and 128 of 3; got K=" +
             std::to_string(request.key_dim) + ", H=" + std::to_string(request.key_heads) +
             ", HV=" + std::to_string(request.value_heads);
    case Cause::few_tokens:
      return "needs at least " + std::to_string(kChunkedTokens) +
             " tokens a sequence; this is T=" + std::to_string(request.tokens);
    case Cause::few_sms:
      return "with GDN_CHUNKED=1 needs an SM for each of a sequence's blocks, and at least " +
             std::to_string(kChunkedSms) + " SMs; " +
             (device.sms > 0 ? "this card has " + std::to_string(device.sms)
                             : std::string("how many there are is not known"));
    case Cause::many_sequences:
      return "with GDN_CHUNKED=1 needs room for two chunks of each sequence in its work buffer; there is room for " +
             std::to_string(chunk_window(request)) + ", N=" + std::to_string(request.sequences);
    case Cause::shared_memory: {
      const int64_t most = shared_bytes(device, seen);
      return "a block needs " + std::to_string(chunk_shared_bytes(request, 1)) + " bytes of shared memory; " +
             name(most < most_shared_bytes(seen) ? arch_of(device) : seen) + " gives it " + std::to_string(most);
    }
    case Cause::work_buffer: return "the allocator refused its work buffer";
    case Cause::idle_card:
      if (row.reads & bit(Switch::chunked))
        return "its blocks keep too few of the " + std::to_string(device.sms) + " SMs busy";
      return "one head a thread is expected to be faster" +
             (device.sms > 0 ? ": more of the " + std::to_string(device.sms) + " SMs have work" : std::string());
    case Cause::none:
    case Cause::no_row: break;
  }
  throw std::logic_error("describe: a row that serves the request was not rejected");
}

// The op, and that this is a tree where a chain has a kernel of its own.
std::string words(const Request& request, Vendor vendor) {
  const bool chains_apart = std::any_of(std::begin(kTable), std::end(kTable), [&](const Entry& row) {
    return row.op == request.op && row.vendor == vendor && row.need.chain;
  });
  return std::string(name(request.op)) + (request.tree && chains_apart ? " of a tree" : "");
}

// The device is in the way, not an argument or a switch.
bool is_of_device(Cause cause) {
  return cause == Cause::no_row || cause == Cause::architecture || cause == Cause::real_card;
}

std::string_view static_words(Cause cause) {
  switch (cause) {
    case Cause::none: return "";
    case Cause::no_row:
    case Cause::architecture: return "no kernel of this build serves the op on this architecture";
    case Cause::real_card: return "the real device cannot run the emulated one's kernel";
    case Cause::isa: return "GDN_CPU_ISA asks for an instruction set that this CPU lacks";
    case Cause::precision: return "the precision is not available on this device";
    case Cause::key_dim:
    case Cause::value_dim:
    case Cause::tokens:
    case Cause::tree:
    case Cause::switched_off:
    case Cause::unmeasured:
    case Cause::state_view:
    case Cause::split:
    case Cause::wide_head:
    case Cause::conv_width:
    case Cause::cluster:
    case Cause::busy_card:
    case Cause::head_group:
    case Cause::idle_card:
    case Cause::few_tokens:
    case Cause::few_sms:
    case Cause::shared_memory:
    case Cause::work_buffer: return "no kernel for this shape";
  }
  return "";
}

const char* vendor_words(Vendor vendor) {
  constexpr const char* kNames[] = {"CPU", "CUDA", "ROCm"};
  return kNames[static_cast<int32_t>(vendor)];
}

Isa detect_isa() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return avx512 && avx2 ? Isa::avx512 : avx2 ? Isa::avx2 : Isa::baseline;
#else
  return Isa::baseline;
#endif
}

std::atomic<int64_t> g_served[kRows];

}  // namespace

Decision decide(const Request& request, const Device& device, const Overrides& overrides,
                std::vector<Rejected>* rejected) {
  const Arch real = arch_of(device);
  const Arch seen = emulated(real, overrides);
  Decision decision;
  decision.cause = Cause::no_row;
  for (size_t i = kFirstRow[static_cast<size_t>(seen.vendor)]; i < kRows && kTable[i].vendor == seen.vendor; ++i) {
    const Entry& row = kTable[i];
    if (row.op != request.op) continue;
    const Cause cause = unmet(row, request, device, seen, real, overrides);
    if (!in_another_lane(cause, request, seen)) decision.cause = cause;
    if (cause == Cause::none) {
      decision.kernel = row.kernel;
      decision.reason = row.measured;
      decision.row = static_cast<int32_t>(i);
      configure(row, request, device, seen, overrides, &decision);
      if (seen.vendor == Vendor::cpu) {
        const int32_t asked = overrides[Switch::cpu_isa].number;
        decision.isa = static_cast<Isa>(asked == kUnset ? seen.number : std::min(seen.number, asked));
      }
      return decision;
    }
    if (rejected) {
      rejected->push_back({row.kernel, cause, describe(cause, row, request, device, seen, real, overrides)});
    }
  }
  decision.reason = static_words(decision.cause);
  return decision;
}

std::string explain(const Request& request, const Device& device, const Overrides& overrides,
                    const Decision& decision) {
  const Arch real = arch_of(device);
  const Arch seen = emulated(real, overrides);
  const std::string where = words(request, seen.vendor) + " on " + device_words(seen);
  const std::string emulation =
      seen == real ? "" : "; GDN_EMULATE=" + overrides[Switch::emulate].text + " in place of " + name(real);
  if (decision) {
    const bool several = decision.kernel.find(',') != std::string_view::npos;
    std::string text;
    if (decision.reason == kOnlyKernel) {
      text = (several ? "the only kernels for " : "the only kernel for ") + where;
    } else {
      const bool measured = decision.reason.substr(0, kMeasured.size()) == kMeasured;
      text = (several ? "the first kernels that fit " : "the first kernel that fits ") + where +
             (measured ? ", measured in " : ", ") + std::string(decision.reason);
    }
    const bool isa_asked = seen.vendor == Vendor::cpu && overrides[Switch::cpu_isa].number != kUnset;
    if (isa_asked) text += "; GDN_CPU_ISA=" + overrides[Switch::cpu_isa].text;
    return text + emulation;
  }
  std::vector<Rejected> rejected;
  decide(request, device, overrides, &rejected);
  const auto beside_the_point = [&](const Rejected& r) {  // what the device cannot run anyway, or was not asked for
    return (is_of_device(r.cause) && !is_of_device(decision.cause)) || in_another_lane(r.cause, request, seen);
  };
  rejected.erase(std::remove_if(rejected.begin(), rejected.end(), beside_the_point), rejected.end());
  const auto differs = [&](const Rejected& r) { return r.reason != rejected.front().reason; };
  std::string why;
  if (!rejected.empty() && std::none_of(rejected.begin(), rejected.end(), differs)) {
    why = rejected.front().reason;
  } else {
    for (const Rejected& r : rejected) why += (why.empty() ? "" : "; ") + std::string(r.kernel) + ": " + r.reason;
  }
  if (decision.cause != Cause::no_row && decision.cause != Cause::architecture) return why;
  const std::string order = request.precision == Precision::automatic
                                ? ""
                                : " with precision=\"" + std::string(name(request.precision)) + "\"";
  return "no kernel of this build serves " + where + order + (why.empty() ? "" : ": " + why) + emulation;
}

Decision require(const char* op_name, const Request& request, const Device& device, const Overrides& overrides) {
  const Decision decision = decide(request, device, overrides);
  if (!decision) {
    const std::string message = std::string(op_name) + ": " + explain(request, device, overrides, decision);
    if (is_of_device(decision.cause)) throw std::runtime_error(message);
    throw std::invalid_argument(message);
  }
  const Vendor vendor = kTable[decision.row].vendor;
  if (!built_with(vendor)) {
    throw std::runtime_error(std::string(op_name) + ": this build of strata_gdn has no " + vendor_words(vendor) +
                             " kernels; it cannot run on " + device.arch);
  }
  return decision;
}

bool built_with(Vendor vendor) {
  switch (vendor) {
    case Vendor::cpu: return true;
    case Vendor::cuda:
#ifdef GDN_WITH_CUDA
      return true;
#else
      return false;
#endif
    case Vendor::hip:
#ifdef GDN_WITH_HIP
      return true;
#else
      return false;
#endif
  }
  return false;
}

Device cpu_device(const Overrides& overrides) {
  static const Isa detected = detect_isa();
  const int32_t has = static_cast<int32_t>(detected);
  const int32_t asked = overrides[Switch::cpu_isa].number;
  if (asked > has) throw std::invalid_argument(lacks_isa_words(has, overrides));
  Device device;
  device.arch = "cpu-";
  device.arch += kIsaNames[asked == kUnset ? has : asked];
  return device;
}

void count_served(const Request& request, const Device& device, const Decision& decision) {
  g_served[decision.row].fetch_add(1, std::memory_order_relaxed);
  const Overrides& overrides = current_overrides();
  if (effective(overrides, Switch::log, nullptr).number != 1) return;
  const std::string line = std::string(name(request.op)) + " on " + device.arch + ": " + std::string(decision.kernel) +
                           ", " + explain(request, device, overrides, decision);
  static std::mutex mutex;
  static auto* printed = new std::set<std::string>;  // never destroyed: ops may run until the process is gone
  const std::lock_guard<std::mutex> lock(mutex);
  if (printed->insert(line).second) std::fprintf(stderr, "strata_gdn: %s\n", line.c_str());
}

void report_refused(const char* op_name, const Decision& decision, int64_t bytes, const Decision& next) {
  static std::atomic<bool> reported{false};
  if (reported.exchange(true)) return;
  std::fprintf(stderr, "strata_gdn: %s: no memory for the %lld bytes of %s's work buffer; %s runs instead\n", op_name,
               static_cast<long long>(bytes), std::string(decision.kernel).c_str(), std::string(next.kernel).c_str());
}

std::vector<std::pair<std::string_view, int64_t>> served() {
  std::vector<std::pair<std::string_view, int64_t>> counts;
  for (size_t i = 0; i < kRows; ++i) {
    const int64_t count = g_served[i].load(std::memory_order_relaxed);
    if (count == 0) continue;
    const auto same =
        std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return c.first == kTable[i].kernel; });
    if (same == counts.end()) {
      counts.emplace_back(kTable[i].kernel, count);
    } else {
      same->second += count;
    }
  }
  return counts;
}

void reset_served() {
  for (auto& count : g_served) count.store(0, std::memory_order_relaxed);
}

bool check_values(const Overrides& overrides) { return effective(overrides, Switch::check, nullptr).number == 1; }

const char* name(Op op) {
  for (const OpName& n : kOpNames) {
    if (n.op == op) return n.name;
  }
  throw std::logic_error("name: an Op without a line in kOpNames");
}

const char* name(Precision precision) {
  constexpr const char* kNames[] = {"auto", "exact", "fp32", "fast"};
  return kNames[static_cast<int32_t>(precision)];
}

Op parse_op(std::string_view op_name) {
  std::string_view plain = op_name;
  if (!plain.empty() && plain.back() == '_') plain.remove_suffix(1);
  std::vector<std::string_view> names;
  for (const OpName& n : kOpNames) {
    if (plain == n.name) return n.op;
    names.push_back(n.name);
  }
  throw std::invalid_argument("unknown op " + std::string(op_name) +
                              " (nearest known name: " + std::string(nearest(plain, names)) + ")");
}

std::vector<Row> rows() {
  std::vector<Row> all;
  for (const Entry& row : kTable) all.push_back({row.kernel, row.op, architecture_words(row), row.lane, row.measured});
  return all;
}

std::vector<Switch> switches_read(Op op, Arch arch) {
  uint32_t mask = bit(Switch::emulate);
  for (const Entry& row : kTable) {
    if (row.op == op && row.vendor == arch.vendor) mask |= row.reads;
  }
  std::vector<Switch> ids;
  for (int32_t i = 0; i < kSwitchCount; ++i) {
    if (mask & bit(static_cast<Switch>(i))) ids.push_back(static_cast<Switch>(i));
  }
  return ids;
}

}  // namespace gdn::policy
