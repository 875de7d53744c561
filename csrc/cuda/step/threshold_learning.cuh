/// A warp learns the threshold of the next step, with the bits of csrc/sparsifiers/prediction.h.

#pragma once

#include "csrc/cuda/base/entries.cuh"
#include "csrc/cuda/step/launches.h"
#include "csrc/sparsifiers/prediction.h"

namespace hvd_sparse::cuda {

static_assert(kTailSums == kWarp);

/// Returns TailIndex(). Called by all lanes of a warp.
__device__ inline double TailIndexByWarp(const float* values, std::int64_t size, float threshold) {
  if (size == 0) return 0;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t stride = TailStride(size), count = (size + stride - 1) / stride;
  double own = 0;
  for (std::int64_t n = lane; n < count; n += kWarp) own += TailTerm(values[n * stride], threshold);
  double sum = 0;
  for (int other = 0; other < kWarp; ++other) sum += __shfl_sync(kAllLanes, own, other);
  return TailIndexOf(sum, count);
}

/// The result of a segment's selection.
struct SegmentResult {
  float tried;          ///< the threshold
  unsigned above;       ///< entries that exceeded it
  bool missed;          ///< true if that was no use, and an exact top-k was taken
  const float* values;  ///< the taken values, or the k largest of them if they were too many
  unsigned size;        ///< the number of these
  float smallest;       ///< of their magnitudes, if there are k
};

/// Learns like ThresholdSparsifier does if the first threshold will do. Called by all lanes of a
/// warp.
__device__ inline void LearnByWarp(const ThresholdControl& control, const SegmentResult& result,
                                   SelectionState* state) {
  const unsigned size = result.size;
  const bool are_all =
      control.takes_all != 0 || size < control.fewest || (result.missed && size < control.k);
  const bool is_exact = size == control.k;
  const float base = is_exact ? result.smallest : result.tried;
  const double tail_index = are_all ? 0 : TailIndexByWarp(result.values, size, base);
  if (threadIdx.x % kWarp != 0) return;
  if (are_all) {  // there are no more
    state->threshold = 0;
    return;
  }
  SelectionState own = *state;
  const float actual = is_exact ? base : ThresholdFor(control.k, base, result.above, tail_index);
  Predict(actual, tail_index, control.k, &own);
  *state = own;
}

}  // namespace hvd_sparse::cuda
