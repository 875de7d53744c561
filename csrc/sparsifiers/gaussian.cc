/// GaussianK: a threshold estimated as if the entries were Gaussian, then followed by its counts.
///
///     first step:    threshold = |mean| + stddev * z, the Gaussian estimate from a sample; it
///                    seeds a bracketed search on the sample's own counts, for data of any other
///                    shape
///     every step:    the threshold predicted from the counts before (prediction.h)
///     every 32nd:    one that some 3k/2 entries are expected to exceed; the k largest of them
///                    stay, and the smallest of these is the threshold exactly (refresh)
///
/// One pass a step, and no sample: the cheapest of the sparsifiers, and the one that LAGS uses.
///
/// Options: refresh, steps between exact refreshes (32).
///
/// Shi et al., "Understanding Top-k Sparsification in Distributed Deep Learning", 2019,
/// https://arxiv.org/abs/1911.08772; reuse of the threshold after Li and Hoefler, "Near-Optimal
/// Sparse Allreduce for Distributed Deep Learning" (Ok-Topk), PPoPP 2022; bracket, control and
/// bounds are this project's.

#include "csrc/sparsifiers/builtin.h"
#include "csrc/sparsifiers/threshold_sparsifier.h"

namespace hvd_sparse {
namespace {

class Gaussian final : public ThresholdSparsifier {
 public:
  explicit Gaussian(double refresh) : refresh_(refresh) {
    Require(refresh >= 1, "refresh of gaussian must be >= 1, got ", refresh);
  }

 private:
  float FirstThreshold(std::int64_t k, const Selection& selection,
                       SelectionState* state) const override {
    const float predicted = PredictedWithRefresh(k, refresh_, state);
    if (predicted > 0) return predicted;
    ThresholdSearch search(k, k, k, selection.size());
    SearchOnSample(k, selection, &search);
    return search.Next();
  }

  const double refresh_;
};

}  // namespace

std::unique_ptr<const Sparsifier> MakeGaussian(const SparsifierOptions& options) {
  return std::make_unique<Gaussian>(OptionOr(options, "refresh", 32));
}

}  // namespace hvd_sparse
