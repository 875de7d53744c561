#include "csrc/exchange/origin.h"

#include <limits>
#include <memory>
#include <utility>

#include "csrc/base/sparse_block.h"
#include "csrc/devices/kernels_for.h"

namespace hvd_sparse {

/// Scatters a sum whose only entry is NaN.
void PutNaN(const std::vector<GradView>& gradients, const Origin& origin) {
  SparseBlock sum;
  sum.Reset(1);
  sum.indices()[0] = 0;
  sum.values()[0] = std::numeric_limits<float>::quiet_NaN();
  sum.Finish(1);
  const Kernels& kernels = KernelsFor(origin.device);
  const std::shared_ptr<const Mark> ready = kernels.EndOf(origin.stream);
  kernels.Follow(ready.get());
  std::vector<std::pair<Index, float>> undo;  // stays empty: there is no residual
  for (const GradView& gradient : gradients) {
    if (gradient.numel > 0) kernels.Scatter(sum, 1, 0, gradient, {}, &undo);
  }
  const std::shared_ptr<const Mark> written = kernels.EndOfOwn();
  kernels.MakeStreamFollow(origin.stream, written.get());
}

}  // namespace hvd_sparse
