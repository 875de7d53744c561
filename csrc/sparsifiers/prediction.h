/// The threshold of the next step, predicted from those of the steps before.
///
/// Thresholds change: residuals grow from zero while training begins, for some 1 / density steps,
/// and gradients shrink later. A prediction that only follows what it last saw lags behind by a
/// constant factor of the growth, so the growth is estimated, too: a proportional-integral
/// controller on the logarithm of the threshold.

#pragma once

#include <cstdint>

#include "csrc/kernels/same_math.h"
#include "csrc/sparsifiers/sparsifier.h"

namespace hvd_sparse {

/// Returns true if a threshold is one that some step ended with: positive and finite.
inline bool IsKnown(float threshold) {
  constexpr float kLargest = 3.40282346638528859812e+38f;
  return threshold > 0 && threshold <= kLargest;
}

// ---- The tail index -----------------------------------------------------------------------------

/// Upper limit of a tail index: beyond it, thresholds would be extrapolated from next to nothing.
constexpr double kLargestTailIndex = 4;

/// Returns the tail index h of the magnitudes beyond a threshold t: their count falls off like
/// t^(-1/h). For a Pareto tail the mean m of 1 - t/|x| is h / (1 + h), so h = m / (1 - m). (Hill's
/// estimator takes the mean of log(|x|/t), which a few huge entries spoil.) Uses at most about a
/// thousand of the values; 0 for none.
double TailIndex(Span<const float> values, float threshold);

// ---- The controller -----------------------------------------------------------------------------

/// Returns the threshold that `wanted` entries would have exceeded, if `count` exceeded
/// `threshold`.
inline float ThresholdFor(std::int64_t wanted, float threshold, std::int64_t count,
                          double tail_index) {
  if (count == 0) return threshold;
  const double ratio = static_cast<double>(count) / static_cast<double>(wanted);
  return static_cast<float>(threshold * SameExp(tail_index * SameLog(ratio)));
}

/// Learns the threshold that would have given k entries in this step, and predicts the next one.
inline void Predict(float actual, double tail_index, std::int64_t k, SelectionState* state) {
  constexpr double kLasting = 1.0 / 6;  // the share of a change that is taken for lasting growth
  constexpr double kJump = 0.5;  // a larger change of the logarithm says nothing of the next step
  state->tail_index = static_cast<float>(tail_index);
  const bool both_known = IsKnown(state->threshold) && IsKnown(actual);
  const double error = both_known ? SameLog(double{actual} / double{state->threshold}) : kJump;
  const bool is_steady =
      -kJump < error && error < kJump && -kJump < state->growth && state->growth < kJump;
  if (!is_steady) {
    state->threshold = actual;
    state->growth = 0;
    return;
  }
  // The share of an error that is taken for a change, and not for the noise 1 / sqrt(k) of a count.
  const double trust = static_cast<double>(k) / static_cast<double>(k + 16);
  const double growth = state->growth + kLasting * trust * error;
  state->growth = static_cast<float>(growth);
  state->threshold = static_cast<float>(state->threshold * SameExp(trust * error + growth));
}

/// Returns the threshold that `wanted` entries are expected to exceed in the next step; 0 if none
/// is known.
inline float Predicted(std::int64_t wanted, std::int64_t k, const SelectionState& state) {
  const bool is_tail = state.tail_index >= 0 && state.tail_index <= kLargestTailIndex;
  if (!IsKnown(state.threshold) || !is_tail) return 0;
  return ThresholdFor(wanted, state.threshold, k, state.tail_index);
}

/// Returns the threshold to try in a step; 0 if none is known. Every `refresh` steps, counted in
/// state->own, an exact refresh is due: the threshold is then one that about 3k/2 entries are
/// expected to exceed.
inline float PredictedWithRefresh(std::int64_t k, double refresh, SelectionState* state) {
  float& age = state->own;  // steps since the last refresh
  const float predicted = Predicted(k, k, *state);
  if (predicted == 0) {
    age = 0;
    return 0;
  }
  age = age >= 0 ? age + 1 : 0;
  if (age < refresh) return predicted;
  age = 0;
  return Predicted(3 * k / 2, k, *state);
}

}  // namespace hvd_sparse
