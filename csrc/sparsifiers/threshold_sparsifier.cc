#include "csrc/sparsifiers/threshold_sparsifier.h"

#include <algorithm>
#include <cmath>

namespace hvd_sparse {
namespace {

/// Passes over the data before a search is given up for the exact top-k.
constexpr int kMaxProbes = 8;

/// Entries above the threshold that a sample should hold for a search: the resulting count is then
/// off by 1 / sqrt(256) = 6 %, far less than the third that is allowed. A sample of an eighth may
/// hold fewer; below kLeastHits it is not searched.
constexpr std::int64_t kHits = 256, kLeastHits = 32;

float SmallestMagnitude(Span<const float> values) {
  float smallest = INFINITY;
  for (const float value : values) smallest = std::min(smallest, std::fabs(value));
  return smallest;
}

/// Returns true if `count` entries, just taken, are accepted; keeps the k largest if they are too
/// many.
bool Accept(std::int64_t count, std::int64_t k, Selection* selection) {
  if (count < FewestFor(k) || count > selection->room()) return false;
  if (count > MostFor(k, selection->size())) selection->KeepTopK(k);
  return true;
}

/// Returns a second threshold, extrapolated from the count of the first; 0 if that says too little.
float Extrapolated(std::int64_t k, float threshold, std::int64_t count, Span<const float> values) {
  if (threshold <= 0 || count < k / 16 + 1 || count > 16 * k) return 0;
  // Between the fewest and the most that are accepted, on a logarithmic scale.
  return ThresholdFor(6 * k / 5, threshold, count, TailIndex(values, threshold));
}

/// Searches by probes of the whole data, starting from a sample. Returns true if it found a
/// threshold, whose entries are taken; false if no threshold will do.
bool SearchAndTake(std::int64_t k, Selection* selection, float* threshold) {
  ThresholdSearch search(FewestFor(k), k, selection->room(), selection->size());
  for (int probes = SearchOnSample(k, *selection, &search); probes > 0 && !search.Exhausted();
       --probes) {
    *threshold = search.Next();
    const std::int64_t count = selection->TakeAbove(*threshold);
    if (search.Learn(*threshold, count)) {
      if (count >= FewestFor(k)) Accept(count, k, selection);
      return true;
    }
    selection->PutBack();
  }
  return false;
}

}  // namespace

std::int64_t FewestFor(std::int64_t k) { return (2 * k + 2) / 3; }

std::int64_t MostFor(std::int64_t k, std::int64_t numel) { return std::min(4 * k / 3, numel); }

int SearchOnSample(std::int64_t k, const Selection& selection, ThresholdSearch* search) {
  const Span<const float> sample = SampleWith(kHits, k, selection);
  const Moments moments = selection.sample_kernels().ComputeMoments(sample);
  search->Seed(moments);
  const double share = static_cast<double>(sample.size) / static_cast<double>(selection.size());
  const auto sample_k = std::llround(static_cast<double>(k) * share);
  if (sample.size == selection.size() || sample_k < kLeastHits) return kMaxProbes;

  const std::int64_t slack = sample_k / 32;
  ThresholdSearch on_sample(sample_k - slack, sample_k, sample_k + slack, sample.size);
  on_sample.Seed(moments);
  float threshold = on_sample.Next();
  while (!on_sample.Learn(threshold, selection.sample_kernels().CountAbove(sample, threshold)) &&
         !on_sample.Exhausted()) {
    threshold = on_sample.Next();
  }
  search->Suggest(threshold);
  return on_sample.Exhausted() ? 1 : kMaxProbes;
}

std::int64_t ThresholdSparsifier::Capacity(std::int64_t k, std::int64_t numel) const {
  return MostFor(k, numel);
}

std::int64_t ThresholdSparsifier::Room(std::int64_t k, std::int64_t numel) const {
  return RoomForCandidates(k, numel);
}

void ThresholdSparsifier::Select(std::int64_t k, SelectionState* state,
                                 Selection* selection) const {
  if (MostFor(k, selection->size()) == selection->size()) {  // all non-zeros may be sent
    selection->TakeAbove(0);
    state->threshold = 0;
    return;
  }
  float threshold = FirstThreshold(k, *selection, state);
  std::int64_t count = selection->TakeAbove(threshold);
  if (!Accept(count, k, selection)) {
    threshold = Extrapolated(k, threshold, count, selection->values());
    selection->PutBack();
    if (threshold > 0) count = selection->TakeAbove(threshold);
    if (threshold == 0 || !Accept(count, k, selection)) {
      selection->PutBack();
      if (SearchAndTake(k, selection, &threshold)) {
        count = selection->taken();
      } else {
        TakeTopKAbove(0, k, selection);
      }
    }
  }

  const Span<const float> values = selection->values();
  if (values.size < FewestFor(k)) {  // there are no more non-zeros
    state->threshold = 0;
  } else if (values.size == k) {
    const float smallest = SmallestMagnitude(values);
    Predict(smallest, TailIndex(values, smallest), k, state);
  } else {
    const double tail_index = TailIndex(values, threshold);
    Predict(ThresholdFor(k, threshold, count, tail_index), tail_index, k, state);
  }
}

}  // namespace hvd_sparse
