/// Writing sums into a gradient on the device; contract in csrc/wire/dense_work.h.

#ifndef HVD_SPARSE_CUDA_KERNELS_DENSE_WRITE_H_
#define HVD_SPARSE_CUDA_KERNELS_DENSE_WRITE_H_

#include <cuda_runtime_api.h>

#include "csrc/wire/dense_work.h"

namespace hvd_sparse::cuda {

/// Enqueues DenseWork::Write, of sums on the device; adds the number of results that are not finite
/// to `not_finite`.
void LaunchWriteSums(const DenseOutput& output, unsigned* not_finite, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_KERNELS_DENSE_WRITE_H_
