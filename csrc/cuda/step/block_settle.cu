/// One thread per selected entry, which makes a binary search in the reduced block.

#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/entry_threads.cuh"
#include "csrc/cuda/step/block_settle.h"

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

__global__ void __launch_bounds__(kEntryThreads) SettleKernel(SettleArgs job) {
  const std::int64_t n = OwnEntry();
  if (n >= job.selected.CountOnDevice()) return;
  const std::uint32_t position = PositionOf(job.selected.indices[n]);
  if (position >= job.residual.size) return;
  const bool leaves = !job.reduced.header->IsRefused() && IsDelivered(position, job.reduced);
  if (!leaves) job.residual.data[position] = job.selected.values[n];
  if (job.velocity.data == nullptr) return;
  float* const velocity = job.velocity.data + position;
  if (job.masked != nullptr) job.masked[n] = *velocity;
  if (leaves) *velocity = 0;
}

}  // namespace

void LaunchSettle(const SettleArgs& args, cudaStream_t stream) {
  const unsigned blocks = BlocksForEntries(args.selected.capacity);
  SettleKernel<<<blocks, kEntryThreads, 0, stream>>>(args);
  CheckLaunch("put back what was not delivered");
}

}  // namespace hvd_sparse::cuda
