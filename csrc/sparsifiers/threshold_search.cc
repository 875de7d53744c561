/// The placement of the probes of a threshold search.

#include "csrc/sparsifiers/threshold_search.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "csrc/kernels/half.h"

namespace hvd_sparse {
namespace {

std::int64_t BitsOf(double threshold) {
  return FloatBits(static_cast<float>(std::clamp(threshold, 0.0, double{FLT_MAX})));
}

float FloatOf(std::int64_t bits) { return BitsFloat(static_cast<std::uint32_t>(bits)); }

}  // namespace

// M. J. Wichura, "Algorithm AS 241: The Percentage Points of the Normal Distribution", Applied
// Statistics 37 (1988) 477-484, PPND7: relative error about 1e-7.
double GaussianUpperQuantile(double tail) {
  const double q = 0.5 - tail;
  if (std::fabs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * (((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179) /
           (((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0);
  }
  double r = std::sqrt(-std::log(q < 0 ? 1.0 - tail : tail));
  double z;
  if (r <= 5.0) {
    r -= 1.6;
    z = (((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777) /
        ((0.12021132975 * r + 0.73700164250) * r + 1.0);
  } else {
    r -= 5.0;
    z = (((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150) /
        ((0.012258202635 * r + 0.24197894225) * r + 1.0);
  }
  return q < 0 ? -z : z;
}

ThresholdSearch::ThresholdSearch(std::int64_t low, std::int64_t wanted, std::int64_t high,
                                 std::int64_t numel)
    : low_(low), wanted_(wanted), high_(high), numel_(numel) {}

void ThresholdSearch::Seed(const Moments& moments) {
  anchor_ = std::fabs(moments.mean);
  guess_ = anchor_ + moments.stddev * Quantile(wanted_);
}

float ThresholdSearch::Next() const {
  return FloatOf(std::clamp(BitsOf(guess_), low_bits_ + 1, high_bits_ - 1));
}

bool ThresholdSearch::Learn(float threshold, std::int64_t count) {
  if (count >= low_ && count <= high_) return true;
  if (count < low_ && threshold == 0) return true;
  if (count > high_) {
    low_bits_ = BitsOf(threshold);
    low_count_ = count;
  } else {
    high_bits_ = BitsOf(threshold);
    high_count_ = count;
  }
  ++probes_;
  PlaceGuess(threshold, count);
  return false;
}

/// Returns the two-sided Gaussian quantile of a count; a count of 0 is taken as half an entry.
double ThresholdSearch::Quantile(std::int64_t count) const {
  const double n = static_cast<double>(numel_);
  return GaussianUpperQuantile(std::clamp(static_cast<double>(count), 0.5, n - 0.5) / (2.0 * n));
}

void ThresholdSearch::PlaceGuess(float threshold, std::int64_t count) {
  const double wanted = Quantile(wanted_);
  if (low_count_ < 0 || high_count_ < 0) {
    // One side is open: follow the line through this point and the anchor; after three probes, try
    // zero or twice the guess to close it.
    if (low_count_ < 0 && probes_ >= 3) {
      guess_ = 0;
      return;
    }
    const double anchor = anchor_ < threshold ? anchor_ : 0.0;
    guess_ = anchor + (threshold - anchor) * wanted / Quantile(count);
    if (high_count_ < 0 && probes_ >= 3) guess_ *= 2.0;
    return;
  }
  if (probes_ % 3 == 0 || low_bits_ <= 0) {
    guess_ = FloatOf((low_bits_ + high_bits_) / 2);
    return;
  }
  const double z_low = std::log(Quantile(low_count_)), z_high = std::log(Quantile(high_count_));
  const double t_low = std::log(FloatOf(low_bits_)), t_high = std::log(FloatOf(high_bits_));
  const double part = (std::log(wanted) - z_low) / (z_high - z_low);
  guess_ = std::exp(t_low + part * (t_high - t_low));
}

}  // namespace hvd_sparse
