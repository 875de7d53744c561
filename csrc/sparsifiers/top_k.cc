/// TopK: exactly the k largest magnitudes, ties to the lower index.
///
/// A threshold somewhat below the k-th largest magnitude is predicted from the last steps (or, at
/// first, taken from a sample), so one pass takes a few more than k candidates, and a radix select
/// among those leaves the k largest: the exact result at little more than the cost of error
/// feedback. Where the candidates are too few or too many, a radix select over the bits of all
/// magnitudes finds the cut: two to three passes more, and no sort anywhere.
///
/// Zeros are never sent: if there are fewer than k non-zeros, only those are selected.
///
/// Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017,
/// https://arxiv.org/abs/1704.05021.

#include <algorithm>
#include <cmath>

#include "csrc/sparsifiers/builtin.h"
#include "csrc/sparsifiers/prediction.h"
#include "csrc/sparsifiers/samples.h"

namespace hvd_sparse {
namespace {

/// Returns the tail index between the threshold of the candidates and the smallest entry kept.
/// Entries above that say little about it: residuals end there, and may crowd just below.
double IndexOfCandidates(float tried, std::int64_t above, float smallest, Selection* selection) {
  constexpr double kTooClose = 0.05;
  const auto taken = static_cast<double>(selection->taken());
  const double counts = std::log(static_cast<double>(above) / taken);
  if (tried > 0 && above > 0 && std::fabs(counts) > kTooClose) {
    const double index = std::log(double{smallest} / double{tried}) / counts;
    if (index > 0 && index <= kLargestTailIndex) return index;
  }
  return TailIndex(selection->values(), smallest);
}

class TopK final : public Sparsifier {
 public:
  std::int64_t Room(std::int64_t k, std::int64_t numel) const override {
    return RoomForCandidates(k, numel);
  }

  void Select(std::int64_t k, SelectionState* state, Selection* selection) const override {
    TakePredictedTopK(k, state, selection);
  }
};

}  // namespace

void TakePredictedTopK(std::int64_t k, SelectionState* state, Selection* selection) {
  const float tried = Predicted(CandidatesFor(k), k, *state);
  const std::int64_t above = TakeTopKAbove(tried, k, selection);

  if (selection->taken() < k) {  // there are no more non-zeros
    state->threshold = 0;
    return;
  }
  const float smallest = selection->Smallest();
  Predict(smallest, IndexOfCandidates(tried, above, smallest, selection), k, state);
}

std::unique_ptr<const Sparsifier> MakeTopK(const SparsifierOptions& /*options*/) {
  return std::make_unique<TopK>();
}

}  // namespace hvd_sparse
