/// Adding the unsent residual to a gradient that is sent dense, on the CPU.

#ifndef HVD_SPARSE_KERNELS_CPU_JOIN_H_
#define HVD_SPARSE_KERNELS_CPU_JOIN_H_

#include <utility>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cpu {

/// The non-zero entries of the residual after the step; all others become zero.
struct ResidualEntries final : ResidualAfterJoin {
  std::vector<std::pair<Index, float>> entries;
};

/// Implements Kernels::Join. `after` consists of the parts that a narrow number type rounds away
/// or cannot hold. Where the sum is not finite, the gradient is left unchanged and the whole unsent
/// part goes to `after`.
void Join(const UnsentParts& parts, GradView gradient, ResidualEntries* after);

/// Sets residual = after. Returns true if any entry is not zero.
bool SetResidual(const ResidualEntries& after, Span<float> residual);

}  // namespace hvd_sparse::cpu

#endif  // HVD_SPARSE_KERNELS_CPU_JOIN_H_
