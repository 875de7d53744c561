/// Samples of a bucket in a measured step, compared with the sums that they estimate.

#include "csrc/exchange/step_sample.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "csrc/kernels/half.h"

namespace hvd_sparse {
namespace {

/// More than is read at a time, and not a multiple of that.
constexpr std::int64_t kFirst = 300001, kSecond = 5;

std::vector<float> Counting(std::int64_t numel, float step) {
  std::vector<float> values(static_cast<std::size_t>(numel));
  for (std::int64_t i = 0; i < numel; ++i) {
    values[static_cast<std::size_t>(i)] = step * static_cast<float>(i % 509);
  }
  return values;
}

/// A launch of two gradients, float32 and float16.
struct Memory {
  std::vector<float> first = Counting(kFirst, 1);
  std::vector<Float16> second = std::vector<Float16>(kSecond, Narrow<Float16>(3));
  std::vector<float> residual = Counting(kFirst + kSecond, 2);
  std::vector<float> velocity = Counting(kFirst + kSecond, 4);

  Launch Of(float momentum) {
    Launch launch;
    launch.gradients = {{first.data(), kFirst, DType::kFloat32},
                        {second.data(), kSecond, DType::kFloat16}};
    launch.residual = residual;
    if (momentum > 0) launch.velocity = velocity;
    launch.momentum = momentum;
    launch.decays = {0.5f, 0.25f};
    launch.scale = 8;
    launch.output_scale = 0.5f;
    return launch;
  }

  float GradientAt(std::int64_t i) const {
    return i < kFirst ? first[static_cast<std::size_t>(i)] : 3.0f;
  }
};

TEST(StepSampler, ItKeepsWhatJoinsWhatIsLeftAndWhatWasApplied) {
  for (const float momentum : {0.0f, 0.5f}) {
    Memory memory;
    const Memory before = memory;
    StepSampler sampler(1, CpuKernels());
    sampler.Begin(7);
    sampler.Starts(3, memory.Of(momentum));
    EXPECT_EQ(memory.residual, before.residual);
    EXPECT_EQ(memory.velocity, before.velocity);
    memory.residual.assign(memory.residual.size(), 6.0f);  // the step
    const std::vector<StepSample>& samples = sampler.Complete();
    ASSERT_EQ(samples.size(), 1u);
    const StepSample& seen = samples[0];
    EXPECT_EQ(seen.bucket, 3u);
    EXPECT_EQ(seen.step, 7);
    EXPECT_EQ(seen.left, memory.residual);
    ASSERT_EQ(seen.accumulated.size(), memory.residual.size());
    ASSERT_EQ(seen.applied.size(), memory.residual.size());
    for (std::int64_t i = 0; i < kFirst + kSecond; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const float decay = i < kFirst ? 0.5f : 0.25f;
      ASSERT_EQ(seen.accumulated[at], decay * before.residual[at] + momentum * before.velocity[at] +
                                          8 * memory.GradientAt(i));
      ASSERT_EQ(seen.applied[at], 2 * memory.GradientAt(i));
    }
  }
}

TEST(StepSampler, OnlyStepsThatWereAskedForAreKeptAndOnlyUntilTheNext) {
  Memory memory;
  StepSampler every_third(3, CpuKernels()), never(0, CpuKernels());
  for (std::int64_t step = 0; step < 7; ++step) {
    for (StepSampler* sampler : {&every_third, &never}) {
      sampler->Begin(step);
      EXPECT_TRUE(sampler->empty());
      sampler->Starts(0, memory.Of(0));
      sampler->Starts(1, memory.Of(0));
    }
    EXPECT_EQ(every_third.Complete().size(), step % 3 == 0 ? 2u : 0u);
    EXPECT_TRUE(never.Complete().empty());
  }
}

}  // namespace
}  // namespace hvd_sparse
