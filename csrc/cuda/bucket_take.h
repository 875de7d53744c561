/// Error feedback and taking for all segments of a bucket at once.

#ifndef HVD_SPARSE_CUDA_BUCKET_TAKE_H_
#define HVD_SPARSE_CUDA_BUCKET_TAKE_H_

#include <cuda_runtime_api.h>

#include "csrc/cuda/bucket_pass.h"

namespace hvd_sparse::cuda {

/// The gradients join the residual, and what exceeds its segment's threshold, work.tried, becomes a
/// candidate while there is room. One launch: Kernels::AccumulateAndTake of each piece, bit for
/// bit. Where there is a velocity, gradients join that, and it joins the residual, in the same one:
/// Kernels::Accumulate beforehand.
void LaunchFeedbackAndTake(const Selecting& work, cudaStream_t stream);

/// For segments whose threshold has missed: puts their candidates back, and takes the k largest
/// magnitudes, ties to the lower index, zeros never: Kernels::FindTopK and TakeCut, bit for bit.
/// Nothing for the others. Five launches, which end at once where no threshold has missed: only the
/// device knows.
void LaunchTopKWhereMissed(const Selecting& work, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_BUCKET_TAKE_H_
