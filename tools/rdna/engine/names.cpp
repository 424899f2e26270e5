#include "names.h"

#include <algorithm>
#include <iterator>

namespace rdna {
namespace {

struct Renamed {
  std::string_view from, to;
};

constexpr std::string_view kSuffixes[] = {"_e64_dpp", "_e32", "_e64", "_dpp", "_sdwa"};

constexpr Renamed kNames[] = {
    {"s_add_u32", "s_add_co_u32"},
    {"s_addc_u32", "s_add_co_ci_u32"},
    {"s_sub_u32", "s_sub_co_u32"},
    {"s_subb_u32", "s_sub_co_ci_u32"},
    {"s_add_i32", "s_add_co_i32"},
    {"s_sub_i32", "s_sub_co_i32"},
    {"s_addk_i32", "s_addk_co_i32"},
    {"s_andn2_b32", "s_and_not1_b32"},
    {"s_andn2_b64", "s_and_not1_b64"},
    {"s_orn2_b32", "s_or_not1_b32"},
    {"s_orn2_b64", "s_or_not1_b64"},
    {"s_andn2_saveexec_b32", "s_and_not1_saveexec_b32"},
    {"s_orn2_saveexec_b32", "s_or_not1_saveexec_b32"},
    {"s_andn1_saveexec_b32", "s_and_not0_saveexec_b32"},
    {"s_ff1_i32_b32", "s_ctz_i32_b32"},
    {"s_ff1_i32_b64", "s_ctz_i32_b64"},
    {"s_flbit_i32_b32", "s_clz_i32_u32"},
    {"s_min_f32", "s_min_num_f32"},
    {"s_max_f32", "s_max_num_f32"},
    {"v_mad_u64_u32", "v_mad_co_u64_u32"},
    {"v_mad_i64_i32", "v_mad_co_i64_i32"},
    {"v_min_f32", "v_min_num_f32"},
    {"v_max_f32", "v_max_num_f32"},
    {"v_ffbh_u32", "v_clz_i32_u32"},
    {"v_ffbl_b32", "v_ctz_i32_b32"},
    {"v_cvt_pkrtz_f16_f32", "v_cvt_pk_rtz_f16_f32"},
};

constexpr Renamed kSharedPrefixes[] = {
    {"ds_read2st64_", "ds_load_2addr_stride64_"},   {"ds_read2_", "ds_load_2addr_"},   {"ds_read_", "ds_load_"},
    {"ds_write2st64_", "ds_store_2addr_stride64_"}, {"ds_write2_", "ds_store_2addr_"}, {"ds_write_", "ds_store_"},
};

// gfx10's names of what a load or a store moves.
constexpr Renamed kMemoryEndings[] = {
    {"_dword", "_b32"},         {"_dwordx2", "_b64"},
    {"_dwordx3", "_b96"},       {"_dwordx4", "_b128"},
    {"_dwordx8", "_b256"},      {"_dwordx16", "_b512"},
    {"_ubyte", "_u8"},          {"_sbyte", "_i8"},
    {"_ushort", "_u16"},        {"_sshort", "_i16"},
    {"_ubyte_d16", "_d16_u8"},  {"_ubyte_d16_hi", "_d16_hi_u8"},
    {"_short_d16", "_d16_b16"}, {"_short_d16_hi", "_d16_hi_b16"},
    {"_byte", "_b8"},           {"_byte_d16_hi", "_d16_hi_b8"},
    {"_short", "_b16"},
};

constexpr std::string_view kTranscendental[] = {"v_rcp_", "v_rsq_",   "v_sqrt_",  "v_exp_",    "v_log_",   "v_sin_",
                                                "v_cos_", "v_s_rcp_", "v_s_rsq_", "v_s_sqrt_", "v_s_exp_", "v_s_log_"};

struct Counted {
  std::string_view prefix;
  Class as;
};
constexpr Counted kClasses[] = {
    {"v_dual_", Class::dual},
    {"v_wmma_", Class::matrix},
    {"v_", Class::valu},
    {"ds_", Class::lds},
    {"s_load_", Class::smem},
    {"s_buffer_load_", Class::smem},
    {"global_load_", Class::vmem_load},
    {"flat_load_", Class::vmem_load},
    {"scratch_load_", Class::vmem_load},
    {"buffer_load_", Class::vmem_load},
    {"global_store_", Class::vmem_store},
    {"flat_store_", Class::vmem_store},
    {"scratch_store_", Class::vmem_store},
    {"buffer_store_", Class::vmem_store},
    {"s_barrier", Class::barrier},
    {"s_branch", Class::branch},
    {"s_cbranch_", Class::branch},
    {"s_wait_alu", Class::other},
    {"s_waitcnt_depctr", Class::other},
    {"s_wait", Class::wait},
    {"s_nop", Class::other},
    {"s_clause", Class::other},
    {"s_delay_alu", Class::other},
    {"s_sendmsg", Class::other},
    {"s_inst_prefetch", Class::other},
    {"s_set_inst_prefetch", Class::other},
    {"s_code_end", Class::other},
    {"s_endpgm", Class::other},
    {"s_", Class::salu},
};

constexpr std::string_view kFreeText[] = {"s_delay_alu",      "s_wait_alu", "s_waitcnt",
                                          "s_waitcnt_depctr", "s_sendmsg",  "s_setreg_b32"};

bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }
bool ends_with(std::string_view text, std::string_view ending) {
  return text.size() >= ending.size() && text.substr(text.size() - ending.size()) == ending;
}

}  // namespace

std::string plain_name(std::string_view mnemonic) {
  for (const std::string_view suffix : kSuffixes) {
    if (!ends_with(mnemonic, suffix)) continue;
    mnemonic.remove_suffix(suffix.size());
    break;
  }
  for (const Renamed& r : kNames) {
    if (mnemonic == r.from) return std::string(r.to);
  }
  for (const Renamed& r : kSharedPrefixes) {
    if (starts_with(mnemonic, r.from)) return std::string(r.to) + std::string(mnemonic.substr(r.from.size()));
  }
  for (const std::string_view move : {"_load", "_store"}) {
    const size_t at = mnemonic.find(move);
    if (at == std::string_view::npos) continue;
    const size_t end = at + move.size();
    for (const Renamed& r : kMemoryEndings) {
      if (mnemonic.substr(end) == r.from) return std::string(mnemonic.substr(0, end)) + std::string(r.to);
    }
  }
  return std::string(mnemonic);
}

Class class_of(std::string_view name) {
  for (const std::string_view prefix : kTranscendental) {
    if (starts_with(name, prefix)) return Class::transcendental;
  }
  for (const Counted& c : kClasses) {
    if (starts_with(name, c.prefix)) return c.as;
  }
  return Class::other;
}

bool has_free_text(std::string_view name) {
  return std::find(std::begin(kFreeText), std::end(kFreeText), name) != std::end(kFreeText);
}

}  // namespace rdna
