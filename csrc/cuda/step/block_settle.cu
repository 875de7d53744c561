/// Settling and undoing, with one thread per entry. Settling makes a binary search in the reduced
/// block for each selected one.

#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/entries.cuh"
#include "csrc/cuda/step/launches.h"

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

__global__ void __launch_bounds__(kEntryThreads)
    NoteFormerKernel(DeviceBlock block, Span<const float> residual, DeviceBlock former) {
  const std::int64_t n = OwnEntry();
  if (n == 0) *former.header = *block.header;
  if (n >= block.capacity) return;
  // Copies the whole capacity: the count is read only later, from the saved header.
  const Index marked = block.indices[n];
  former.indices[n] = marked;
  const std::uint32_t i = PositionOf(marked);
  if (i < residual.size) former.values[n] = residual.data[i];
}

__global__ void __launch_bounds__(kEntryThreads)
    PutBackKernel(DeviceBlock block, Span<float> residual) {
  const std::int64_t n = OwnEntry();
  if (n >= block.CountOnDevice()) return;
  const std::uint32_t i = PositionOf(block.indices[n]);
  if (i < residual.size) residual.data[i] = block.values[n];
}

}  // namespace

void LaunchSettle(const SettleArgs& args, cudaStream_t stream) {
  const unsigned blocks = BlocksForEntries(args.selected.capacity);
  SettleKernel<<<blocks, kEntryThreads, 0, stream>>>(args);
  CheckLaunch("put back what was not delivered");
}

void LaunchNoteFormer(const DeviceBlock& block, Span<const float> residual,
                      const DeviceBlock& former, cudaStream_t stream) {
  NoteFormerKernel<<<BlocksForEntries(block.capacity), kEntryThreads, 0, stream>>>(block, residual,
                                                                                   former);
  CheckLaunch("note what a residual holds");
}

void LaunchPutBack(const DeviceBlock& block, Span<float> residual, cudaStream_t stream) {
  PutBackKernel<<<BlocksForEntries(block.capacity), kEntryThreads, 0, stream>>>(block, residual);
  CheckLaunch("put back what was taken");
}

}  // namespace hvd_sparse::cuda
