/// Kernels that find the smallest of a sparsifier's candidates, and the largest of either sign.

#ifndef HVD_SPARSE_CUDA_KERNELS_SIGN_SUMS_H_
#define HVD_SPARSE_CUDA_KERNELS_SIGN_SUMS_H_

#include <cstdint>

#include "csrc/cuda/base/work.h"
#include "csrc/kernels/sign_groups.h"

namespace hvd_sparse::cuda {

/// Returns the smallest magnitude among at least one value on the device; none of them is NaN.
float SmallestMagnitude(const float* values, std::int64_t count, Work* work);

/// Returns the k largest of the positive values on the device, and of the negative ones; none of
/// the values is zero or NaN. k >= 1.
SignSums LargestOfSigns(const float* values, std::int64_t count, std::int64_t k, Work* work);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_KERNELS_SIGN_SUMS_H_
