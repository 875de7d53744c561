/// Counts, passes and jumps of threshold-based sparsifiers, under error feedback.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "csrc/sparsifiers/threshold_sparsifier.h"
#include "tests/csrc/counting_kernels.h"
#include "tests/csrc/segment.h"

namespace hvd_sparse {
namespace {

const std::vector<std::pair<std::string, Draw>> kBellShaped = {
    {"gaussian", Gauss}, {"laplace", Laplace}, {"student_t_3", StudentT3}, {"uniform", Uniform}};

/// Returns the passes over the data that a step took, samples included.
double PassesOf(Segment* segment, const std::vector<float>& gradient, std::int64_t k) {
  const CountingKernels kernels;
  segment->Run(gradient, k, {}, kernels);
  return static_cast<double>(kernels.entries()) / static_cast<double>(gradient.size());
}

// ---- Counts -------------------------------------------------------------------------------------

class FollowThreshold : public testing::TestWithParam<std::string> {};

TEST_P(FollowThreshold, TheMeanCountIsK) {
  constexpr std::int64_t kSize = 1 << 17;
  constexpr int kSteps = 250;
  for (const auto& [name, draw] : {kBellShaped[0], kBellShaped[1]}) {
    Gradients gradients(draw, kSize);
    for (const double density : {0.001, 0.01, 0.1}) {
      const std::int64_t k = KOf(density, kSize);
      Segment segment(GetParam(), kSize);
      double sum = 0;
      for (int step = 0; step < kSteps; ++step) {
        sum += static_cast<double>(segment.Run(gradients.Next(), k).count());
      }
      EXPECT_NEAR(sum / kSteps / static_cast<double>(k), 1.0, 0.05) << name << " " << density;
    }
  }
}

TEST_P(FollowThreshold, TheCountStaysLawfulWhenTheGradientJumps) {
  constexpr std::int64_t kSize = 1 << 16;
  for (const auto& [name, draw] : kBellShaped) {
    Gradients gradients(draw, kSize);
    for (const double density : {0.001, 0.01, 0.1, 0.5}) {
      for (const float jump : {100.0f, 0.01f, 1000.0f, 1e-30f, 1e30f}) {
        SCOPED_TRACE(testing::Message() << name << ", density " << density << ", times " << jump);
        const std::int64_t k = KOf(density, kSize);
        Segment segment(GetParam(), kSize);
        for (int step = 0; step < 15; ++step) segment.Run(gradients.Next(), k);
        for (int step = 0; step < 6; ++step) {
          const Step after = segment.Run(gradients.Next(jump), k);
          ExpectCountNear(k, after);
          ExpectLargestEntries(after);
        }
      }
    }
  }
}

TEST_P(FollowThreshold, WhatDoesNotFitIsSmallerAndNotLater) {
  // Small gradients, then a thousand times larger ones, only towards the end.
  constexpr std::int64_t kSize = 1 << 16, kK = 656;
  Segment segment(GetParam(), kSize);
  Gradients gradients(Gauss, kSize);
  for (int step = 0; step < 10; ++step) segment.Run(gradients.Next(), kK);
  std::vector<float> gradient(kSize);
  for (std::int64_t i = 0; i < kSize; ++i) {
    gradient[i] = 1000.0f * (1.0f + static_cast<float>(i) / kSize);
  }
  const Step jump = segment.Run(gradient, kK);
  ExpectCountNear(kK, jump);
  ExpectLargestEntries(jump);
  EXPECT_GT(jump.taken.front().index, kSize - 2 * kK);
}

TEST_P(FollowThreshold, RecoverFromAStepWithoutAnyGradient) {
  constexpr std::int64_t kSize = 1 << 16, kK = 656;
  Segment segment(GetParam(), kSize);
  Gradients gradients(Laplace, kSize);
  EXPECT_EQ(segment.Run(std::vector<float>(kSize), kK).count(), 0);
  for (int step = 0; step < 5; ++step) ExpectCountNear(kK, segment.Run(gradients.Next(), kK));
  segment.Run(std::vector<float>(kSize), kK);
  for (int step = 0; step < 5; ++step) ExpectCountNear(kK, segment.Run(gradients.Next(), kK));
}

TEST_P(FollowThreshold, FollowADensityThatChangesFromStepToStep) {
  constexpr std::int64_t kSize = 1 << 16;
  Segment segment(GetParam(), kSize);
  Gradients gradients(Gauss, kSize);
  for (const double density : {0.25, 0.0625, 0.015625, 0.004, 0.001, 0.001, 0.25, 1.0, 0.01}) {
    const std::int64_t k = KOf(density, kSize);
    ExpectCountNear(k, segment.Run(gradients.Next(), k));
  }
}

INSTANTIATE_TEST_SUITE_P(All, FollowThreshold, testing::Values("gaussian", "sampled", "sidco"),
                         [](const auto& info) { return info.param; });

// ---- Passes -------------------------------------------------------------------------------------

class OnePass : public testing::TestWithParam<std::string> {
 protected:
  /// Returns the number of steady-state steps that took anything but one pass and no sample.
  static int StepsOfMore(const Draw& draw, double density) {
    constexpr std::int64_t kSize = 1 << 18;
    const int steps = static_cast<int>(std::ceil(2 / density));  // residuals grow for 1 / density
    Gradients gradients(draw, kSize);
    Segment segment(GetParam(), kSize);
    const std::int64_t k = KOf(density, kSize);
    for (int step = 0; step < steps; ++step) segment.Run(gradients.Next(), k);
    int more = 0;
    for (int step = 0; step < 50; ++step) {
      more += PassesOf(&segment, gradients.Next(), k) != 1.0 ? 1 : 0;
    }
    return more;
  }
};

TEST_P(OnePass, AndNoSampleInTheSteadyState) {
  for (const auto& [name, draw] : kBellShaped) {
    for (const double density : {0.01, 0.05}) {
      EXPECT_EQ(StepsOfMore(draw, density), 0) << name << ", density " << density;
    }
  }
}

TEST_P(OnePass, InMostStepsWhereMostEntriesAreZero) {
  // Sparse gradients, like those of an embedding or after a ReLU.
  const Draw draw = [](auto& r) { return Coin(r) < 0.9 ? 0.0 : Gauss(r); };
  EXPECT_LE(StepsOfMore(draw, 0.01), 10);
}

INSTANTIATE_TEST_SUITE_P(All, OnePass, testing::Values("gaussian", "top_k"),
                         [](const auto& info) { return info.param; });

TEST(Gaussian, LooksAtTheDataAFewTimesInItsFirstStep) {
  constexpr std::int64_t kSize = 1 << 18;
  for (const auto& [name, draw] : kBellShaped) {
    for (const double density : {0.001, 0.01, 0.1}) {
      Gradients gradients(draw, kSize);
      Segment segment("gaussian", kSize);
      EXPECT_LE(PassesOf(&segment, gradients.Next(), KOf(density, kSize)), 4.0) << name;
    }
  }
}

TEST(Gaussian, RefreshesExactlyEverySoManySteps) {
  constexpr std::int64_t kSize = 1 << 18, kK = 2622;
  Gradients gradients(StudentT3, kSize);
  Segment always("gaussian", kSize, {{"refresh", 1}}), never("gaussian", kSize, {{"refresh", 1e9}});
  int exact = 0;
  for (int step = 0; step < 150; ++step) {
    const std::vector<float> gradient = gradients.Next();
    const bool is_exact = always.Run(gradient, kK).count() == kK;
    if (step >= 100) exact += is_exact ? 1 : 0;
    never.Run(gradient, kK);
  }
  EXPECT_GE(exact, 45);
  EXPECT_GT(never.state.own, 100.0f);  // steps since the first one
}

TEST(SampledAndSidco, TakeOnePassBesideTheirSample) {
  constexpr std::int64_t kSize = 1 << 18, kK = 2622;
  for (const char* sparsifier : {"sampled", "sidco"}) {
    for (const auto& [name, draw] : kBellShaped) {
      Gradients gradients(draw, kSize);
      Segment segment(sparsifier, kSize);
      for (int step = 0; step < 40; ++step) {
        const float scale = step % 10 == 9 ? 100.0f : 1.0f;
        EXPECT_LE(PassesOf(&segment, gradients.Next(scale), kK), 1.26)
            << sparsifier << ", " << name;
      }
    }
  }
}

TEST(TopK, TakesExactlyKOrAllNonZeros) {
  constexpr std::int64_t kSize = 70000;
  for (const auto& [name, draw] : kDistributions) {
    Gradients gradients(draw, kSize);
    for (const std::int64_t k : {1, 70, 700, 35000}) {
      Segment segment("top_k", kSize);
      for (const float scale : {1.0f, 1.0f, 1.0f, 100.0f, 0.01f, 0.01f}) {
        const Step step = segment.Run(gradients.Next(scale), k);
        EXPECT_EQ(step.count(), std::min(k, step.NonZeros())) << name << ", k " << k;
      }
    }
  }
}

TEST(HardThreshold, TakesAllBeyondItOrTheKLargest) {
  constexpr std::int64_t kSize = 70000;
  for (const auto& [name, draw] : kDistributions) {
    Gradients gradients(draw, kSize);
    for (const float threshold : {1.5e-45f, 0.5f, 3.0f, 3e38f}) {
      for (const std::int64_t k : {1, 700, 70000}) {
        Segment segment("hard_threshold", kSize, {{"threshold", threshold}});
        for (int i = 0; i < 3; ++i) {
          const Step step = segment.Run(gradients.Next(), k);
          EXPECT_EQ(step.count(), std::min(k, CpuKernels().CountAbove(step.accumulated, threshold)))
              << name << ", k " << k << ", threshold " << threshold;
        }
      }
    }
  }
}

// ---- SIDCo's fit --------------------------------------------------------------------------------

/// Returns the first threshold that sidco tries.
float FirstThreshold(const std::vector<float>& gradient, std::int64_t k) {
  const CountingKernels kernels;
  Segment("sidco", static_cast<std::int64_t>(gradient.size())).Run(gradient, k, {}, kernels);
  return kernels.thresholds().front();
}

TEST(Sidco, FitsWhatAGeneralisedParetoDistributionCovers) {
  constexpr std::int64_t kSize = 1 << 14;  // the sample is the whole segment
  const std::vector<std::pair<std::string, Draw>> covered = {
      {"exponential: shape 0", Laplace},
      {"uniform: shape -1", Uniform},
      {"triangular: shape -1/2", [](auto& r) { return 1 - std::sqrt(Coin(r)); }},
      {"Pareto: shape 1/5", [](auto& r) { return std::pow(Coin(r), -0.2) - 1; }},
  };
  for (const auto& [name, draw] : covered) {
    const std::vector<float> gradient = Make(draw, kSize);
    for (const double density : {0.01, 0.1, 0.4}) {
      const std::int64_t k = KOf(density, kSize);
      const float threshold = FirstThreshold(gradient, k);
      ASSERT_TRUE(std::isfinite(threshold));
      const auto count = static_cast<double>(CpuKernels().CountAbove(gradient, threshold));
      EXPECT_NEAR(count / static_cast<double>(k), 1.0, density < 0.1 ? 0.2 : 0.07)
          << name << ", density " << density;
    }
  }
}

TEST(Sidco, TakesTheLimitWhereTheShapeIsExactlyZero) {
  // Mean 2, variance 4 = mean^2: four ones, one six, and so on; every number is exact.
  std::vector<float> gradient(12000, 1.0f);
  for (std::size_t i = 0; i < gradient.size(); i += 5) gradient[i] = 6.0f;
  EXPECT_FLOAT_EQ(FirstThreshold(gradient, 4000), static_cast<float>(2 * std::log(3.0)));
}

TEST(Sidco, FirstThresholdIsFiniteWhateverTheData) {
  for (const auto& [name, draw] : kDistributions) {
    for (const std::int64_t size : {2, 100, 20000}) {
      const float threshold = FirstThreshold(Make(draw, size), 1);
      EXPECT_TRUE(std::isfinite(threshold) && threshold >= 0) << name << ": " << threshold;
    }
  }
  EXPECT_EQ(FirstThreshold(std::vector<float>(1000, 0.0f), 10), 0.0f);
  EXPECT_TRUE(std::isfinite(FirstThreshold(std::vector<float>(1000, 7.0f), 10)));
}

// ---- The Gaussian quantile ----------------------------------------------------------------------

TEST(GaussianUpperQuantile, InvertsTheTailOfTheNormalDistribution) {
  for (double z = -5; z < 12; z += 0.01) {
    const double tail = 0.5 * std::erfc(z / std::sqrt(2.0));
    EXPECT_NEAR(GaussianUpperQuantile(tail), z, 1e-6 + 1e-6 * std::fabs(z));
  }
}

}  // namespace
}  // namespace hvd_sparse
