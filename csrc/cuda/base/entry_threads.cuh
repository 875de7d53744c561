/// Helpers for kernels with one thread per entry of a block.

#ifndef HVD_SPARSE_CUDA_BASE_ENTRY_THREADS_CUH_
#define HVD_SPARSE_CUDA_BASE_ENTRY_THREADS_CUH_

#include <cstdint>

#include "csrc/base/sparse_block.h"

namespace hvd_sparse::cuda {

constexpr int kEntryThreads = 256;

/// Returns how many blocks of kEntryThreads threads cover `count` entries.
inline unsigned BlocksForEntries(std::int64_t count) {
  return static_cast<unsigned>((count + kEntryThreads - 1) / kEntryThreads);
}

/// Returns the number of this thread's entry.
__device__ inline std::int64_t OwnEntry() {
  return std::int64_t{blockIdx.x} * kEntryThreads + threadIdx.x;
}

/// Like Position(), but on the device.
__device__ inline std::uint32_t PositionOf(Index marked) {
  return static_cast<std::uint32_t>(marked) & ~kSurvivedBit;
}

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_BASE_ENTRY_THREADS_CUH_
