/// Samples of a large array: cache lines spread over all of it.

#pragma once

#include <algorithm>
#include <cstdint>

#include "csrc/base/draw.h"

namespace hvd_sparse::cpu {

constexpr std::int64_t kStretch = 16;  // entries of a cache line

/// Returns the number of entries in a sample of about `count` out of `size`.
inline std::int64_t SampleSize(std::int64_t size, std::int64_t count) {
  const std::int64_t rounded = (count + kStretch - 1) / kStretch * kStretch;
  return std::min(rounded, size);
}

/// Calls copy(begin, length, place) for each stretch of such a sample; `place` is its place in the
/// sample.
///
/// The array is cut into strata, and one line is drawn from each: lines at equal distances would
/// sample the same columns of a matrix again and again.
template <typename Copy>
void ForEachStretch(std::int64_t size, std::int64_t count, std::uint64_t seed, Copy copy) {
  const std::int64_t sample = SampleSize(size, count);
  if (sample == size) {
    copy(std::int64_t{0}, size, std::int64_t{0});
    return;
  }
  const std::int64_t strata = sample / kStretch, lines = size / kStretch;
  for (std::int64_t stratum = 0; stratum < strata; ++stratum) {
    const std::int64_t begin = stratum * lines / strata, end = (stratum + 1) * lines / strata;
    const auto draw = Draw(seed, static_cast<std::uint64_t>(stratum));
    const std::int64_t line = begin + Below(std::max<std::int64_t>(end - begin, 1), draw);
    copy(line * kStretch, kStretch, stratum * kStretch);
  }
}

}  // namespace hvd_sparse::cpu
