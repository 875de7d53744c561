/// The gradient is zeroed, then written by one thread per entry: no two entries of a block have the
/// same position.

#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/entry_threads.cuh"
#include "csrc/cuda/kernels/scatter.h"
#include "csrc/cuda/kernels/write_entry.cuh"

namespace hvd_sparse::cuda {
namespace {

template <typename T>
__global__ void ScatterKernel(ScatterArgs job) {
  const std::int64_t n = OwnEntry();
  if (n >= job.count) return;
  const std::int64_t i = std::int64_t{PositionOf(job.indices[n])} - job.offset;
  Written written;
  if (i >= 0 && i < job.grad.numel) {
    float* const residual = i < job.residual.size ? job.residual.data + i : nullptr;
    written = WriteEntry(job.values[n], job.scale, static_cast<T*>(job.grad.data) + i, residual,
                         job.loss_scale);
  }
  if constexpr (sizeof(T) < sizeof(float)) {
    job.narrowed[n] = written.outcome;
    job.former[n] = written.former;
  }
}

}  // namespace

void LaunchScatter(const ScatterArgs& job, cudaStream_t stream) {
  const auto bytes = static_cast<std::size_t>(job.grad.numel * SizeOf(job.grad.dtype));
  if (bytes > 0) Check(cudaMemsetAsync(job.grad.data, 0, bytes, stream), "clear a gradient");
  if (job.count == 0) return;
  WithTypeOf(job.grad.dtype, [&](auto number) {
    using T = decltype(number);
    const unsigned blocks = BlocksForEntries(job.count);
    ScatterKernel<T><<<blocks, kEntryThreads, 0, stream>>>(job);
    CheckLaunch("write entries to a gradient");
  });
}

}  // namespace hvd_sparse::cuda
