/// GaussianK: about k entries by a threshold that is estimated, checked, and remembered.
///
/// In the steady state one read of the data: the threshold of the last step still gives between
/// 2k/3 and 4k/3 entries, and is nudged so that the count stays near k. Else, and at first, the
/// threshold of a Gaussian of the same moments seeds a bracketed search on counts. The search runs
/// on a sample first, which costs next to nothing, so that mostly one more read of the data
/// confirms it. Where no threshold will do (many equal magnitudes), or the search takes too long,
/// the exact top-k is taken. With fewer than 2k/3 non-zeros all of them are selected.
///
/// Shi et al., "Understanding Top-k Sparsification in Distributed Deep Learning", 2019,
/// https://arxiv.org/abs/1911.08772; the bracket and the bounds are this project's.

#include <algorithm>
#include <cmath>
#include <vector>

#include "csrc/sparsifiers/builtin.h"
#include "csrc/sparsifiers/threshold_search.h"

namespace hvd_sparse {
namespace {

/// Reads of the whole data before the search is given up for the exact top-k.
constexpr int kMaxProbes = 8;

/// Entries above the threshold that a sample should hold: the count that comes of it is then off by
/// 1 / sqrt(512) = 4 %, far less than the third that is allowed. A sample of an eighth may do with
/// fewer; below kLeastSampleK it tells too little.
constexpr std::int64_t kSampleK = 512, kLeastSampleK = 32;

std::int64_t Fewest(std::int64_t k) { return (2 * k + 2) / 3; }
std::int64_t Most(std::int64_t k, std::int64_t numel) { return std::min(4 * k / 3, numel); }

/// Suggests a threshold that about k entries exceed, judged by a sample; by the moments alone where
/// the data is so small that a sample would save nothing. Returns how many probes of the data are
/// worth while: one if the sample has so many equal magnitudes that no threshold fits it.
int SeedSearch(Span<const float> dense, std::int64_t k, const Kernels& kernels,
               ThresholdSearch* search) {
  const std::int64_t per_entry = (dense.size + k - 1) / k;
  const std::int64_t size = std::clamp<std::int64_t>(
      per_entry * kSampleK, 1 << 14, std::max<std::int64_t>(1 << 14, dense.size / 8));
  if (size > dense.size / 4 || size / per_entry < kLeastSampleK) {
    search->Seed(kernels.ComputeMoments(dense));
    return kMaxProbes;
  }
  thread_local std::vector<float> sample;
  kernels.Sample(dense, size, &sample);
  const Span<const float> view(sample);
  const std::int64_t sample_k =
      std::max<std::int64_t>(1, std::llround(static_cast<double>(k) * view.size / dense.size));
  const std::int64_t slack = sample_k / 32;
  ThresholdSearch on_sample(sample_k - slack, sample_k, sample_k + slack, view.size);
  const Moments moments = kernels.ComputeMoments(view);
  on_sample.Seed(moments);
  search->Seed(moments);
  float threshold = on_sample.Next();
  while (!on_sample.Learn(threshold, kernels.CountAbove(view, threshold)) &&
         !on_sample.Exhausted()) {
    threshold = on_sample.Next();
  }
  search->Suggest(threshold);
  return on_sample.Exhausted() ? 1 : kMaxProbes;
}

/// The threshold to remember. Around a threshold t the count behaves like t^(-1/h), where h is the
/// mean of 1 - t/|x| beyond it (a bounded form of Hill's estimator of the tail index: a few huge
/// entries cannot spoil it). So t * (count/k)^h would have given k; half that step damps noise.
float Nudge(float threshold, const float* values, std::int64_t count, std::int64_t k) {
  if (count == 0 || count == k) return threshold;
  const double t = threshold;
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += 1.0 - t / std::fabs(double{values[i]});
  const double h = sum / static_cast<double>(count);
  const double ratio = static_cast<double>(count) / static_cast<double>(k);
  return static_cast<float>(t * std::pow(ratio, 0.5 * h));
}

class Gaussian final : public Sparsifier {
 public:
  std::int64_t Capacity(std::int64_t k, std::int64_t numel) const override {
    return Most(k, numel);
  }

  std::int64_t Select(Span<const float> dense, std::int64_t k, Index offset, std::int64_t filled,
                      float* threshold, const Kernels& kernels, SparseBlock* out) const override {
    const std::int64_t most = Most(k, dense.size);
    const auto select_above = [&](float t) {
      return kernels.SelectAbove(dense, t, offset, filled, filled + most, out);
    };
    if (most == dense.size) {  // all may go, so all go, but for zeros
      *threshold = 0;
      return select_above(0);
    }

    ThresholdSearch search(Fewest(k), k, most, dense.size);
    bool seeded = !(*threshold > 0 && std::isfinite(*threshold));
    int probes = 1;
    if (seeded) {
      probes = SeedSearch(dense, k, kernels, &search);
    } else {
      search.Suggest(*threshold);
    }
    while (probes > 0 && !search.Exhausted()) {
      const float t = search.Next();
      const std::int64_t count = select_above(t);
      if (search.Learn(t, count)) {
        *threshold = count < Fewest(k) ? 0 : Nudge(t, out->values() + filled, count, k);
        return count;
      }
      --probes;
      if (!seeded) probes = SeedSearch(dense, k, kernels, &search);
      seeded = true;
    }

    const TopKCut cut = kernels.FindTopK(dense, k);
    *threshold = cut.magnitude;
    return kernels.SelectCut(dense, cut, offset, filled, out);
  }
};

}  // namespace

const Sparsifier& GaussianSparsifier() {
  static const Gaussian sparsifier;
  return sparsifier;
}

}  // namespace hvd_sparse
