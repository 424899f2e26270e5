// Small kernels for tests/test_rdna_*.py: right ones that use what the package's kernels use, or may use one day, of
// the instruction set, and ones with a fault planted, which the runner has to find.
#include <hip/hip_runtime.h>

#include "cuda/device.h"

namespace {

constexpr int kLanes = 32, kWords = 1024;

__device__ int item() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }

}  // namespace

// Right: arithmetic
// -----------------------------------------------------------------------------------------------------

extern "C" __global__ void add(const float* a, const float* b, float* out) {
  const int i = item();
  out[i] = a[i] + b[i];
}

extern "C" __global__ void divide(const float* a, const float* b, float* out) {
  const int i = item();
  out[i] = a[i] / b[i];
}

extern "C" __global__ void root(const float* a, float* out) {
  const int i = item();
  out[i] = __builtin_sqrtf(a[i]);
}

// The processor's own: what an approximation changes.
extern "C" __global__ void raw_reciprocal(const float* a, float* out) {
  const int i = item();
  out[i] = __builtin_amdgcn_rcpf(a[i]);
}

extern "C" __global__ void divide_integers(const int* a, const int* b, int* quotient, int* remainder) {
  const int i = item();
  quotient[i] = a[i] / b[i];
  remainder[i] = a[i] % b[i];
}

extern "C" __global__ void divide_long(const int64_t* a, const int64_t* b, int64_t* quotient, int64_t* product) {
  const int i = item();
  quotient[i] = a[i] / b[i];
  product[i] = a[i] * b[i] >> 3;
}

extern "C" __global__ void classes(const float* a, int* out) {
  const int i = item();
  constexpr int all = 10;
  int bits = 0;
  bits |= __builtin_amdgcn_classf(a[i], 1) << 0;
#pragma unroll
  for (int c = 1; c < all; ++c) bits |= __builtin_amdgcn_classf(a[i], 1 << c) << c;
  out[i] = bits;
}

extern "C" __global__ void through_half(const float* a, const _Float16* b, _Float16* narrow, float* wide) {
  const int i = item();
  narrow[i] = static_cast<_Float16>(a[i]) * b[i] + b[i];
  wide[i] = static_cast<float>(b[i]);
}

// Half of a register each: d16 loads and stores.
extern "C" __global__ void swap_halves(const uint16_t* a, uint16_t* out) {
  const int i = 2 * item();
  const uint16_t low = a[i], high = a[i + 1];
  const uint32_t both = static_cast<uint32_t>(low) << 16 | high;
  out[i] = static_cast<uint16_t>(both);
  out[i + 1] = static_cast<uint16_t>(both >> 16);
}

// Right: lanes
// ------------------------------------------------------------------------------------------------------------

// out[k][i]: k-th exchange of the lanes of a wave.
extern "C" __global__ void exchanges(const int* a, int* out) {
  const int i = item(), n = static_cast<int>(gridDim.x * blockDim.x), x = a[i];
  constexpr int all_rows = 15, all_banks = 15;
  constexpr int quad_reversed = 0x1b, row_shift_left_1 = 0x101, row_rotate_right_4 = 0x124, row_xor_5 = 0x165,
                row_share_3 = 0x153, row_mirrored = 0x140;
  const int made[] = {
      __builtin_amdgcn_update_dpp(-1, x, quad_reversed, all_rows, all_banks, false),
      __builtin_amdgcn_update_dpp(-1, x, row_shift_left_1, all_rows, all_banks, false),
      __builtin_amdgcn_update_dpp(-1, x, row_shift_left_1, all_rows, all_banks, true),
      __builtin_amdgcn_update_dpp(-1, x, row_rotate_right_4, all_rows, all_banks, false),
      __builtin_amdgcn_update_dpp(-1, x, row_xor_5, all_rows, all_banks, false),
      __builtin_amdgcn_update_dpp(-1, x, row_share_3, 1, all_banks, false),
      __builtin_amdgcn_update_dpp(-1, x, row_mirrored, all_rows, 5, false),
      static_cast<int>(__builtin_amdgcn_permlane16(x, x, 0x76543210, 0x0123fedc, false, false)),
      static_cast<int>(__builtin_amdgcn_permlanex16(x, x, 0x76543210, 0xfedcba98, false, false)),
      __builtin_amdgcn_ds_swizzle(x, 0x041f),  // xor 1
      __builtin_amdgcn_ds_swizzle(x, 0x801b),  // quads reversed
      __shfl_xor(x, 7, kLanes),
      __builtin_amdgcn_readlane(x, 9),
      __builtin_amdgcn_mov_dpp8(x, 0xfac688),  // 0 1 2 3 4 5 6 7 reversed by halves: see the test
  };
#pragma unroll
  for (int k = 0; k < static_cast<int>(sizeof made / sizeof *made); ++k) out[k * n + i] = made[k];
}

