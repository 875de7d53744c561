/// HardThreshold: every entry beyond a constant, whatever the resulting density.
///
/// The remaining error is bounded, not the count: much is sent while gradients are large, little
/// when they are small. k bounds the messages: if more entries exceed the constant, the k largest
/// are sent now, the others later.
///
/// Options: threshold (must be given), in units of the gradient.
///
/// Sahu et al., "Rethinking gradient sparsification as total error minimization", NeurIPS 2021,
/// https://arxiv.org/abs/2108.00951.

#include <algorithm>
#include <cmath>

#include "csrc/sparsifiers/builtin.h"
#include "csrc/sparsifiers/samples.h"

namespace hvd_sparse {
namespace {

class HardThreshold final : public Sparsifier {
 public:
  explicit HardThreshold(double threshold) : threshold_(static_cast<float>(threshold)) {
    Require(threshold_ > 0 && std::isfinite(threshold_),
            "threshold of hard_threshold must be > 0 and finite in float32, got ", threshold);
  }

  std::int64_t Room(std::int64_t k, std::int64_t numel) const override {
    return RoomForCandidates(k, numel);
  }

  void Select(std::int64_t k, SelectionState* state, Selection* selection) const override {
    state->threshold = threshold_;
    const std::int64_t count = selection->TakeAbove(threshold_);
    if (count <= selection->room()) return selection->KeepTopK(k);
    selection->PutBack();
    TakeTopKAbove(0, k, selection);
  }

 private:
  const float threshold_;
};

}  // namespace

std::unique_ptr<const Sparsifier> MakeHardThreshold(const SparsifierOptions& options) {
  return std::make_unique<HardThreshold>(Option(options, "threshold"));
}

}  // namespace hvd_sparse
