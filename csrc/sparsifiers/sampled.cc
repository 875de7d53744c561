/// Sampled: the threshold is a quantile of a sample that is drawn in every step.
///
///     sample = about 1 % of the entries, drawn anew in each step, before error feedback
///     threshold = the magnitude that density * |sample| of them reach
///
/// The threshold depends on earlier steps only by the number of draws, so it follows any change of
/// the gradient's scale; it costs the sample more than `gaussian`. The sample grows beyond 1 % if
/// that would hold fewer than 128 entries above the threshold (an error of 9 % in the count), up to
/// an eighth.
///
/// Options: fraction of the entries in the sample (0.01); of a large segment an eighth at most.
///
/// Lin et al., "Deep Gradient Compression", ICLR 2018, https://arxiv.org/abs/1712.01887. There, too
/// large a selection is cut by a second top-k; here the bounds of all threshold sparsifiers hold.

#include <algorithm>

#include "csrc/sparsifiers/builtin.h"
#include "csrc/sparsifiers/threshold_sparsifier.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kLeastHits = 128;

class Sampled final : public ThresholdSparsifier {
 public:
  explicit Sampled(double fraction) : fraction_(fraction) {
    Require(fraction > 0 && fraction <= 1, "fraction of sampled must lie in (0, 1], got ",
            fraction);
  }

 private:
  float FirstThreshold(std::int64_t k, const Selection& selection,
                       SelectionState* state) const override {
    const auto hits = static_cast<std::int64_t>(fraction_ * static_cast<double>(k));
    const Span<const float> sample =
        SampleWith(std::max(hits, kLeastHits), k, selection, state->NextDraw());
    return SampledThreshold(sample, k, selection);
  }

  const double fraction_;
};

}  // namespace

std::unique_ptr<const Sparsifier> MakeSampled(const SparsifierOptions& options) {
  return std::make_unique<Sampled>(OptionOr(options, "fraction", 0.01));
}

}  // namespace hvd_sparse
