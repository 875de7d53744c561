/// The largest entries of either sign among values that were taken from a segment.

#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "csrc/base/types.h"

namespace hvd_sparse {

/// The largest entries of one sign: magnitudes beyond `cut`, and the first `ties` that equal it.
struct SignGroup {
  bool negative = false;
  float cut = 0;
  std::int64_t ties = 0;
  std::int64_t count = 0;  ///< of all its entries

  bool Has(float value) const { return value != 0 && (value < 0) == negative; }

  /// Returns a predicate that accepts the group's entries among values that it is asked in order.
  auto Keeps() const {
    return [group = *this](float value) mutable {
      if (!group.Has(value)) return false;
      const float magnitude = std::fabs(value);
      return magnitude > group.cut || (magnitude == group.cut && group.ties-- > 0);
    };
  }
};

/// The magnitudes of a group's entries.
struct SignSum {
  SignGroup group;
  double sum = 0;
  double error = 0;  ///< limit of the difference from the sum that is added up in order
  float least = INFINITY;
};

using SignSums = std::array<SignSum, 2>;  ///< of the positive entries, and of the negative ones

/// Cuts a group to the `count` largest; `magnitudes` begins with these, the last one the least.
void CutTo(std::int64_t count, const std::vector<float>& magnitudes, SignGroup* group);

/// Returns the magnitudes of a group's entries; valid until the next call on this thread.
std::vector<float>& MagnitudesOf(const SignGroup& group, Span<const float> values);

/// Returns the k largest of either sign, or all. Their sums are added up in order.
SignSums LargestOfSigns(Span<const float> values, std::int64_t k);

}  // namespace hvd_sparse
