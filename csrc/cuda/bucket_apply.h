/// Writing a reduced block into the gradients of its bucket, all of them at once.

#ifndef HVD_SPARSE_CUDA_BUCKET_APPLY_H_
#define HVD_SPARSE_CUDA_BUCKET_APPLY_H_

#include <cuda_runtime_api.h>

#include "csrc/cuda/bucket_tables.h"
#include "csrc/cuda/device_block.h"

namespace hvd_sparse::cuda {

/// A reduced block on the device on its way into the outputs of a bucket; see Kernels::Scatter.
struct Applying {
  BucketView bucket;
  DeviceBlock reduced;
  float scale;
  Span<float> residual;  ///< of the bucket: takes what rounding loses
  float loss_scale;
};

/// Sets kSumNotFinite in the block's header where a value would not be finite once it is written.
/// Ranks that hold the same block find the same. One launch.
void LaunchCheckFits(const Applying& applying, cudaStream_t stream);

/// Zeroes the outputs and writes the block into them; nothing at all where the header says that the
/// step is refused. Two launches. Nothing can be undone, so what might refuse the step must be
/// known before.
void LaunchApply(const Applying& applying, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_BUCKET_APPLY_H_
