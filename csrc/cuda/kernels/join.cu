/// One thread per entry. Wherever sums are finite, the results have the bits of
/// csrc/kernels/cpu_join.cc.

#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/entries.cuh"
#include "csrc/cuda/base/entry_threads.cuh"
#include "csrc/cuda/kernels/join.h"

namespace hvd_sparse::cuda {
namespace {

__device__ void JoinEntry(float unsent, float gain, float scale, double* gradient,
                          float* /*after*/) {
  *gradient = __dadd_rn(__dmul_rn(static_cast<double>(gain), *gradient),
                        static_cast<double>(unsent) / static_cast<double>(scale));
}

__device__ void JoinEntry(float unsent, float gain, float scale, float* gradient,
                          float* /*after*/) {
  *gradient = __fadd_rn(__fmul_rn(gain, *gradient), unsent / scale);
}

template <typename T>
__device__ void JoinEntry(float unsent, float gain, float scale, T* gradient, float* after) {
  const float total = __fadd_rn(__fmul_rn(gain, Widen(*gradient)), unsent / scale);
  *after = unsent;
  if (!IsFinite(total)) return;
  *gradient = Narrow<T>(fminf(fmaxf(total, -Largest<T>()), Largest<T>()));
  *after = __fmul_rn(__fsub_rn(total, Widen(*gradient)), scale);
}

/// Returns what is added to entry i of the gradient, times parts.scale.
__device__ float UnsentAt(std::int64_t i, const UnsentParts& parts) {
  const bool has_residual = parts.residual.size > 0;
  const float of_residual = has_residual ? __fmul_rn(parts.decay, parts.residual.data[i]) : 0.0f;
  if (parts.velocity.size == 0) return of_residual;
  const float of_velocity = __fmul_rn(parts.momentum, parts.velocity.data[i]);
  return has_residual ? __fadd_rn(of_residual, of_velocity) : of_velocity;
}

template <typename T>
__global__ void JoinKernel(UnsentParts parts, T* gradient, std::int64_t numel, float* after) {
  const std::int64_t i = OwnEntry();
  if (i >= numel) return;
  const float unsent = UnsentAt(i, parts);
  if (parts.velocity.size > 0) {
    unsigned ignored = 0;  // a step with non-finite entries is refused
    const WithGradient<T> into_velocity(gradient, parts.momentum,
                                        __fmul_rn(parts.gain, parts.scale));
    parts.next.data[i] = into_velocity.Join(i, parts.velocity.data[i], &ignored);
  }
  JoinEntry(unsent, parts.gain, parts.scale, gradient + i, after + i);
}

__global__ void DecayKernel(Span<float> residual, float decay) {
  const std::int64_t i = OwnEntry();
  if (i < residual.size) residual.data[i] = __fmul_rn(decay, residual.data[i]);
}

}  // namespace

void LaunchJoin(const UnsentParts& parts, GradView gradient, float* after, cudaStream_t stream) {
  if (gradient.numel == 0) return;
  WithTypeOf(gradient.dtype, [&](auto number) {
    using T = decltype(number);
    JoinKernel<T><<<BlocksForEntries(gradient.numel), kEntryThreads, 0, stream>>>(
        parts, static_cast<T*>(gradient.data), gradient.numel, after);
    CheckLaunch("let a residual or a velocity join a gradient");
  });
}

void LaunchDecay(Span<float> residual, float decay, cudaStream_t stream) {
  if (residual.size == 0) return;
  DecayKernel<<<BlocksForEntries(residual.size), kEntryThreads, 0, stream>>>(residual, decay);
  CheckLaunch("let a residual decay");
}

}  // namespace hvd_sparse::cuda
