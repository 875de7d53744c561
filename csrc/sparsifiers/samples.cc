#include "csrc/sparsifiers/samples.h"

#include <algorithm>
#include <cmath>

namespace hvd_sparse {
namespace {

/// Size of a sample that costs next to nothing.
constexpr std::int64_t kSmallSample = 1 << 14;

/// Size of the largest segment that fits a first-level cache, where passes cost nothing.
constexpr std::int64_t kSmallSegment = 1 << 13;

/// Number of candidates that a sample should hold.
constexpr std::int64_t kHits = 256;

/// Takes the candidates above a threshold and keeps the k largest; puts them back if they are too
/// few or too many.
bool TryCandidates(float threshold, std::int64_t k, Selection* selection, std::int64_t* above) {
  const std::int64_t count = *above = selection->TakeAbove(threshold);
  const bool all_non_zeros = threshold == 0 && count <= selection->room();
  if (all_non_zeros || (k <= count && count <= selection->room())) {
    selection->KeepTopK(k);
    return true;
  }
  selection->PutBack();
  return false;
}

}  // namespace

Span<const float> SampleWith(std::int64_t hits, std::int64_t k, const Selection& selection,
                             std::uint64_t seed) {
  const std::int64_t numel = selection.size(), per_entry = (numel + k - 1) / k;
  const std::int64_t most = std::max(kSmallSample, numel / 8);
  return selection.Sample(std::clamp(per_entry * hits, kSmallSample, most), seed);
}

float SampledThreshold(Span<const float> sample, std::int64_t k, const Selection& selection) {
  const double share = static_cast<double>(sample.size) / static_cast<double>(selection.size());
  const auto rank = std::llround(static_cast<double>(k) * share);
  const TopKCut cut =
      selection.sample_kernels().FindTopK(sample, std::clamp<std::int64_t>(rank, 1, sample.size));
  return std::nextafter(cut.magnitude, 0.0f);  // that entry exceeds it, too
}

std::int64_t CandidatesFor(std::int64_t k) { return k + k / 3 + 32; }

std::int64_t RoomForCandidates(std::int64_t k, std::int64_t numel) {
  return std::min(2 * k + 256, numel);
}

std::int64_t TakeTopKAbove(float threshold, std::int64_t k, Selection* selection) {
  std::int64_t above = 0, above_sampled = 0;
  if (threshold > 0 && TryCandidates(threshold, k, selection, &above)) return above;
  if (selection->size() > kSmallSegment) {
    const Span<const float> sample = SampleWith(kHits, k, *selection);
    const float sampled = SampledThreshold(sample, CandidatesFor(k), *selection);
    if (TryCandidates(sampled, k, selection, &above_sampled)) return above;
  }
  selection->TakeTopK(k);
  return above;
}

}  // namespace hvd_sparse
