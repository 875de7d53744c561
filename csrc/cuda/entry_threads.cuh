/// Kernels with a thread for each entry of a block.

#ifndef HVD_SPARSE_CUDA_ENTRY_THREADS_CUH_
#define HVD_SPARSE_CUDA_ENTRY_THREADS_CUH_

#include <cstdint>

#include "csrc/base/sparse_block.h"

namespace hvd_sparse::cuda {

constexpr int kEntryThreads = 256;

/// Blocks of kEntryThreads threads for so many entries.
inline unsigned BlocksForEntries(std::int64_t count) {
  return static_cast<unsigned>((count + kEntryThreads - 1) / kEntryThreads);
}

/// The entry of this thread.
__device__ inline std::int64_t OwnEntry() {
  return std::int64_t{blockIdx.x} * kEntryThreads + threadIdx.x;
}

/// Position(), for the device.
__device__ inline std::uint32_t PositionOf(Index marked) {
  return static_cast<std::uint32_t>(marked) & ~kSurvivedBit;
}

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_ENTRY_THREADS_CUH_
