/// One thread per entry.

#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/entry_threads.cuh"
#include "csrc/cuda/kernels/dense_write.h"
#include "csrc/cuda/kernels/write_entry.cuh"

namespace hvd_sparse::cuda {
namespace {

template <typename T>
__global__ void WriteSumsKernel(DenseOutput job, unsigned* not_finite) {
  const std::int64_t i = OwnEntry();
  unsigned bad = 0;
  if (i < job.sums.size) {
    const float sum = job.sums.data[i];
    float* const residual = i < job.residual.size ? job.residual.data + i : nullptr;
    const Written written = WriteEntry(sum, job.scale, static_cast<T*>(job.gradient.data) + i,
                                       residual, job.loss_scale);
    const bool is_finite = sizeof(T) < sizeof(float) ? written.outcome != Narrowed::kNotFinite
                                                     : IsFinite(__fmul_rn(job.scale, sum));
    bad = is_finite ? 0 : 1;
  }
  bad = WarpSum(bad);
  if (threadIdx.x % kWarp == 0 && bad > 0) atomicAdd(not_finite, bad);
}

}  // namespace

void LaunchWriteSums(const DenseOutput& output, unsigned* not_finite, cudaStream_t stream) {
  if (output.sums.size == 0) return;
  WithTypeOf(output.gradient.dtype, [&](auto number) {
    using T = decltype(number);
    const unsigned blocks = BlocksForEntries(output.sums.size);
    WriteSumsKernel<T><<<blocks, kEntryThreads, 0, stream>>>(output, not_finite);
    CheckLaunch("write sums to a gradient");
  });
}

}  // namespace hvd_sparse::cuda