// A wave's upper row alone is active and reads the lower one.
extern "C" __global__ void from_inactive_row(const int* a, int* out) {
  const int i = item(), n = static_cast<int>(gridDim.x * blockDim.x);
  int x = a[i];
  asm volatile("" : "+v"(x));  // every lane has its value before the branch
  if (threadIdx.x % 32 < 16) return;
  const int made[] = {
      static_cast<int>(__builtin_amdgcn_permlanex16(-1, x, 0x76543210, 0xfedcba98, false, false)),
      static_cast<int>(__builtin_amdgcn_permlanex16(-1, x, 0x76543210, 0xfedcba98, false, true)),
      static_cast<int>(__builtin_amdgcn_permlanex16(-1, x, 0x76543210, 0xfedcba98, true, false)),
  };
#pragma unroll
  for (int k = 0; k < static_cast<int>(sizeof made / sizeof *made); ++k) out[k * n + i] = made[k];
}

// Right: memory
// ------------------------------------------------------------------------------------------------------------

// An array that no register can hold: scratch.
extern "C" __global__ void scratch(const int* order, int* out) {
  const int i = item();
  constexpr int size = 64;
  int values[size];
#pragma unroll 1
  for (int k = 0; k < size; ++k) values[order[k] & (size - 1)] = k * i;
  int sum = 0;
#pragma unroll 1
  for (int k = 0; k < size; ++k) sum = 31 * sum + values[order[k + size] & (size - 1)];
  out[i] = sum;
}

extern "C" __global__ void buffer(void* a, int* out, int bytes) {
  constexpr int flags = 0x31004000;
  const auto description = __builtin_amdgcn_make_buffer_rsrc(a, 0, bytes, flags);
  out[item()] = static_cast<int>(__builtin_amdgcn_raw_buffer_load_b32(description, item() * 4, 0, 0));
}

// Addresses of which only the lane knows where they lead: scratch, LDS or global memory.
extern "C" __global__ void anywhere(int* a, const int* order, int* out) {
  __shared__ int s[kWords];
  constexpr int size = 8;
  int values[size];
  for (int k = 0; k < size; ++k) values[order[k] & (size - 1)] = 1000 * k + item();
  s[threadIdx.x] = -item();
  __syncthreads();
  int* from[] = {&values[order[threadIdx.x & 7] & (size - 1)], &s[threadIdx.x ^ 1], &a[item()]};
  int* chosen = threadIdx.x % 3 == 0 ? from[0] : threadIdx.x % 3 == 1 ? from[1] : from[2];
  const int value = *static_cast<volatile int*>(chosen);
  __syncthreads();
  out[item()] = value;
}

// Two words of a buffer by the scalar unit.
extern "C" __global__ void scalar_buffer(void* a, int* out, int bytes) {
  using Words = int __attribute__((ext_vector_type(4)));
  const auto address = reinterpret_cast<uintptr_t>(a);
  const Words description = {static_cast<int>(address), static_cast<int>(address >> 32 & 0xffff), bytes, 0x31004000};
  uint64_t two;
#if defined(__GFX12__)
  asm volatile("s_buffer_load_b64 %0, %1, 0x8\n\ts_wait_kmcnt 0x0" : "=s"(two) : "s"(description));
#elif defined(__GFX11__)
  asm volatile("s_buffer_load_b64 %0, %1, 0x8\n\ts_waitcnt lgkmcnt(0)" : "=s"(two) : "s"(description));
#else
  asm volatile("s_buffer_load_dwordx2 %0, %1, 0x8\n\ts_waitcnt lgkmcnt(0)" : "=s"(two) : "s"(description));
#endif
  out[item()] = static_cast<int>(two >> 32) - static_cast<int>(two);
}

extern "C" __global__ void constants(int* out) {
  static const __constant__ int table[] = {2, 3, 5, 7, 11, 13, 17, 19};
  constexpr int size = sizeof table / sizeof *table;
  out[item()] = table[item() % size];
}

// Reversed in the block, through LDS.
extern "C" __global__ void reverse(const int* a, int* out) {
  __shared__ int s[kWords];
  s[threadIdx.x] = a[item()];
  __syncthreads();
  out[item()] = s[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void reverse_dynamic(const int* a, int* out) {
  extern __shared__ int s_dynamic[];
  s_dynamic[threadIdx.x] = a[item()];
  __syncthreads();
  out[item()] = s_dynamic[blockDim.x - 1 - threadIdx.x];
}

struct Given {
  const int* a;
  int* out;
  int64_t stride;
  int16_t factor;
};
extern "C" __global__ void by_value(const Given given) {
  given.out[item()] = given.a[item() * given.stride] * given.factor;
}

#if defined(__GFX11__) || defined(__GFX12__)
using Half8 = _Float16 __attribute__((ext_vector_type(8)));
using Half16 = _Float16 __attribute__((ext_vector_type(16)));
using Bfloat8 = __bf16 __attribute__((ext_vector_type(8)));
using Bfloat16 = __bf16 __attribute__((ext_vector_type(16)));
using Short8 = int16_t __attribute__((ext_vector_type(8)));
using Short16 = int16_t __attribute__((ext_vector_type(16)));
using Float8 = float __attribute__((ext_vector_type(8)));

#if defined(__GFX12__)
constexpr int kFragment = 8;
__device__ int first_element() { return threadIdx.x < 16 ? 0 : 8; }
__device__ int result_row(int r) { return 8 * (static_cast<int>(threadIdx.x) / 16) + r; }
__device__ Float8 multiply(Half8 a, Half8 b, Float8 c) {
  return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c);
}
__device__ Float8 multiply(Short8 a, Short8 b, Float8 c) {
  return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, c);
}
using HalfFragment = Half8;
using BfloatFragment = Short8;
#else
constexpr int kFragment = 16;
__device__ int first_element() { return 0; }
__device__ int result_row(int r) { return 2 * r + static_cast<int>(threadIdx.x) / 16; }
__device__ Float8 multiply(Half16 a, Half16 b, Float8 c) { return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c); }
__device__ Float8 multiply(Short16 a, Short16 b, Float8 c) {
  return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, c);
}
using HalfFragment = Half16;
using BfloatFragment = Short16;
#endif

