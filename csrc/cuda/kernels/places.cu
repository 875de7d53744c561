#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/entries.cuh"
#include "csrc/cuda/base/entry_threads.cuh"
#include "csrc/cuda/kernels/places.h"

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

}  // namespace hvd_sparse::cuda
