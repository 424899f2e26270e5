// The CPU launchers of the exact lane: params in, tensors written, nothing decided here. One function a registry id.
// Every launcher gives the same bits for every `isa` and every way `parallel` cuts the work.
#pragma once

#include "core/launch.h"
#include "core/params.h"
#include "core/policy.h"

namespace gdn::cpu {

using policy::Isa;

void rec_cpu(const RecurrenceParams& params, Isa isa, const Parallel& parallel);
void verify_cpu(const RecurrenceParams& params, Isa isa, const Parallel& parallel);
void commit_cpu(const CommitParams& params, Isa isa, const Parallel& parallel);
// `commit` has one layer, the pool that `verify` reads.
void commit_verify_cpu(const CommitParams& commit, const RecurrenceParams& verify, Isa isa, const Parallel& parallel);
void conv_cpu(const ConvParams& params, Isa isa, const Parallel& parallel);
void conv_commit_cpu(const ConvCommitParams& params, Isa isa, const Parallel& parallel);
void l2norm_cpu(const L2NormParams& params, Isa isa, const Parallel& parallel);
void gates_cpu(const GatesParams& params, Isa isa, const Parallel& parallel);
void norm_cpu(const NormParams& params, Isa isa, const Parallel& parallel);

}  // namespace gdn::cpu
