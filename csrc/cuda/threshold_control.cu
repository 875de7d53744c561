/// One warp each: next to nothing to compute, but on the device.

#include "csrc/cuda/check.h"
#include "csrc/cuda/digits.cuh"
#include "csrc/cuda/threshold_control.h"
#include "csrc/sparsifiers/prediction.h"

namespace hvd_sparse::cuda {
namespace {

static_assert(kTailSums == kWarp);

__global__ void FirstThresholdKernel(ThresholdControl control, SelectionState* state,
                                     float* tried) {
  if (threadIdx.x != 0) return;
  if (control.takes_all) {
    *tried = 0;
    return;
  }
  SelectionState own = *state;
  const float predicted = PredictedWithRefresh(control.k, control.refresh, &own);
  *tried = predicted > 0 ? predicted : BitsFloat(0x7f800000u);
  *state = own;
}

/// TailIndex(); by all lanes of a warp.
__device__ double TailIndexByWarp(const float* values, std::int64_t size, float threshold) {
  __shared__ double sums[kWarp];
  if (size == 0) return 0;
  const std::int64_t stride = TailStride(size), count = (size + stride - 1) / stride;
  double own = 0;
  for (std::int64_t n = threadIdx.x; n < count; n += kWarp) {
    own += TailTerm(values[n * stride], threshold);
  }
  sums[threadIdx.x] = own;
  __syncthreads();
  double sum = 0;
  for (const double part : sums) sum += part;
  return TailIndexOf(sum, count);
}

__global__ void LearnKernel(ThresholdControl control, const float* tried, DeviceBlock taken,
                            DeviceBlock kept, const Prefix* cut, SelectionState* state) {
  const std::int64_t above = taken.header->above, count = taken.CountOnDevice();
  const bool missed = above < control.fewest || above > control.room;
  float base = *tried;
  const float* values = taken.values;
  std::int64_t size = count;
  if (count > control.most) {
    values = kept.values;
    size = control.k;
  }
  if (size == control.k) base = BitsFloat(cut->bits);  // the smallest of them
  const bool are_all = control.takes_all || size < control.fewest || (missed && size < control.k);
  const double tail_index = TailIndexByWarp(values, size, base);
  if (threadIdx.x != 0) return;
  if (are_all) {  // there are no more
    state->threshold = 0;
    return;
  }
  SelectionState own = *state;
  const bool is_exact = size == control.k;
  Predict(is_exact ? base : ThresholdFor(control.k, base, above, tail_index), tail_index, control.k,
          &own);
  *state = own;
}

}  // namespace

void LaunchFirstThreshold(const ThresholdControl& control, SelectionState* state, float* tried,
                          cudaStream_t stream) {
  FirstThresholdKernel<<<1, kWarp, 0, stream>>>(control, state, tried);
  CheckLaunch("predict a threshold");
}

void LaunchLearn(const ThresholdControl& control, const float* tried, const DeviceBlock& taken,
                 const DeviceBlock& kept, const Prefix* cut, SelectionState* state,
                 cudaStream_t stream) {
  LearnKernel<<<1, kWarp, 0, stream>>>(control, tried, taken, kept, cut, state);
  CheckLaunch("learn a threshold");
}

}  // namespace hvd_sparse::cuda
