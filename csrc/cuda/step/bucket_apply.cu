/// One kernel zeroes the outputs by tiles. Then one thread per entry looks up its gradient and
/// writes: no two entries of a block have the same position.

#include <algorithm>

#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/entries.cuh"
#include "csrc/cuda/kernels/write_entry.cuh"
#include "csrc/cuda/step/launches.h"

namespace hvd_sparse::cuda {
namespace {

/// Enough blocks to fill any device of today.
constexpr unsigned kMostBlocks = 4096;

/// The place in its gradient to which an entry of the block belongs.
struct Target {
  std::uint32_t position;  ///< in the bucket
  unsigned gradient;
  std::int64_t in_gradient;
  bool is_there;  ///< false if the position lies in no gradient
};

__device__ Target TargetOf(const ApplyArgs& job, std::int64_t n) {
  const std::uint32_t position = PositionOf(job.reduced.indices[n]);
  const Index* const begins = job.bucket.gradient_begins;
  unsigned low = 0, high = job.bucket.gradient_count;  // seeks the last begin <= position
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

__global__ void __launch_bounds__(kEntryThreads) CheckFitsKernel(ApplyArgs job) {
  const std::int64_t n = OwnEntry();
  if (n >= job.reduced.CountOnDevice()) return;
  const Target target = TargetOf(job, n);
  if (!target.is_there) return;
  const float scaled = __fmul_rn(job.scale, job.reduced.values[n]);
  WithTypeOnDevice(job.bucket.gradient_memory[target.gradient].output_type, [&](auto number) {
    if (IsFinite(Widen(Narrow<decltype(number)>(scaled)))) return;
    atomicOr(&job.reduced.header->flags, static_cast<std::uint32_t>(kSumNotFinite));
  });
}

__global__ void __launch_bounds__(kEntryThreads) ZeroKernel(ApplyArgs job) {
  if (job.reduced.header->IsRefused()) return;
  for (unsigned t = blockIdx.x; t < job.bucket.tile_count; t += gridDim.x) {
    const Tile tile = job.bucket.tiles[t];
    const GradientMemory memory = job.bucket.gradient_memory[tile.gradient];
    WithTypeOnDevice(memory.output_type, [&](auto number) {
      using T = decltype(number);
      T* const output = InDeviceMemory(static_cast<T*>(memory.output)) + tile.in_gradient;
      const bool is_aligned = IsAligned(output);
      for (int i = static_cast<int>(threadIdx.x) * 4; i < tile.size; i += kEntryThreads * 4) {
        StoreFour(Four<T>{}, tile.size - i, is_aligned, output + i);
      }
    });
  }
}

__global__ void __launch_bounds__(kEntryThreads) ApplyKernel(ApplyArgs job) {
  const std::int64_t n = OwnEntry();
  if (job.reduced.header->IsRefused() || n >= job.reduced.CountOnDevice()) return;
  const Target target = TargetOf(job, n);
  if (!target.is_there) return;
  const GradientMemory memory = job.bucket.gradient_memory[target.gradient];
  WithTypeOnDevice(memory.output_type, [&](auto number) {
    using T = decltype(number);
    T* const output = InDeviceMemory(static_cast<T*>(memory.output)) + target.in_gradient;
    WriteEntry(job.reduced.values[n], job.scale, output, job.residual.data + target.position,
               job.loss_scale);
  });
}

}  // namespace

void LaunchCheckFits(const ApplyArgs& job, cudaStream_t stream) {
  CheckFitsKernel<<<BlocksForEntries(job.reduced.capacity), kEntryThreads, 0, stream>>>(job);
  CheckLaunch("look for what a gradient cannot hold");
}

void LaunchApply(const ApplyArgs& job, cudaStream_t stream) {
  const unsigned blocks = std::min(job.bucket.tile_count, kMostBlocks);
  ZeroKernel<<<blocks, kEntryThreads, 0, stream>>>(job);
  CheckLaunch("clear gradients");
  ApplyKernel<<<BlocksForEntries(job.reduced.capacity), kEntryThreads, 0, stream>>>(job);
  CheckLaunch("write a block to gradients");
}

}  // namespace hvd_sparse::cuda
