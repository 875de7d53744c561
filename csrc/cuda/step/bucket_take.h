/// Error feedback and taking for all segments of a bucket at once.

#ifndef HVD_SPARSE_CUDA_STEP_BUCKET_TAKE_H_
#define HVD_SPARSE_CUDA_STEP_BUCKET_TAKE_H_

#include <cuda_runtime_api.h>

#include "csrc/cuda/step/bucket_pass.h"

namespace hvd_sparse::cuda {

/// Adds the gradients to the residual, and takes the entries that exceed their segment's threshold,
/// work.tried, as candidates while there is room. Two launches, with the bits of Candidates::Take
/// for each slice, but for segments without enough room: which of the entries they take is not
/// determined. If there is a velocity, the first launch adds the gradients to that, and that to the
/// residual, with the bits of Kernels::Accumulate beforehand.
void LaunchFeedbackAndTake(const SelectionArgs& work, cudaStream_t stream);

/// For segments whose threshold has missed, puts the candidates back and takes the k largest
/// magnitudes, ties to the lower index, zeros never, with the bits of Kernels::FindTopK and
/// Candidates::TakeCut. Does nothing for other segments. Five launches, which end at once if no
/// threshold has missed: only the device knows.
void LaunchTopKWhereMissed(const SelectionArgs& work, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_STEP_BUCKET_TAKE_H_
