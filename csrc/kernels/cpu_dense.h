/// Passes over dense arrays on the CPU; contracts in kernels.h and candidates.h, and below
/// where they differ.

#ifndef HVD_SPARSE_KERNELS_CPU_DENSE_H_
#define HVD_SPARSE_KERNELS_CPU_DENSE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/kernels/cpu_feedback.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cpu {

Moments ComputeMoments(Span<const float> dense);

std::int64_t CountAbove(Span<const float> dense, float threshold);

TopKCut FindTopK(Span<const float> dense, std::int64_t k);

/// Returns the number of entries taken.
std::int64_t TakeCut(Span<float> residual, TopKCut cut, Index offset, Room room);

}  // namespace hvd_sparse::cpu

#endif  // HVD_SPARSE_KERNELS_CPU_DENSE_H_
