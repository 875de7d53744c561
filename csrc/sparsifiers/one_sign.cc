/// OneSign: the largest entries of one sign, at most k, with a mean of at most twice the least.
///
/// Values of one sign and of like magnitudes can be sent as one number, their mean (values of type
/// `binary`), and this is the choice of sparse binary compression:
///
///     take the 2k largest magnitudes; of each sign keep the largest, at most k
///     the sign stays whose k largest have the larger mean, of equal ones that of more entries; an
///     entry that is not among the 2k counts as the least of them, which bounds it
///     drop the smallest of these until their mean is at most twice the least
///
/// The last step makes rounding errors of binary values exact (csrc/wire/binary_coder.h). It
/// drops nothing where the magnitude of an entry falls off like its rank^(-1/2) or slower, as in
/// most gradients. All that is dropped stays in the residual.
///
/// Sattler et al., "Sparse binary compression", IJCNN 2019, https://arxiv.org/abs/1805.08768.

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "csrc/sparsifiers/builtin.h"
#include "csrc/sparsifiers/samples.h"

namespace hvd_sparse {
namespace {

bool IsWithinTwiceTheLeast(double sum, std::int64_t count, float least) {
  return sum <= 2.0 * least * static_cast<double>(count);
}

/// Drops the smallest entries until the mean of the others is at most twice the least.
void Level(Span<const float> values, SignGroup* group) {
  std::vector<float>& magnitudes = MagnitudesOf(*group, values);
  std::sort(magnitudes.begin(), magnitudes.end(), std::greater<>());
  std::int64_t kept = 1, count = 0;
  double sum = 0;
  for (const float magnitude : magnitudes) {
    sum += magnitude;
    if (IsWithinTwiceTheLeast(sum, ++count, magnitude)) kept = count;
  }
  CutTo(kept, magnitudes, group);
}

/// Returns the sum of a group and of the bounds of its missing entries, up to k.
double Rank(const SignSum& one, std::int64_t k, float bound) {
  return one.sum + double{bound} * static_cast<double>(k - one.group.count);
}

/// Returns the sign that stays.
const SignSum& Stays(const SignSums& sums, std::int64_t k, float bound) {
  const auto rank = [&](const SignSum& one) {
    return std::pair(Rank(one, k, bound), one.group.count);
  };
  return rank(sums[1]) > rank(sums[0]) ? sums[1] : sums[0];
}

/// Returns true if the sums lead to the same choice as those that are added in order.
bool IsClear(const SignSums& sums, std::int64_t k, float bound) {
  const double error = sums[0].error + sums[1].error;
  if (error == 0) return true;         // they have been added in order
  constexpr double kRounding = 1e-15;  // of Rank, more than twice
  const double plus = Rank(sums[0], k, bound), minus = Rank(sums[1], k, bound);
  const SignSum& stays = Stays(sums, k, bound);
  const double limit = 2.0 * stays.least * static_cast<double>(stays.group.count);
  return std::fabs(plus - minus) > error + kRounding * (plus + minus) &&
         std::fabs(stays.sum - limit) > stays.error;
}

class OneSign final : public Sparsifier {
 public:
  std::int64_t Room(std::int64_t k, std::int64_t numel) const override {
    return RoomForCandidates(BothSigns(k, numel), numel);
  }

  void Select(std::int64_t k, SelectionState* state, Selection* selection) const override {
    const std::int64_t most = BothSigns(k, selection->size());
    TakePredictedTopK(most, state, selection);
    if (selection->taken() == 0) return;

    const bool has_more = selection->taken() == most && most < selection->size();
    const float bound = has_more ? selection->Smallest() : 0.0f;
    SignSums sums = selection->LargestOfSigns(k);
    if (!IsClear(sums, k, bound)) sums = LargestOfSigns(selection->values(), k);
    const SignSum& stays = Stays(sums, k, bound);
    SignGroup group = stays.group;
    if (!IsWithinTwiceTheLeast(stays.sum, group.count, stays.least)) {
      Level(selection->values(), &group);
    }
    selection->Keep(group);
  }

 private:
  static std::int64_t BothSigns(std::int64_t k, std::int64_t numel) {
    return std::min(2 * k, numel);
  }
};

}  // namespace

std::unique_ptr<const Sparsifier> MakeOneSign(const SparsifierOptions& /*options*/) {
  return std::make_unique<OneSign>();
}

}  // namespace hvd_sparse
