// Everything an instruction set's translation unit compiles, in order, and the table it offers.

#include "cpu/simd.inl"
#include "cpu/norms.inl"
#include "cpu/tile.inl"
#include "cpu/commit_cpu.inl"
#include "cpu/rec_cpu.inl"
#include "cpu/conv_cpu.inl"
#include "cpu/conv_commit_cpu.inl"

constexpr Kernels kKernels = {kColumns,          recurrence_units, commit_units, conv_units,
                              conv_commit_units, l2norm_rows,      gate_rows,    norm_rows};
