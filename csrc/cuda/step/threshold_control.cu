/// One thread per segment: there is next to nothing to compute, but it must be done on the device.

#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/entries.cuh"
#include "csrc/cuda/step/launches.h"
#include "csrc/sparsifiers/prediction.h"

namespace hvd_sparse::cuda {
namespace {

constexpr int kThreads = 64;  // few, so that segments spread over multiprocessors

__global__ void __launch_bounds__(kThreads) FirstThresholdsKernel(SelectionArgs work) {
  const unsigned s = blockIdx.x * kThreads + threadIdx.x;
  if (s >= work.bucket.segment_count) return;
  const ThresholdControl control = work.bucket.controls[s];
  if (control.takes_all != 0) {
    work.tried[s] = 0;
    return;
  }
  SelectionState* const state = work.states + work.bucket.segments[s].number;
  SelectionState own = *state;
  const float predicted = PredictedWithRefresh(control.k, work.refresh, &own);
  work.tried[s] = predicted > 0 ? predicted : BitsFloat(0x7f800000u);
  *state = own;
}

}  // namespace

void LaunchFirstThresholds(const SelectionArgs& work, cudaStream_t stream) {
  const unsigned blocks = (work.bucket.segment_count + kThreads - 1) / kThreads;
  FirstThresholdsKernel<<<blocks, kThreads, 0, stream>>>(work);
  CheckLaunch("predict thresholds");
}

}  // namespace hvd_sparse::cuda
