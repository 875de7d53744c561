#include "csrc/exchange/too_large.h"

#include <algorithm>
#include <memory>

#include "csrc/base/sparse_block.h"
#include "csrc/kernels/half.h"

namespace hvd_sparse {

float LargestSummand(DType dtype, float scale, int ranks) {
  float largest = Largest<float>();
  if (dtype == DType::kFloat16) largest = std::min(largest, Largest<Float16>() / scale);
  if (dtype == DType::kBFloat16) largest = std::min(largest, Largest<BFloat16>() / scale);
  return largest / 2 / static_cast<float>(ranks);
}

void DropAbove(float limit, Span<float> values, const Kernels& kernels) {
  const std::int64_t count = values.size == 0 ? 0 : kernels.CountAbove(values, limit);
  if (count == 0) return;
  SparseBlock dropped;
  dropped.Reset(count);
  const std::unique_ptr<Candidates> candidates = kernels.NewCandidates(values, 0, count, &dropped);
  Feedback none;
  none.residual = values;
  candidates->Take(none, limit);
}

}  // namespace hvd_sparse
