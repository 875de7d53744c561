#include "csrc/cuda/check.h"
#include "csrc/cuda/entries.cuh"
#include "csrc/cuda/places.h"

namespace hvd_sparse::cuda {
namespace {

constexpr int kThreads = 256;

unsigned BlocksFor(std::int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

/// The entry of this thread.
__device__ std::int64_t Own() { return std::int64_t{blockIdx.x} * kThreads + threadIdx.x; }

/// Position(), for the device.
__device__ std::int64_t PlaceOf(Index marked) {
  return static_cast<std::int64_t>(static_cast<std::uint32_t>(marked) & ~kSurvivedBit);
}

__global__ void GatherKernel(const float* residual, const Index* positions, std::int64_t count,
                             float* values) {
  const std::int64_t n = Own();
  if (n < count) values[n] = residual[PlaceOf(positions[n])];
}

__global__ void GatherAndClearKernel(float* residual, const Index* positions, std::int64_t count,
                                     float* values) {
  const std::int64_t n = Own();
  if (n >= count) return;
  float* const place = residual + PlaceOf(positions[n]);
  values[n] = *place;
  *place = 0;
}

__global__ void PutKernel(const Index* positions, const float* values, std::int64_t count,
                          float* residual) {
  const std::int64_t n = Own();
  if (n < count) residual[PlaceOf(positions[n])] = values[n];
}

template <typename Source>
__global__ void SampleKernel(Source source, const float* residual, const Index* begins,
                             std::int64_t length, std::int64_t count, float* values) {
  const std::int64_t n = Own();
  if (n >= count) return;
  const std::int64_t i = begins[n / length] + n % length;
  unsigned ignored = 0;
  values[n] = source.Join(i, residual[i], &ignored);
}

}  // namespace

void LaunchGather(const float* residual, const Index* positions, std::int64_t count, float* values,
                  cudaStream_t stream) {
  if (count == 0) return;
  GatherKernel<<<BlocksFor(count), kThreads, 0, stream>>>(residual, positions, count, values);
  CheckLaunch("read entries of a residual");
}

void LaunchGatherAndClear(float* residual, const Index* positions, std::int64_t count,
                          float* values, cudaStream_t stream) {
  if (count == 0) return;
  GatherAndClearKernel<<<BlocksFor(count), kThreads, 0, stream>>>(residual, positions, count,
                                                                  values);
  CheckLaunch("take entries of a residual");
}

void LaunchPut(const Index* positions, const float* values, std::int64_t count, float* residual,
               cudaStream_t stream) {
  if (count == 0) return;
  PutKernel<<<BlocksFor(count), kThreads, 0, stream>>>(positions, values, count, residual);
  CheckLaunch("put entries back to a residual");
}

void LaunchSample(const Feedback& feedback, const Index* begins, std::int64_t length,
                  std::int64_t count, float* values, cudaStream_t stream) {
  if (count == 0) return;
  const auto launch = [&](const auto& source) {
    SampleKernel<<<BlocksFor(count), kThreads, 0, stream>>>(source, feedback.residual.data, begins,
                                                            length, count, values);
    CheckLaunch("sample a residual");
  };
  if (feedback.grad.data == nullptr) return launch(AsItIs());
  WithGradientOf(feedback, launch);
}

}  // namespace hvd_sparse::cuda
