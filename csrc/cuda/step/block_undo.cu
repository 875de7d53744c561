/// One thread per entry.

#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/entry_threads.cuh"
#include "csrc/cuda/step/block_undo.h"

namespace hvd_sparse::cuda {
namespace {

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
