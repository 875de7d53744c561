/// The threshold of the next step, predicted from those of the steps before.
///
/// Thresholds are not at rest: residuals grow from zero while training begins, for some 1 / density
/// steps, and gradients shrink later. A prediction that only follows what it last saw lags behind
/// by a constant factor of the growth, so the growth is estimated, too: a proportional-integral
/// controller on the logarithm of the threshold.

#ifndef HVD_SPARSE_SPARSIFIERS_PREDICTION_H_
#define HVD_SPARSE_SPARSIFIERS_PREDICTION_H_

#include <cstdint>

#include "csrc/sparsifiers/sparsifier.h"

namespace hvd_sparse {

/// Whether a threshold is one that some step ended with.
bool IsKnown(float threshold);

/// No tail is taken to be heavier: beyond that, thresholds would be extrapolated from next to
/// nothing.
constexpr double kLargestTailIndex = 4;

/// How the magnitudes beyond a threshold t fall off: their count behaves like t^(-1/h) for this h.
/// For a Pareto tail the mean m of 1 - t/|x| is h / (1 + h), so h = m / (1 - m). (Hill's estimator
/// takes the mean of log(|x|/t), which a few huge entries spoil.) From at most some thousand of the
/// values; 0 for none.
double TailIndex(Span<const float> values, float threshold);

/// The threshold that `wanted` entries would have exceeded, where `count` exceeded `threshold`.
float ThresholdFor(std::int64_t wanted, float threshold, std::int64_t count, double tail_index);

/// Learns the threshold that would have given k entries in this step, and predicts the next one.
void Predict(float actual, double tail_index, std::int64_t k, SelectionState* state);

/// The threshold that `wanted` entries are expected to exceed in the next step; 0 if none is known.
float Predicted(std::int64_t wanted, std::int64_t k, const SelectionState& state);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_SPARSIFIERS_PREDICTION_H_
