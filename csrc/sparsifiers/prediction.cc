#include "csrc/sparsifiers/prediction.h"

namespace hvd_sparse {
namespace {

/// Number of values that a tail index is computed from (its error of 3 % moves a count by far
/// less), and of the partial sums that they are added to in turn.
constexpr std::int64_t kTailValues = 1024, kTailSums = 32;

double TailTerm(float value, float threshold) {
  const double magnitude = value < 0 ? -double{value} : double{value}, least = threshold;
  return 1.0 - least / (magnitude > least ? magnitude : least);
}

}  // namespace

double TailIndex(Span<const float> values, float threshold) {
  if (values.size == 0) return 0;
  const std::int64_t stride = (values.size + kTailValues - 1) / kTailValues;
  double sums[kTailSums] = {};
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < values.size; i += stride, ++count) {
    sums[count % kTailSums] += TailTerm(values[i], threshold);
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  const double mean = sum / static_cast<double>(count), index = mean / (1 - mean);
  return index < kLargestTailIndex ? index : kLargestTailIndex;
}

}  // namespace hvd_sparse
