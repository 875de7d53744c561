/// Zeroing, then a thread per entry: no two entries of a block have the same place.

#include <algorithm>

#include "csrc/base/error.h"
#include "csrc/cuda/check.h"
#include "csrc/cuda/entries.cuh"
#include "csrc/cuda/scatter.h"

namespace hvd_sparse::cuda {
namespace {

constexpr int kThreads = 256;

/// What becomes of a value, and what the residual held where it takes a loss.
struct Written {
  Narrowed outcome = Narrowed::kExact;
  float former = 0;
};

/// Writes scale * value to its place in a gradient, if it has one there.
template <typename T>
__device__ Written Write(Index marked, float value, float scale, Index offset, const GradView& grad,
                         const Span<float>& residual, float loss_scale) {
  const auto position = static_cast<std::uint32_t>(marked) & ~kSurvivedBit;
  const std::int64_t i = static_cast<std::int64_t>(position) - offset;
  Written result;
  if (i < 0 || i >= grad.numel) return result;
  const float scaled = __fmul_rn(scale, value);
  const T written = Narrow<T>(scaled);
  static_cast<T*>(grad.data)[i] = written;
  if constexpr (sizeof(T) < sizeof(float)) {
    const float kept = Widen(written);
    if (!IsFinite(kept)) {
      result.outcome = Narrowed::kNotFinite;
    } else if (kept != scaled && i < residual.size) {
      result.outcome = Narrowed::kRounded;
      result.former = residual.data[i];
      const float loss = __fmul_rn(loss_scale, __fsub_rn(scaled, kept));
      residual.data[i] = __fadd_rn(result.former, loss);
    }
  }
  return result;
}

template <typename T>
__global__ void ScatterKernel(Scattering job) {
  const std::int64_t n = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (n >= job.count) return;
  const Written written = Write<T>(job.indices[n], job.values[n], job.scale, job.offset, job.grad,
                                   job.residual, job.loss_scale);
  if constexpr (sizeof(T) < sizeof(float)) {
    job.narrowed[n] = written.outcome;
    if (written.outcome == Narrowed::kRounded) job.former[n] = written.former;
  }
}

unsigned BlocksFor(std::int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

// ---- Blocks that lie on the device
// ----------------------------------------------------------------

template <typename T>
__global__ void CheckFitsKernel(Applying job) {
  const std::int64_t n = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (n >= job.reduced.CountOnDevice()) return;
  const auto position = static_cast<std::uint32_t>(job.reduced.indices[n]) & ~kSurvivedBit;
  const std::int64_t i = static_cast<std::int64_t>(position) - job.offset;
  if (i < 0 || i >= job.grad.numel) return;
  const float written = Widen(Narrow<T>(__fmul_rn(job.scale, job.reduced.values[n])));
  if (!IsFinite(written)) {
    atomicOr(&job.reduced.header->flags, static_cast<std::uint32_t>(kSumNotFinite));
  }
}

template <typename T>
__global__ void ZeroKernel(Applying job, bool is_aligned) {
  if (job.reduced.header->IsRefused()) return;
  T* const grad = static_cast<T*>(job.grad.data);
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads * 4;
  std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  for (; i < job.grad.numel; i += step) {
    StoreFour(Four<T>{}, job.grad.numel - i, is_aligned, grad + i);
  }
}

template <typename T>
__global__ void ApplyKernel(Applying job) {
  const std::int64_t n = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (job.reduced.header->IsRefused() || n >= job.reduced.CountOnDevice()) return;
  Write<T>(job.reduced.indices[n], job.reduced.values[n], job.scale, job.offset, job.grad,
           job.residual, job.loss_scale);
}

/// Blocks that fill any device of today.
constexpr std::int64_t kMostBlocks = 4096;

/// Calls `call` with a number of the gradient's type.
template <typename Call>
void WithTypeOf(DType dtype, Call call) {
  switch (dtype) {
    case DType::kFloat32:
      return call(float());
    case DType::kFloat64:
      return call(double());
    case DType::kFloat16:
      return call(Float16());
    case DType::kBFloat16:
      return call(BFloat16());
  }
  Throw(ErrorKind::kInvalidArgument, "unknown number type ", static_cast<int>(dtype));
}

}  // namespace

void LaunchScatter(const Scattering& job, cudaStream_t stream) {
  const auto bytes = static_cast<std::size_t>(job.grad.numel * SizeOf(job.grad.dtype));
  if (bytes > 0) Check(cudaMemsetAsync(job.grad.data, 0, bytes, stream), "clear a gradient");
  if (job.count == 0) return;
  WithTypeOf(job.grad.dtype, [&](auto number) {
    using T = decltype(number);
    ScatterKernel<T><<<BlocksFor(job.count), kThreads, 0, stream>>>(job);
    CheckLaunch("write entries to a gradient");
  });
}

void LaunchCheckFits(const Applying& job, cudaStream_t stream) {
  WithTypeOf(job.grad.dtype, [&](auto number) {
    using T = decltype(number);
    CheckFitsKernel<T><<<BlocksFor(job.reduced.capacity), kThreads, 0, stream>>>(job);
    CheckLaunch("look for what a gradient cannot hold");
  });
}

void LaunchApply(const Applying& job, cudaStream_t stream) {
  if (job.grad.numel == 0) return;
  WithTypeOf(job.grad.dtype, [&](auto number) {
    using T = decltype(number);
    const bool is_aligned = IsAligned(static_cast<const T*>(job.grad.data));
    const std::int64_t blocks =
        std::min<std::int64_t>(BlocksFor((job.grad.numel + 3) / 4), kMostBlocks);
    ZeroKernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(job, is_aligned);
    CheckLaunch("clear a gradient");
    ApplyKernel<T><<<BlocksFor(job.reduced.capacity), kThreads, 0, stream>>>(job);
    CheckLaunch("write a block to a gradient");
  });
}

}  // namespace hvd_sparse::cuda
