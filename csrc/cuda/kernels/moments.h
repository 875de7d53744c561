/// Counts and moments of arrays on the device; contracts in kernels.h.

#ifndef HVD_SPARSE_CUDA_KERNELS_MOMENTS_H_
#define HVD_SPARSE_CUDA_KERNELS_MOMENTS_H_

#include "csrc/cuda/base/work.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cuda {

std::int64_t CountAbove(Span<const float> dense, float threshold, Work* work);

/// Gives the same bits on every device: the order of adding depends on the size alone. It differs
/// from the CPU's order, and so the last bits differ from the CPU's.
Moments ComputeMoments(Span<const float> dense, Work* work);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_KERNELS_MOMENTS_H_
