/// The bracketed search for a threshold that a given number of entries exceed.
///
/// The search sees the data through counts only: count(t) = how many |x| > t. Each probe is placed
/// as if the data were Gaussian between the two known points around the goal: z(count), the
/// two-sided Gaussian quantile of the count, is a straight line in t for Gaussian data and nearly
/// one in log-log for all others, so a secant there needs few probes. Every third probe halves
/// the bracket instead, on the bits of the float, so that no input makes the search crawl.

#pragma once

#include <cstdint>

#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

/// Returns the z that a standard Gaussian exceeds with probability `tail`, 0 < tail < 1.
double GaussianUpperQuantile(double tail);

class ThresholdSearch {
 public:
  /// Searches for `low` to `high` entries, ideally `wanted`, out of `numel`.
  ThresholdSearch(std::int64_t low, std::int64_t wanted, std::int64_t high, std::int64_t numel);

  /// Makes the Gaussian threshold of these moments the next guess.
  void Seed(const Moments& moments);

  /// Makes `threshold` the next guess.
  void Suggest(float threshold) { guess_ = threshold; }

  /// Returns the next threshold to probe, always strictly inside the bracket.
  float Next() const;

  /// Records the count of a probe. Returns true when the search is over: the count is within its
  /// limits, or too small although the threshold was zero.
  bool Learn(float threshold, std::int64_t count);

  /// True if no float lies between the ends of the bracket: too many entries are equal.
  bool Exhausted() const { return high_bits_ - low_bits_ <= 1; }

 private:
  double Quantile(std::int64_t count) const;
  void PlaceGuess(float threshold, std::int64_t count);

  const std::int64_t low_, wanted_, high_, numel_;
  double anchor_ = 0;  // what the data scatters around: the mean's magnitude
  double guess_ = 0;
  int probes_ = 0;

  // Bits of the largest threshold known to be too low (-1: none, not even zero) and of the smallest
  // known to be too high, with their counts (of none: -1).
  std::int64_t low_bits_ = -1, high_bits_ = 0x7f7fffff;
  std::int64_t low_count_ = -1, high_count_ = -1;
};

}  // namespace hvd_sparse
