/// The cut of an exact top-k of an array on the device; contract in kernels.h.

#ifndef HVD_SPARSE_CUDA_KERNELS_TOP_K_H_
#define HVD_SPARSE_CUDA_KERNELS_TOP_K_H_

#include "csrc/cuda/base/work.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cuda {

/// Finds the cut by a radix select, as on the CPU: three passes, each with a histogram.
TopKCut FindTopK(Span<const float> dense, std::int64_t k, Work* work);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_KERNELS_TOP_K_H_
