/// A thread per selected entry, and a binary search each.

#include "csrc/cuda/block_settle.h"
#include "csrc/cuda/check.h"
#include "csrc/cuda/entry_threads.cuh"

namespace hvd_sparse::cuda {
namespace {

__device__ bool IsDelivered(std::uint32_t position, const DeviceBlock& reduced) {
  unsigned low = 0, high = reduced.CountOnDevice();
  const unsigned count = high;
  while (low < high) {
    const unsigned middle = low + (high - low) / 2;
    if (PositionOf(reduced.indices[middle]) < position) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count &&
         static_cast<std::uint32_t>(reduced.indices[low]) == (position | kSurvivedBit);
}

__global__ void __launch_bounds__(kEntryThreads)
    SettleKernel(DeviceBlock selected, DeviceBlock reduced, Span<float> residual) {
  const std::int64_t n = OwnEntry();
  if (n >= selected.CountOnDevice()) return;
  const std::uint32_t position = PositionOf(selected.indices[n]);
  if (position >= residual.size) return;
  if (!reduced.header->IsRefused() && IsDelivered(position, reduced)) return;
  residual.data[position] = selected.values[n];
}

}  // namespace

void LaunchSettle(const DeviceBlock& selected, const DeviceBlock& reduced, Span<float> residual,
                  cudaStream_t stream) {
  const unsigned blocks = BlocksForEntries(selected.capacity);
  SettleKernel<<<blocks, kEntryThreads, 0, stream>>>(selected, reduced, residual);
  CheckLaunch("put back what was not delivered");
}

}  // namespace hvd_sparse::cuda
