/// Writing a reduced block into a gradient on the CPU; contract in kernels.h.

#ifndef HVD_SPARSE_KERNELS_CPU_SCATTER_H_
#define HVD_SPARSE_KERNELS_CPU_SCATTER_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cpu {

std::int64_t Scatter(const SparseBlock& reduced, float scale, Index offset, GradView grad,
                     Span<float> residual, std::vector<std::pair<Index, float>>* undo,
                     float loss_scale);

/// Writes sums into a gradient: grad[i] = scale * sums[i]. Otherwise like Scatter; `offset` is the
/// position of residual[0], which is empty or as long.
std::int64_t WriteDense(Span<const float> sums, float scale, GradView grad, Span<float> residual,
                        Index offset, std::vector<std::pair<Index, float>>* undo, float loss_scale);

}  // namespace hvd_sparse::cpu

#endif  // HVD_SPARSE_KERNELS_CPU_SCATTER_H_
