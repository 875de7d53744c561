/// Writing a reduced block into the gradients of its bucket, all of them at once.

#ifndef HVD_SPARSE_CUDA_STEP_BUCKET_APPLY_H_
#define HVD_SPARSE_CUDA_STEP_BUCKET_APPLY_H_

#include <cuda_runtime_api.h>

#include "csrc/cuda/base/device_block.h"
#include "csrc/cuda/step/bucket_tables.h"

namespace hvd_sparse::cuda {

/// Arguments for writing a reduced block to the outputs of its bucket; see Kernels::Scatter.
struct ApplyArgs {
  BucketView bucket;
  DeviceBlock reduced;
  float scale;
  Span<float> residual;  ///< of the bucket; rounding losses are added to it
  float loss_scale;
};

/// Sets kSumNotFinite in the block's header if a value would not be finite once it is written.
/// Ranks that hold the same block come to the same result. One launch.
void LaunchCheckFits(const ApplyArgs& args, cudaStream_t stream);

/// Zeroes the outputs and writes the block to them; does nothing if the header says that the step
/// is refused. Two launches. The writes cannot be undone, so whatever might refuse the step must be
/// known before.
void LaunchApply(const ApplyArgs& args, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_STEP_BUCKET_APPLY_H_
