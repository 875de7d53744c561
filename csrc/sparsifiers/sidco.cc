/// SIDCo: the tail of |u| is fitted by a distribution, in stages that each look further out.
///
///     n entries remain of the sample, k of them are wanted; t = 0 at first
///     stage: fit a generalised Pareto distribution to |u| - t of the entries with |u| > t;
///            raise t to where it leaves max(k / n, 1/4) of them; stop when that was k / n
///
/// A fit uses all entries of its stage, so it needs a smaller sample than a quantile would, and the
/// last stage extrapolates by a factor of 4 at most.
///
/// Fit by moments: with mean m and variance v of the exceedances,
///     shape a = (1 - m^2 / v) / 2,  scale b = m (1 + m^2 / v) / 2,
///     P(|u| - t > x) = (1 + a x / b)^(-1/a),  so a share q is left beyond x = b (q^-a - 1) / a.
/// For a near 0 the distribution is exponential and x = -b ln q; published code divides by zero
/// there.
///
/// M. Abdelmoniem et al., "An Efficient Statistical-based Gradient Compression Technique for
/// Distributed Training Systems" (SIDCo), MLSys 2021, https://arxiv.org/abs/2101.10761. There, the
/// number of stages is adapted to the counts of past steps; here it follows from the share that
/// remains, and the bounds of all threshold sparsifiers hold.

#include <algorithm>
#include <cmath>
#include <vector>

#include "csrc/sparsifiers/builtin.h"
#include "csrc/sparsifiers/threshold_sparsifier.h"

namespace hvd_sparse {
namespace {

/// Entries that the last stage should be fitted to, and the share that an earlier stage leaves.
constexpr std::int64_t kLastStage = 256;
constexpr double kShare = 0.25;

/// Returns how far beyond the threshold a generalised Pareto distribution leaves `share` of its
/// entries.
double Exceedance(double mean, double variance, double share) {
  const double ratio = variance > 0 ? mean * mean / variance : INFINITY;
  if (!std::isfinite(ratio)) return mean;  // all alike
  const double shape = 0.5 * (1 - ratio), scale = 0.5 * mean * (1 + ratio);
  const double log_share = -std::log(share);
  // expm1 is exact for small arguments; the quotient needs a limit only where it is 0 / 0.
  return shape == 0 ? scale * log_share : scale * std::expm1(shape * log_share) / shape;
}

/// Returns the threshold that about `wanted` of the magnitudes exceed; reorders them.
double FitTail(std::vector<float>* magnitudes, double wanted) {
  double threshold = 0;
  auto end = magnitudes->end();
  for (;;) {
    const double n = static_cast<double>(end - magnitudes->begin());
    if (n <= wanted || n < 2) return threshold;
    double sum = 0, squares = 0;
    for (auto x = magnitudes->begin(); x != end; ++x) {
      const double beyond = *x - threshold;
      sum += beyond;
      squares += beyond * beyond;
    }
    const double mean = sum / n, variance = squares / n - mean * mean;
    const double share = std::max(wanted / n, kShare);
    const double next = threshold + Exceedance(mean, variance, share);
    if (share > kShare || !(next > threshold)) return next;
    const auto beyond =
        std::partition(magnitudes->begin(), end, [next](float x) { return x > next; });
    if (beyond == end || static_cast<double>(beyond - magnitudes->begin()) < wanted) return next;
    threshold = next;
    end = beyond;
  }
}

class Sidco final : public ThresholdSparsifier {
 private:
  float FirstThreshold(std::int64_t k, const Selection& selection,
                       SelectionState* state) const override {
    thread_local std::vector<float> magnitudes;
    magnitudes.clear();
    const Span<const float> sample = SampleWith(kLastStage / 4, k, selection, state->NextDraw());
    for (const float value : sample) {
      if (value != 0) magnitudes.push_back(std::fabs(value));  // zeros are never taken
    }
    const double share = static_cast<double>(sample.size) / static_cast<double>(selection.size());
    return static_cast<float>(FitTail(&magnitudes, static_cast<double>(k) * share));
  }
};

}  // namespace

std::unique_ptr<const Sparsifier> MakeSidco(const SparsifierOptions& /*options*/) {
  return std::make_unique<Sidco>();
}

}  // namespace hvd_sparse
