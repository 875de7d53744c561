/// Passes over arrays on the device that count, and change nothing; contracts in kernels.h.

#ifndef HVD_SPARSE_CUDA_DENSE_H_
#define HVD_SPARSE_CUDA_DENSE_H_

#include "csrc/cuda/work.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cuda {

std::int64_t CountAbove(Span<const float> dense, float threshold, Work* work);

/// The same bits on every device: the order of adding depends on the size alone. It is not that of
/// the CPU, so the last bits differ from there.
Moments ComputeMoments(Span<const float> dense, Work* work);

/// A radix select, as on the CPU: three reads, and a histogram each.
TopKCut FindTopK(Span<const float> dense, std::int64_t k, Work* work);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_DENSE_H_
