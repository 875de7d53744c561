/// The end of a bucket's selection: each segment is trimmed to an acceptable count and learns its
/// next threshold, and all segments are gathered in one block.

#ifndef HVD_SPARSE_CUDA_STEP_BUCKET_CLOSE_H_
#define HVD_SPARSE_CUDA_STEP_BUCKET_CLOSE_H_

#include <cuda_runtime_api.h>

#include "csrc/cuda/step/bucket_pass.h"

namespace hvd_sparse::cuda {

/// The header fields that identify a rank's block.
struct Identity {
  std::int32_t rank;
  std::uint32_t bucket, step, asked;
};

/// Trims segments with too many candidates to their k largest, with the bits of Kernels::KeepTopK;
/// the others return to the residual. Learns the next thresholds, computes where each segment's
/// entries will lie in the block, and writes the block's header. One launch.
void LaunchCloseSegments(const SelectionArgs& work, const DeviceBlock& block,
                         const Identity& identity, cudaStream_t stream);

/// Writes the entries of all segments to the block. If there are more than k, counts the first
/// level of a radix select of the k largest in `digits`, which must be zero. One launch.
void LaunchGather(const SelectionArgs& work, const DeviceBlock& block, std::int64_t k,
                  Digits* digits, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_STEP_BUCKET_CLOSE_H_
