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
/// The last step makes rounding errors of binary values exact (csrc/wire/binary_values.cc). It
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

/// The largest entries of one sign: magnitudes beyond `cut`, and the first `ties` that equal it.
struct Group {
  bool negative = false;
  float cut = 0;
  std::int64_t ties = 0;

  bool Has(float value) const { return value != 0 && (value < 0) == negative; }

  /// Returns a predicate that accepts the group's entries among values that it is asked in order.
  auto Keeps() const {
    return [group = *this](float value) mutable {
      if (!group.Has(value)) return false;
      const float magnitude = std::fabs(value);
      return magnitude > group.cut || (magnitude == group.cut && group.ties-- > 0);
    };
  }

  /// Cuts the group to the `count` largest; `magnitudes` begins with these, the last one the least.
  void CutTo(std::int64_t count, const std::vector<float>& magnitudes) {
    const auto end = magnitudes.begin() + count;
    cut = *(end - 1);
    ties = count - std::count_if(magnitudes.begin(), end, [&](float one) { return one > cut; });
  }
};

/// The number of a group's entries, and the sum of their magnitudes, added in order.
struct Sum {
  std::int64_t count = 0;
  double sum = 0;
  float least = INFINITY;
};

Sum SumOf(const Group& group, Span<const float> values) {
  Sum sum;
  auto keeps = group.Keeps();
  for (const float value : values) {
    if (!keeps(value)) continue;
    ++sum.count;
    sum.sum += std::fabs(double{value});
    sum.least = std::min(sum.least, std::fabs(value));
  }
  return sum;
}

/// Returns the magnitudes of a group's entries; valid until the next call on this thread.
std::vector<float>& MagnitudesOf(const Group& group, Span<const float> values) {
  thread_local std::vector<float> magnitudes;
  magnitudes.clear();
  auto keeps = group.Keeps();
  for (const float value : values) {
    if (keeps(value)) magnitudes.push_back(std::fabs(value));
  }
  return magnitudes;
}

/// Returns the largest entries of a sign, at most k.
Group LargestOf(bool negative, std::int64_t k, Span<const float> values) {
  Group group{negative};
  std::vector<float>& magnitudes = MagnitudesOf(group, values);
  if (static_cast<std::int64_t>(magnitudes.size()) <= k) return group;
  std::nth_element(magnitudes.begin(), magnitudes.begin() + k - 1, magnitudes.end(),
                   std::greater<>());
  group.CutTo(k, magnitudes);
  return group;
}

float LeastOf(Span<const float> values) {
  float least = INFINITY;
  for (const float value : values) least = std::min(least, std::fabs(value));
  return least;
}

bool IsWithinTwiceTheLeast(double sum, std::int64_t count, float least) {
  return sum <= 2.0 * least * static_cast<double>(count);
}

/// Drops the smallest entries until the mean of the others is at most twice the least.
void Level(Span<const float> values, Group* group) {
  std::vector<float>& magnitudes = MagnitudesOf(*group, values);
  std::sort(magnitudes.begin(), magnitudes.end(), std::greater<>());
  std::int64_t kept = 1, count = 0;
  double sum = 0;
  for (const float magnitude : magnitudes) {
    sum += magnitude;
    if (IsWithinTwiceTheLeast(sum, ++count, magnitude)) kept = count;
  }
  group->CutTo(kept, magnitudes);
}

class OneSign final : public Sparsifier {
 public:
  std::int64_t Capacity(std::int64_t k, std::int64_t numel) const override {
    return std::min(k, numel);
  }
  std::int64_t Room(std::int64_t k, std::int64_t numel) const override {
    return RoomForCandidates(BothSigns(k, numel), numel);
  }

  void Select(std::int64_t k, SelectionState* state, Selection* selection) const override {
    const std::int64_t most = BothSigns(k, selection->size());
    TakePredictedTopK(most, state, selection);
    const Span<const float> values = selection->values();
    if (values.size == 0) return;

    const Group plus = LargestOf(false, k, values), minus = LargestOf(true, k, values);
    const Sum of_plus = SumOf(plus, values), of_minus = SumOf(minus, values);
    const bool has_more = values.size == most && most < selection->size();
    const float bound = has_more ? LeastOf(values) : 0.0f;
    const auto rank = [&](const Sum& sum) {
      const double total = sum.sum + double{bound} * static_cast<double>(k - sum.count);
      return std::pair(total, sum.count);
    };
    const bool negative = rank(of_minus) > rank(of_plus);
    Group stays = negative ? minus : plus;
    const Sum& sum = negative ? of_minus : of_plus;
    if (!IsWithinTwiceTheLeast(sum.sum, sum.count, sum.least)) Level(values, &stays);
    selection->KeepIf(stays.Keeps());
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
