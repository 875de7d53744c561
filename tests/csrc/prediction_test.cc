/// The prediction of thresholds follows steady growth, and forgets what jumps.

#include "csrc/sparsifiers/prediction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "tests/csrc/segment.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kK = 1000;

/// Draws |x| of a Pareto distribution: a share t^-alpha lies beyond t >= 1.
std::vector<float> Pareto(double alpha, std::int64_t size) {
  return Make([alpha](auto& r) { return std::pow(Coin(r), -1 / alpha); }, size);
}

TEST(TailIndex, IsHowTheCountOfAParetoDistributionFallsOff) {
  for (const double alpha : {8.0, 4.0, 2.0}) {
    EXPECT_NEAR(TailIndex(Pareto(alpha, 1 << 18), 1.0f), 1 / alpha, 0.15 / alpha) << alpha;
  }
}

TEST(TailIndex, LiesBetweenZeroAndItsLimit) {
  EXPECT_EQ(TailIndex({}, 1.0f), 0.0);
  EXPECT_EQ(TailIndex(std::vector<float>{2, -2}, 2.0f), 0.0);
  EXPECT_EQ(TailIndex(std::vector<float>{1, -1}, 2.0f), 0.0);  // values below do not count
  EXPECT_EQ(TailIndex(std::vector<float>{1e38f, -3e38f}, 1e-45f), kLargestTailIndex);
  const std::vector<float> huge = {kInf, -kInf};
  EXPECT_EQ(TailIndex(huge, 1.0f), kLargestTailIndex);
}

TEST(ThresholdFor, IsWhereAParetoDistributionHasTheWantedCount) {
  constexpr double kAlpha = 3;
  constexpr std::int64_t kSize = 1 << 18;
  const std::vector<float> data = Pareto(kAlpha, kSize);
  const std::int64_t count = CpuKernels().CountAbove(data, 2.0f);
  for (const std::int64_t wanted : {count / 4, count / 2, count, 2 * count}) {
    const float threshold = ThresholdFor(wanted, 2.0f, count, 1 / kAlpha);
    const auto reached = static_cast<double>(CpuKernels().CountAbove(data, threshold));
    EXPECT_NEAR(reached / static_cast<double>(wanted), 1.0, 0.03);
  }
  EXPECT_EQ(ThresholdFor(10, 2.0f, 0, 0.3), 2.0f);  // no entries give no estimate
}

TEST(Predicted, IsZeroWhereNothingIsKnown) {
  EXPECT_EQ(Predicted(kK, kK, {}), 0.0f);
  for (const float unknown : {-1.0f, kInf, -kInf, kNan}) {
    EXPECT_EQ(Predicted(kK, kK, {unknown, 0, 0.2f, 0}), 0.0f);
    EXPECT_EQ(Predicted(kK, kK, {1.0f, 0, 2 * unknown, 0}), 0.0f);
  }
  EXPECT_EQ(Predicted(kK, kK, {3.0f, 0, 0.2f, 0}), 3.0f);
  EXPECT_LT(Predicted(2 * kK, kK, {3.0f, 0, 0.2f, 0}), 3.0f);
}

/// Returns the error of the prediction, step by step, given each step's true threshold.
std::vector<double> Errors(const std::function<double(int)>& threshold, int steps) {
  SelectionState state;
  std::vector<double> errors;
  for (int step = 0; step < steps; ++step) {
    const double actual = threshold(step);
    errors.push_back(std::log(Predicted(kK, kK, state) / actual));
    Predict(static_cast<float>(actual), 0.2, kK, &state);
  }
  return errors;
}

TEST(Predict, HoldsAConstant) {
  const auto errors = Errors([](int step) { return step == 0 ? 1.1 : 1.0; }, 100);
  for (std::size_t step = 1; step < errors.size(); ++step) EXPECT_LT(std::fabs(errors[step]), 0.1);
  EXPECT_NEAR(errors.back(), 0, 1e-4);
}

TEST(Predict, FollowsSteadyGrowthWithoutALag) {
  for (const double rate : {0.01, -0.01, 0.1}) {
    const auto errors = Errors([rate](int step) { return std::exp(rate * step); }, 150);
    EXPECT_NEAR(errors.back(), 0, 0.01 * std::fabs(rate)) << rate;
  }
}

TEST(Predict, ForgetsTheGrowthAtAJump) {
  SelectionState state;
  for (int step = 0; step < 50; ++step) {
    Predict(static_cast<float>(std::exp(0.05 * step)), 0.2, kK, &state);
  }
  EXPECT_GT(state.growth, 0.0f);
  for (const float jump : {1000.0f, 0.001f}) {
    Predict(jump, 0.2, kK, &state);
    EXPECT_EQ(state.threshold, jump);
    EXPECT_EQ(state.growth, 0.0f);
  }
}

TEST(Predict, TrustsSmallCountsLess) {
  // A count of k entries is off by 1 / sqrt(k); counts of few entries weigh less.
  const auto after = [](std::int64_t k) {
    SelectionState state;
    Predict(1.0f, 0.2, k, &state);
    Predict(1.2f, 0.2, k, &state);
    return state.threshold;
  };
  EXPECT_LT(after(1), after(100));
  EXPECT_LT(after(100), after(10000));
}

TEST(Predict, SurvivesThresholdsThatSayNothing) {
  for (const float nothing : {0.0f, kInf, kNan, -1.0f}) {
    SelectionState state;
    Predict(2.0f, 0.2, kK, &state);
    Predict(nothing, 0.2, kK, &state);
    EXPECT_EQ(Predicted(kK, kK, state), 0.0f);
    Predict(3.0f, 0.2, kK, &state);
    EXPECT_EQ(Predicted(kK, kK, state), 3.0f);
  }
}

}  // namespace
}  // namespace hvd_sparse
