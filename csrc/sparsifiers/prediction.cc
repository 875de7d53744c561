#include "csrc/sparsifiers/prediction.h"

#include <algorithm>
#include <cmath>

namespace hvd_sparse {
namespace {

/// Values that the tail index is computed from: its error of 3 % moves a count by far less.
constexpr std::int64_t kTailValues = 1024;

/// The share of an error that is taken for a change, and not for the noise 1 / sqrt(k) of a count.
double Trust(std::int64_t k) { return static_cast<double>(k) / static_cast<double>(k + 16); }

/// The share of a change that is taken for lasting growth.
constexpr double kLasting = 1.0 / 6;

/// A larger change of the logarithm is a jump, from which nothing follows about the next step.
constexpr double kJump = 0.5;

}  // namespace

bool IsKnown(float threshold) { return threshold > 0 && std::isfinite(threshold); }

double TailIndex(Span<const float> values, float threshold) {
  if (values.size == 0) return 0;
  const std::int64_t stride = (values.size + kTailValues - 1) / kTailValues;
  double sum = 0;
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < values.size; i += stride, ++count) {
    sum += 1.0 - double{threshold} / std::max(std::fabs(double{values[i]}), double{threshold});
  }
  const double mean = sum / static_cast<double>(count);
  return std::min(mean / (1 - mean), kLargestTailIndex);
}

float ThresholdFor(std::int64_t wanted, float threshold, std::int64_t count, double tail_index) {
  if (count == 0) return threshold;
  const double ratio = static_cast<double>(count) / static_cast<double>(wanted);
  return static_cast<float>(threshold * std::pow(ratio, tail_index));
}

float Predicted(std::int64_t wanted, std::int64_t k, const SelectionState& state) {
  if (!IsKnown(state.threshold) ||
      !(state.tail_index >= 0 && state.tail_index <= kLargestTailIndex))
    return 0;
  return ThresholdFor(wanted, state.threshold, k, state.tail_index);
}

void Predict(float actual, double tail_index, std::int64_t k, SelectionState* state) {
  state->tail_index = static_cast<float>(tail_index);
  const double error = IsKnown(state->threshold) && IsKnown(actual)
                           ? std::log(double{actual} / double{state->threshold})
                           : INFINITY;
  if (!(std::fabs(error) < kJump) || !(std::fabs(state->growth) < kJump)) {
    state->threshold = actual;
    state->growth = 0;
    return;
  }
  const double trust = Trust(k);
  const double growth = state->growth + kLasting * trust * error;
  state->growth = static_cast<float>(growth);
  state->threshold = static_cast<float>(state->threshold * std::exp(trust * error + growth));
}

}  // namespace hvd_sparse
