/// A sample of a large array that is spread over all of it and read by the cache line.

#ifndef HVD_SPARSE_KERNELS_STRETCHES_H_
#define HVD_SPARSE_KERNELS_STRETCHES_H_

#include <algorithm>
#include <cstdint>

#include "csrc/base/draw.h"

namespace hvd_sparse::cpu {

constexpr std::int64_t kStretch = 16;  // entries of a cache line

/// How many entries a sample of about `count` out of `size` has.
inline std::int64_t SampleSize(std::int64_t size, std::int64_t count) {
  const std::int64_t rounded = (count + kStretch - 1) / kStretch * kStretch;
  return std::min(rounded, size);
}

/// Calls copy(begin, length, place) for the stretches of such a sample, which lie at `place` in it.
///
/// The array is cut into strata, and one line is drawn in each: at equal distances, a sample of a
/// matrix would see the same columns again and again.
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

#endif  // HVD_SPARSE_KERNELS_STRETCHES_H_
