/// The loops of error feedback, one for each number type of gradients.

#ifndef HVD_SPARSE_KERNELS_CPU_ACCUMULATE_H_
#define HVD_SPARSE_KERNELS_CPU_ACCUMULATE_H_

#include <cstdint>

#include "csrc/base/types.h"

namespace hvd_sparse::cpu {

/// Computes residual = decay * residual + scale * grad for `size` entries, as specified by
/// Feedback; returns the number of results that were not finite.
using AccumulateFunction = std::int64_t (*)(const void* grad, std::int64_t size, float decay,
                                            float scale, float* residual);

AccumulateFunction AccumulateFor(DType dtype);

}  // namespace hvd_sparse::cpu

#endif  // HVD_SPARSE_KERNELS_CPU_ACCUMULATE_H_
