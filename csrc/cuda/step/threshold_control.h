/// The thresholds that a step tries for all segments of a bucket, with the bits of
/// csrc/sparsifiers/prediction.h.

#ifndef HVD_SPARSE_CUDA_STEP_THRESHOLD_CONTROL_H_
#define HVD_SPARSE_CUDA_STEP_THRESHOLD_CONTROL_H_

#include <cuda_runtime_api.h>

#include "csrc/cuda/step/bucket_pass.h"

namespace hvd_sparse::cuda {

/// Writes work.tried, with infinity if no threshold is known. Counts the step in the states. One
/// launch.
void LaunchFirstThresholds(const SelectionArgs& work, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_STEP_THRESHOLD_CONTROL_H_
