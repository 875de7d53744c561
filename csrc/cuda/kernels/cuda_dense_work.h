/// The work of dense sums on a CUDA device. Residuals and gradients lie there; codes and sums are
/// copied through pinned memory, and are added up by the CPU.

#ifndef HVD_SPARSE_CUDA_KERNELS_CUDA_DENSE_WORK_H_
#define HVD_SPARSE_CUDA_KERNELS_CUDA_DENSE_WORK_H_

#include <memory>

#include "csrc/wire/dense_work.h"

namespace hvd_sparse {

/// Returns a bucket's work on a device. Throws Unavailable if there is no such device.
std::unique_ptr<DenseWork> NewCudaDenseWork(int device);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_CUDA_KERNELS_CUDA_DENSE_WORK_H_
