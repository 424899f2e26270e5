// How many blocks of a kernel a multiprocessor holds at once, by NVIDIA's own calculator (cuda_occupancy.h of the CUDA
// toolkit). One line of whole numbers in, one line out, until the input ends:
//
//   in   compute capability: major, minor; of a multiprocessor: threads, shared memory (bytes); of a block at most:
//        shared memory (bytes, opted in), and reserved by the driver; the kernel's: registers a thread, threads a
//        block, static and dynamic shared memory (bytes), barriers
//   out  blocks that fit, by: registers, shared memory, threads and block slots, all limits together
#include <cuda_occupancy.h>

#include <iostream>

namespace {

// The same on every architecture of csrc/sources.json.
constexpr int kWarp = 32;
constexpr int kBlockThreads = 1024;
constexpr int kRegisters = 65536;             // of a multiprocessor, and what one block may have of them
constexpr size_t kDefaultShared = 48 * 1024;  // what a block may have without opting in

}  // namespace

int main() {
  cudaOccDeviceProp device;
  device.maxThreadsPerBlock = kBlockThreads;
  device.regsPerBlock = kRegisters;
  device.regsPerMultiprocessor = kRegisters;
  device.warpSize = kWarp;
  device.sharedMemPerBlock = kDefaultShared;
  device.numSms = 1;
  cudaOccFuncAttributes kernel;
  kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  const cudaOccDeviceState state;
  int threads = 0;
  size_t dynamic_bytes = 0;
  while (std::cin >> device.computeMajor >> device.computeMinor >> device.maxThreadsPerMultiprocessor >>
         device.sharedMemPerMultiprocessor >> device.sharedMemPerBlockOptin >> device.reservedSharedMemPerBlock >>
         kernel.numRegs >> threads >> kernel.sharedSizeBytes >> dynamic_bytes >> kernel.numBlockBarriers) {
    kernel.maxThreadsPerBlock = threads;
    kernel.maxDynamicSharedSizeBytes = dynamic_bytes;
    cudaOccResult blocks;
    const cudaOccError error =
        cudaOccMaxActiveBlocksPerMultiprocessor(&blocks, &device, &kernel, &state, threads, dynamic_bytes);
    if (error != CUDA_OCC_SUCCESS) {
      std::cerr << "cuda_occupancy.h: error " << error << " for compute capability " << device.computeMajor << "."
                << device.computeMinor << "\n";
      return 1;
    }
    const int slots =
        blocks.blockLimitWarps < blocks.blockLimitBlocks ? blocks.blockLimitWarps : blocks.blockLimitBlocks;
    std::cout << blocks.blockLimitRegs << " " << blocks.blockLimitSharedMem << " " << slots << " "
              << blocks.activeBlocksPerMultiprocessor << "\n";
  }
  return 0;
}
