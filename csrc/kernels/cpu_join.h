/// A residual joins a gradient that travels dense: what has not been sent goes with it.

#ifndef HVD_SPARSE_KERNELS_CPU_JOIN_H_
#define HVD_SPARSE_KERNELS_CPU_JOIN_H_

#include <utility>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cpu {

/// gradient[i] += decay * residual[i] / scale; the residual stays as it is.
///
/// Appends to `rest`, as (offset + i, value), what the residual has to be once the gradient has
/// been applied, where that is not zero: what a narrow number type rounded away or cannot hold, and
/// all of it where the gradient is not finite, which is then left alone. The residual is as long as
/// the gradient.
void JoinResidual(Span<const float> residual, float decay, float scale, Index offset,
                  GradView gradient, std::vector<std::pair<Index, float>>* rest);

/// Places of a residual, and what it has to be there; zero elsewhere.
struct RestList final : Rest {
  std::vector<std::pair<Index, float>> entries;
};

/// residual = rest. Returns whether any of it is not zero.
bool PutRest(const RestList& rest, Span<float> residual);

}  // namespace hvd_sparse::cpu

#endif  // HVD_SPARSE_KERNELS_CPU_JOIN_H_
