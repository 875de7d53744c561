/// What has not been sent joins a gradient that travels dense.

#ifndef HVD_SPARSE_KERNELS_CPU_JOIN_H_
#define HVD_SPARSE_KERNELS_CPU_JOIN_H_

#include <utility>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cpu {

/// Places of a residual, and what it has to be there; zero elsewhere.
struct RestList final : Rest {
  std::vector<std::pair<Index, float>> entries;
};

/// As Kernels::Join has it. The rest is what a narrow number type rounded away or cannot hold, and
/// all that was owed where the gradient is not finite, which is then left alone.
void Join(const Along& along, GradView gradient, RestList* rest);

/// residual = rest. Returns whether any of it is not zero.
bool PutRest(const RestList& rest, Span<float> residual);

}  // namespace hvd_sparse::cpu

#endif  // HVD_SPARSE_KERNELS_CPU_JOIN_H_
