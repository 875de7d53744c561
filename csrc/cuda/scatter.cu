/// Zeroing, then a thread per entry: no two entries of a block have the same place.

#include "csrc/base/error.h"
#include "csrc/cuda/check.h"
#include "csrc/cuda/entries.cuh"
#include "csrc/cuda/scatter.h"

namespace hvd_sparse::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void ScatterKernel(Scattering job) {
  const std::int64_t n = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (n >= job.count) return;
  const auto position = static_cast<std::uint32_t>(job.indices[n]) & ~kSurvivedBit;
  const std::int64_t i = static_cast<std::int64_t>(position) - job.offset;
  const bool is_inside = 0 <= i && i < job.grad.numel;
  const float value = __fmul_rn(job.scale, job.values[n]);
  const T written = Narrow<T>(value);
  if (is_inside) static_cast<T*>(job.grad.data)[i] = written;
  if constexpr (sizeof(T) < sizeof(float)) {
    const float kept = Widen(written);
    Narrowed outcome = Narrowed::kExact;
    if (is_inside && !IsFinite(kept)) {
      outcome = Narrowed::kNotFinite;
    } else if (is_inside && kept != value && i < job.residual.size) {
      outcome = Narrowed::kRounded;
      const float before = job.residual.data[i];
      const float loss = __fmul_rn(job.loss_scale, __fsub_rn(value, kept));
      job.former[n] = before;
      job.residual.data[i] = __fadd_rn(before, loss);
    }
    job.narrowed[n] = outcome;
  }
}

template <typename T>
void LaunchAs(const Scattering& job, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((job.count + kThreads - 1) / kThreads);
  ScatterKernel<T><<<blocks, kThreads, 0, stream>>>(job);
  CheckLaunch("write entries to a gradient");
}

}  // namespace

void LaunchScatter(const Scattering& job, cudaStream_t stream) {
  const auto bytes = static_cast<std::size_t>(job.grad.numel * SizeOf(job.grad.dtype));
  if (bytes > 0) Check(cudaMemsetAsync(job.grad.data, 0, bytes, stream), "clear a gradient");
  if (job.count == 0) return;
  switch (job.grad.dtype) {
    case DType::kFloat32:
      return LaunchAs<float>(job, stream);
    case DType::kFloat64:
      return LaunchAs<double>(job, stream);
    case DType::kFloat16:
      return LaunchAs<Float16>(job, stream);
    case DType::kBFloat16:
      return LaunchAs<BFloat16>(job, stream);
  }
  Throw(ErrorKind::kInvalidArgument, "unknown number type ", static_cast<int>(job.grad.dtype));
}

}  // namespace hvd_sparse::cuda
