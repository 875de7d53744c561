#include "csrc/kernels/sign_groups.h"

#include <algorithm>
#include <functional>

namespace hvd_sparse {
namespace {

/// Returns the largest entries of a sign, at most k.
SignGroup LargestOf(bool negative, std::int64_t k, Span<const float> values) {
  SignGroup group{negative};
  std::vector<float>& magnitudes = MagnitudesOf(group, values);
  group.count = static_cast<std::int64_t>(magnitudes.size());
  if (group.count <= k) return group;
  std::nth_element(magnitudes.begin(), magnitudes.begin() + k - 1, magnitudes.end(),
                   std::greater<>());
  CutTo(k, magnitudes, &group);
  return group;
}

/// Returns the sum of the largest entries of a sign, added in order.
SignSum SumOf(bool negative, std::int64_t k, Span<const float> values) {
  SignSum sum{LargestOf(negative, k, values)};
  auto keeps = sum.group.Keeps();
  for (const float value : values) {
    if (!keeps(value)) continue;
    sum.sum += std::fabs(double{value});
    sum.least = std::min(sum.least, std::fabs(value));
  }
  return sum;
}

}  // namespace

void CutTo(std::int64_t count, const std::vector<float>& magnitudes, SignGroup* group) {
  const auto end = magnitudes.begin() + count;
  group->cut = *(end - 1);
  group->ties =
      count - std::count_if(magnitudes.begin(), end, [&](float one) { return one > group->cut; });
  group->count = count;
}

std::vector<float>& MagnitudesOf(const SignGroup& group, Span<const float> values) {
  thread_local std::vector<float> magnitudes;
  magnitudes.clear();
  auto keeps = group.Keeps();
  for (const float value : values) {
    if (keeps(value)) magnitudes.push_back(std::fabs(value));
  }
  return magnitudes;
}

SignSums LargestOfSigns(Span<const float> values, std::int64_t k) {
  return {SumOf(false, k, values), SumOf(true, k, values)};
}

}  // namespace hvd_sparse
