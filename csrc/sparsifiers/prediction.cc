#include "csrc/sparsifiers/prediction.h"

namespace hvd_sparse {

double TailIndex(Span<const float> values, float threshold) {
  if (values.size == 0) return 0;
  const std::int64_t stride = TailStride(values.size);
  double sums[kTailSums] = {};
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < values.size; i += stride, ++count) {
    sums[count % kTailSums] += TailTerm(values[i], threshold);
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  return TailIndexOf(sum, count);
}

}  // namespace hvd_sparse
