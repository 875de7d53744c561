/// The threshold of the next step, learned on the device: csrc/sparsifiers/prediction.h, with its
/// bits.

#ifndef HVD_SPARSE_CUDA_THRESHOLD_CONTROL_H_
#define HVD_SPARSE_CUDA_THRESHOLD_CONTROL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/cuda/device_block.h"
#include "csrc/sparsifiers/sparsifier.h"

namespace hvd_sparse::cuda {

struct Prefix;

/// How many entries are wanted, and will do.
struct ThresholdControl {
  std::int64_t numel, k, fewest, most, room;
  double refresh;  ///< steps between exact refreshes
  bool takes_all;  ///< `most` are all entries: all non-zeros are taken, and nothing is learned
};

/// Writes the threshold that this step tries; infinity where none is known. Counts the step in
/// `state`, which lies on the device as all pointers here do.
void LaunchFirstThreshold(const ThresholdControl& control, SelectionState* state, float* tried,
                          cudaStream_t stream);

/// Learns from a step what the threshold of the next one should be, as ThresholdSparsifier does
/// where the first threshold will do. `taken` is what the threshold gave, or an exact top-k where
/// it missed; `kept` the k largest of that, which end at `cut`.
void LaunchLearn(const ThresholdControl& control, const float* tried, const DeviceBlock& taken,
                 const DeviceBlock& kept, const Prefix* cut, SelectionState* state,
                 cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_THRESHOLD_CONTROL_H_
