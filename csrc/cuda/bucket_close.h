/// What follows taking in a bucket: each segment keeps no more than will do, learns its next
/// threshold, and all of them become one block.

#ifndef HVD_SPARSE_CUDA_BUCKET_CLOSE_H_
#define HVD_SPARSE_CUDA_BUCKET_CLOSE_H_

#include <cuda_runtime_api.h>

#include "csrc/cuda/bucket_pass.h"

namespace hvd_sparse::cuda {

/// What a rank says of its block.
struct Identity {
  std::int32_t rank;
  std::uint32_t bucket, step, asked;
};

/// Of segments with more candidates than will do, the k largest stay: Kernels::KeepTopK, bit for
/// bit; the others return to the residual. Learns the next thresholds. Says where each segment's
/// entries will lie, and writes the block's header. One launch.
void LaunchCloseSegments(const Selecting& work, const DeviceBlock& block, const Identity& identity,
                         cudaStream_t stream);

/// Writes the entries of all segments into the block. Counts the first level of a radix select of
/// its k largest in `digits`, which are zeros, where it has more. One launch.
void LaunchGather(const Selecting& work, const DeviceBlock& block, std::int64_t k, Digits* digits,
                  cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_BUCKET_CLOSE_H_
