/// Kernels with one thread per entry: reading and writing of single entries, scatter, join.

#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/entries.cuh"
#include "csrc/cuda/kernels/dense_work.h"
#include "csrc/cuda/kernels/launches.h"
#include "csrc/cuda/kernels/write_entry.cuh"

namespace hvd_sparse::cuda {
namespace {

__global__ void GatherKernel(const float* residual, const Index* positions, std::int64_t count,
                             float* values) {
  const std::int64_t n = OwnEntry();
  if (n < count) values[n] = residual[PositionOf(positions[n])];
}

__global__ void GatherAndClearKernel(float* residual, const Index* positions, std::int64_t count,
                                     float* values) {
  const std::int64_t n = OwnEntry();
  if (n >= count) return;
  float* const place = residual + PositionOf(positions[n]);
  values[n] = *place;
  *place = 0;
}

__global__ void PutKernel(const Index* positions, const float* values, std::int64_t count,
                          float* residual) {
  const std::int64_t n = OwnEntry();
  if (n < count) residual[PositionOf(positions[n])] = values[n];
}

template <typename Source>
__global__ void SampleKernel(Source source, const float* residual, const Index* begins,
                             std::int64_t length, std::int64_t count, float* values) {
  const std::int64_t n = OwnEntry();
  if (n >= count) return;
  const std::int64_t i = begins[n / length] + n % length;
  unsigned ignored = 0;
  values[n] = source.Join(i, residual[i], &ignored);
}

// ---- Scatter: the gradient is zeroed first; no two entries have the same position ---------------

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

// ---- Join: wherever sums are finite, with the bits of csrc/kernels/cpu_join.cc ------------------

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

// ---- Sums of all entries ------------------------------------------------------------------------

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

void LaunchGather(const float* residual, const Index* positions, std::int64_t count, float* values,
                  cudaStream_t stream) {
  if (count == 0) return;
  GatherKernel<<<BlocksForEntries(count), kEntryThreads, 0, stream>>>(residual, positions, count,
                                                                      values);
  CheckLaunch("read entries of a residual");
}

void LaunchGatherAndClear(float* residual, const Index* positions, std::int64_t count,
                          float* values, cudaStream_t stream) {
  if (count == 0) return;
  GatherAndClearKernel<<<BlocksForEntries(count), kEntryThreads, 0, stream>>>(residual, positions,
                                                                              count, values);
  CheckLaunch("take entries of a residual");
}

void LaunchPut(const Index* positions, const float* values, std::int64_t count, float* residual,
               cudaStream_t stream) {
  if (count == 0) return;
  PutKernel<<<BlocksForEntries(count), kEntryThreads, 0, stream>>>(positions, values, count,
                                                                   residual);
  CheckLaunch("put entries back to a residual");
}

void LaunchSample(const Feedback& feedback, const Index* begins, std::int64_t length,
                  std::int64_t count, float* values, cudaStream_t stream) {
  if (count == 0) return;
  const auto launch = [&](const auto& source) {
    SampleKernel<<<BlocksForEntries(count), kEntryThreads, 0, stream>>>(
        source, feedback.residual.data, begins, length, count, values);
    CheckLaunch("sample a residual");
  };
  if (feedback.grad.data == nullptr) return launch(AsItIs());
  WithGradientOf(feedback, launch);
}

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
