/// Zeroing by tiles, then a thread per entry, which looks up its gradient: no two entries of a
/// block have the same place.

#include <algorithm>

#include "csrc/cuda/bucket_apply.h"
#include "csrc/cuda/check.h"
#include "csrc/cuda/entry_threads.cuh"
#include "csrc/cuda/write_entry.cuh"

namespace hvd_sparse::cuda {
namespace {

/// Blocks that fill any device of today.
constexpr unsigned kMostBlocks = 4096;

/// An entry of the block, and where it belongs.
struct Target {
  std::uint32_t position;  ///< in the bucket
  unsigned gradient;
  std::int64_t in_gradient;
  bool is_there;  ///< else it lies in no gradient
};

__device__ Target TargetOf(const Applying& job, std::int64_t n) {
  const std::uint32_t position = PositionOf(job.reduced.indices[n]);
  const Index* const begins = job.bucket.gradient_begins;
  unsigned low = 0, high = job.bucket.gradient_count;  // the last one that begins up to there
  while (high - low > 1) {
    const unsigned middle = low + (high - low) / 2;
    if (static_cast<std::uint32_t>(begins[middle]) <= position) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const auto begin = static_cast<std::uint32_t>(begins[low]);
  const bool is_there = position >= begin && position < job.residual.size;
  return {position, low, static_cast<std::int64_t>(position) - begin, is_there};
}

__global__ void __launch_bounds__(kEntryThreads) CheckFitsKernel(Applying job) {
  const std::int64_t n = OwnEntry();
  if (n >= job.reduced.CountOnDevice()) return;
  const Target target = TargetOf(job, n);
  if (!target.is_there) return;
  const float scaled = __fmul_rn(job.scale, job.reduced.values[n]);
  WithTypeOnDevice(job.bucket.flows[target.gradient].output_type, [&](auto number) {
    if (IsFinite(Widen(Narrow<decltype(number)>(scaled)))) return;
    atomicOr(&job.reduced.header->flags, static_cast<std::uint32_t>(kSumNotFinite));
  });
}

__global__ void __launch_bounds__(kEntryThreads) ZeroKernel(Applying job) {
  if (job.reduced.header->IsRefused()) return;
  for (unsigned t = blockIdx.x; t < job.bucket.tile_count; t += gridDim.x) {
    const Tile tile = job.bucket.tiles[t];
    const Flow flow = job.bucket.flows[tile.gradient];
    WithTypeOnDevice(flow.output_type, [&](auto number) {
      using T = decltype(number);
      T* const output = InDeviceMemory(static_cast<T*>(flow.output)) + tile.in_gradient;
      const bool is_aligned = IsAligned(output);
      for (int i = static_cast<int>(threadIdx.x) * 4; i < tile.size; i += kEntryThreads * 4) {
        StoreFour(Four<T>{}, tile.size - i, is_aligned, output + i);
      }
    });
  }
}

__global__ void __launch_bounds__(kEntryThreads) ApplyKernel(Applying job) {
  const std::int64_t n = OwnEntry();
  if (job.reduced.header->IsRefused() || n >= job.reduced.CountOnDevice()) return;
  const Target target = TargetOf(job, n);
  if (!target.is_there) return;
  const Flow flow = job.bucket.flows[target.gradient];
  WithTypeOnDevice(flow.output_type, [&](auto number) {
    using T = decltype(number);
    T* const output = InDeviceMemory(static_cast<T*>(flow.output)) + target.in_gradient;
    WriteEntry(job.reduced.values[n], job.scale, output, job.residual.data + target.position,
               job.loss_scale);
  });
}

}  // namespace

void LaunchCheckFits(const Applying& job, cudaStream_t stream) {
  CheckFitsKernel<<<BlocksForEntries(job.reduced.capacity), kEntryThreads, 0, stream>>>(job);
  CheckLaunch("look for what a gradient cannot hold");
}

void LaunchApply(const Applying& job, cudaStream_t stream) {
  const unsigned blocks = std::min(job.bucket.tile_count, kMostBlocks);
  ZeroKernel<<<blocks, kEntryThreads, 0, stream>>>(job);
  CheckLaunch("clear gradients");
  ApplyKernel<<<BlocksForEntries(job.reduced.capacity), kEntryThreads, 0, stream>>>(job);
  CheckLaunch("write a block to gradients");
}

}  // namespace hvd_sparse::cuda
