/// A thread per entry; the bits of csrc/kernels/cpu_join.cc, wherever sums are finite.

#include "csrc/cuda/check.h"
#include "csrc/cuda/entries.cuh"
#include "csrc/cuda/entry_threads.cuh"
#include "csrc/cuda/join.h"

namespace hvd_sparse::cuda {
namespace {

__device__ void JoinEntry(float owed, float scale, double* gradient, float* /*rest*/) {
  *gradient = __dadd_rn(*gradient, static_cast<double>(owed) / static_cast<double>(scale));
}

__device__ void JoinEntry(float owed, float scale, float* gradient, float* /*rest*/) {
  *gradient = __fadd_rn(*gradient, owed / scale);
}

template <typename T>
__device__ void JoinEntry(float owed, float scale, T* gradient, float* rest) {
  const float total = __fadd_rn(Widen(*gradient), owed / scale);
  *rest = owed;
  if (!IsFinite(total)) return;
  *gradient = Narrow<T>(fminf(fmaxf(total, -Largest<T>()), Largest<T>()));
  *rest = __fmul_rn(__fsub_rn(total, Widen(*gradient)), scale);
}

template <typename T>
__global__ void JoinKernel(Span<const float> residual, float decay, float scale, T* gradient,
                           float* rest) {
  const std::int64_t i = OwnEntry();
  if (i >= residual.size) return;
  JoinEntry(__fmul_rn(decay, residual.data[i]), scale, gradient + i, rest + i);
}

__global__ void DecayKernel(Span<float> residual, float decay) {
  const std::int64_t i = OwnEntry();
  if (i < residual.size) residual.data[i] = __fmul_rn(decay, residual.data[i]);
}

}  // namespace

void LaunchJoin(Span<const float> residual, float decay, float scale, GradView gradient,
                float* rest, cudaStream_t stream) {
  if (residual.size == 0) return;
  WithTypeOf(gradient.dtype, [&](auto number) {
    using T = decltype(number);
    JoinKernel<T><<<BlocksForEntries(residual.size), kEntryThreads, 0, stream>>>(
        residual, decay, scale, static_cast<T*>(gradient.data), rest);
    CheckLaunch("let a residual join a gradient");
  });
}

void LaunchDecay(Span<float> residual, float decay, cudaStream_t stream) {
  if (residual.size == 0) return;
  DecayKernel<<<BlocksForEntries(residual.size), kEntryThreads, 0, stream>>>(residual, decay);
  CheckLaunch("let a residual decay");
}

}  // namespace hvd_sparse::cuda