// out = a b + out, all 16 x 16 with rows one after another; one wave
template <class Fragment, class Element>
__device__ void matrix_product(const Element* a, const Element* b, float* out) {
  const int line = static_cast<int>(threadIdx.x) % 16;
  Fragment fragment_a, fragment_b;
  Float8 c;
  for (int i = 0; i < kFragment; ++i) {
    fragment_a[i] = a[line * 16 + first_element() + i];
    fragment_b[i] = b[(first_element() + i) * 16 + line];
  }
  for (int r = 0; r < 8; ++r) c[r] = out[result_row(r) * 16 + line];
  c = multiply(fragment_a, fragment_b, c);
  for (int r = 0; r < 8; ++r) out[result_row(r) * 16 + line] = c[r];
}
extern "C" __global__ void wmma_f16(const _Float16* a, const _Float16* b, float* out) {
  matrix_product<HalfFragment>(a, b, out);
}
extern "C" __global__ void wmma_bf16(const int16_t* a, const int16_t* b, float* out) {
  matrix_product<BfloatFragment>(a, b, out);
}
#endif

// Faults
// ---------------------------------------------------------------------------------------------------------------

extern "C" __global__ void race_of_write_and_read(int* out) {
  __shared__ int s[kWords];
  s[threadIdx.x] = 0;
  __syncthreads();
  s[threadIdx.x] = item();
  __builtin_amdgcn_wave_barrier();
  out[item()] = s[threadIdx.x ^ kLanes];
}

extern "C" __global__ void race_of_writes(int* out) {
  __shared__ int s[kWords];
  s[threadIdx.x % kLanes] = item();
  __syncthreads();
  out[item()] = s[threadIdx.x % kLanes];
}

// The barrier between the reads and the next round's writes is missing.
extern "C" __global__ void race_of_read_and_write(int* out) {
  __shared__ int s[kWords];
  s[threadIdx.x] = item();
  __syncthreads();
  out[item()] = s[threadIdx.x ^ kLanes];
  s[threadIdx.x] = out[item() ^ 1];
  __syncthreads();
  out[item()] += s[threadIdx.x];
}

extern "C" __global__ void race_of_groups_writes(int* out) { out[threadIdx.x] = item(); }

// The next group's words, which it changes.
extern "C" __global__ void race_of_groups(const int* a, int* out) {
  out[item()] = a[(item() + blockDim.x) % (gridDim.x * blockDim.x)];
}

// From wave to wave through global memory: behind no barrier, behind one for LDS, behind one for all memory.
template <int barrier>
__device__ void exchange_in_memory(int* out) {
  out[item()] = item();
  if (barrier == 1) gdn::gpu::sync_lds();
  if (barrier == 2) gdn::gpu::sync_block();
  const int other = out[item() ^ kLanes];
  gdn::gpu::sync_block();
  out[item()] = other;
}
extern "C" __global__ void exchange_behind_nothing(int* out) { exchange_in_memory<0>(out); }
extern "C" __global__ void exchange_behind_lds_barrier(int* out) { exchange_in_memory<1>(out); }
extern "C" __global__ void exchange_behind_full_barrier(int* out) { exchange_in_memory<2>(out); }

extern "C" __global__ void read_past_the_end(const int* a, int* out) { out[item()] = a[item() + 1]; }

extern "C" __global__ void write_before_the_begin(int* out) { out[item() - 1] = item(); }

// All of the four words, of which the last one's are not there.
extern "C" __global__ void read_over_the_end(const float4* a, float* out) {
  const float4 x = a[item()];
  out[item()] = x.x + x.y + x.z + x.w;
}

extern "C" __global__ void shared_past_the_end(int* out, int offset) {
  __shared__ int s[kWords];
  s[threadIdx.x + static_cast<unsigned>(offset)] = item();
  __syncthreads();
  out[item()] = s[threadIdx.x];
}

extern "C" __global__ void read_of_nothing(int* out, int written) {
  __shared__ int s[kWords];
  if (static_cast<int>(threadIdx.x) < written) s[threadIdx.x] = item();
  __syncthreads();
  out[item()] = s[threadIdx.x];
}
