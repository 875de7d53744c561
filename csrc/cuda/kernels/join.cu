/// One thread per entry. Wherever sums are finite, the results have the bits of
/// csrc/kernels/cpu_join.cc.

#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/entries.cuh"
#include "csrc/cuda/base/entry_threads.cuh"
#include "csrc/cuda/kernels/join.h"

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

/// Returns what is added to entry i of the gradient, times along.scale.
__device__ float OwedAt(std::int64_t i, const Along& along) {
  const bool has_residual = along.residual.size > 0;
  const float unsent = has_residual ? __fmul_rn(along.decay, along.residual.data[i]) : 0.0f;
  if (along.velocity.size == 0) return unsent;
  const float moving = __fmul_rn(along.momentum, along.velocity.data[i]);
  return has_residual ? __fadd_rn(unsent, moving) : moving;
}

template <typename T>
__global__ void JoinKernel(Along along, T* gradient, std::int64_t numel, float* rest) {
  const std::int64_t i = OwnEntry();
  if (i >= numel) return;
  const float owed = OwedAt(i, along);
  if (along.velocity.size > 0) {
    unsigned ignored = 0;  // a step with non-finite entries is refused
    const WithGradient<T> into_velocity(gradient, along.momentum, along.scale);
    along.next.data[i] = into_velocity.Join(i, along.velocity.data[i], &ignored);
  }
  JoinEntry(owed, along.scale, gradient + i, rest + i);
}

__global__ void DecayKernel(Span<float> residual, float decay) {
  const std::int64_t i = OwnEntry();
  if (i < residual.size) residual.data[i] = __fmul_rn(decay, residual.data[i]);
}

}  // namespace

void LaunchJoin(const Along& along, GradView gradient, float* rest, cudaStream_t stream) {
  if (gradient.numel == 0) return;
  WithTypeOf(gradient.dtype, [&](auto number) {
    using T = decltype(number);
    JoinKernel<T><<<BlocksForEntries(gradient.numel), kEntryThreads, 0, stream>>>(
        along, static_cast<T*>(gradient.data), gradient.numel, rest);
    CheckLaunch("let a residual or a velocity join a gradient");
  });
}

void LaunchDecay(Span<float> residual, float decay, cudaStream_t stream) {
  if (residual.size == 0) return;
  DecayKernel<<<BlocksForEntries(residual.size), kEntryThreads, 0, stream>>>(residual, decay);
  CheckLaunch("let a residual decay");
}

}  // namespace hvd_sparse::cuda
