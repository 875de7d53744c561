/// Steps that run entirely on the device with momentum correction: velocities have the bits of
/// those on the CPU, and only delivered entries are masked.

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/csrc/cuda/bucket_programs.h"

namespace hvd_sparse {
namespace {

BucketPlan Corrected(BucketPlan plan, float momentum = 0.5f) {
  plan.momentum = momentum;
  return plan;
}

using CudaDeviceMomentum = CudaTest;

TEST_F(CudaDeviceMomentum, StepsHaveTheBitsOfTheCpu) {
  ExpectTheBitsOfTheCpu(Corrected(kOneOfAll), {1, 2, 3, 4, 7, 8});
}

TEST_F(CudaDeviceMomentum, SoTheyHaveWhereGradientsAndSegmentsAreCutByEachOther) {
  ExpectTheBitsOfTheCpu(Corrected(kCut), {1, 2, 3, 4, 7, 8});
}

TEST_F(CudaDeviceMomentum, SoTheyHaveWhereSegmentsAreOfVeryDifferentSizes) {
  ExpectTheBitsOfTheCpu(Corrected(kOfVeryDifferentSizes), {1, 3, 4});
}

TEST_F(CudaDeviceMomentum, SoTheyHaveWithSlackAndFactorsThatRound) {
  for (const BucketPlan& plan : {kOneOfAll, kCut}) {
    ExpectTheBitsOfTheCpu(Corrected(Rounding(plan), 0.9f), {1, 3, 4});
  }
}

/// Residuals decay so fast that velocities do not push them past the thresholds.
TEST_F(CudaDeviceMomentum, StepsWithThresholdsHaveTheBitsOfTheCpu) {
  for (const int ranks : {1, 2, 5}) {
    Program program = WithThresholds(ranks, 7);
    program.plan.momentum = 0.3f;
    for (GradientPlan& gradient : program.plan.gradients) gradient.decay = 0.5f;
    program.states[0].threshold = program.states[3].threshold = 2.4f;
    for (int rank = 0; rank < ranks; ++rank) {
      program.velocities[rank].resize(program.plan.numel());
    }
    ExpectTheBitsOfGaussian(program);
  }
}

TEST_F(CudaDeviceMomentum, NothingIsLostWhileThresholdsAreFollowed) {
  BucketPlan plan = Corrected(kCut);
  for (auto& gradient : plan.gradients) gradient.type = DType::kFloat32;
  for (const int ranks : {1, 3, 4}) ExpectNothingIsLost(Program(plan, ranks, 6));
}

/// Delivered entries are zero in the residual.
TEST_F(CudaDeviceMomentum, VelocitiesOfWhatIsDeliveredBecomeZeroAndNoOthers) {
  const Program program(Corrected(kOneOfAll), 3, 4);
  const Steps after = OnDevice(program);
  int masked = 0, kept = 0;
  for (int rank = 0; rank < program.ranks(); ++rank) {
    auto [residual, velocity, states] = program.BeforeOf(rank);
    for (std::size_t step = 0; step < program.gradients.size(); ++step) {
      const std::vector<float> joined = program.Inflow(velocity, program.gradients[step][rank]);
      const AfterStep& own = after[rank][step];
      for (std::size_t i = 0; i < joined.size(); ++i) {
        if (residual[i] + joined[i] == 0) continue;  // indistinguishable from a delivered entry
        const bool is_delivered = own.residual[i] == 0;
        ASSERT_EQ(own.velocity[i], is_delivered ? 0 : joined[i]) << "entry " << i;
        ++(is_delivered ? masked : kept);
      }
      residual = own.residual;
      velocity = own.velocity;
    }
  }
  EXPECT_GT(masked, 3 * 4 * 10);
  EXPECT_GT(kept, 3 * 4 * 1000);
}

// ---- Steps that are not applied -----------------------------------------------------------------

TEST_F(CudaDeviceMomentum, AGradientThatIsNotFiniteMasksNothing) {
  for (const int ranks : {1, 3}) {
    Program program(Corrected(kCut), ranks, 2);
    program.forgets = true;
    program.gradients[0][ranks - 1][11] = kNan;
    program.gradients[0][ranks - 1][900] = -kInf;  // of float16
    const Steps after = OnDevice(program);
    ExpectRefused(program, after);
    for (const auto& of_rank : after) {
      EXPECT_EQ(of_rank[0].header.verdict, Verdict::BadGradient(ranks - 1));
      EXPECT_EQ(of_rank[0].header.not_finite, 2u);
      EXPECT_FALSE(of_rank[1].is_refused);
    }
    ExpectSame(after, OnCpu(program, "top_k"));
  }
}

TEST_F(CudaDeviceMomentum, NeitherVelocityNorResidualBecomesInfinite) {
  Program program(Corrected(kOneOfAll), 2, 2);
  program.forgets = true;
  program.velocities[1][5] = program.gradients[0][1][5] = kMax;
  program.residuals[1][6] = program.gradients[0][1][6] = kMax;
  const Steps after = OnDevice(program);
  EXPECT_EQ(after[1][0].header.verdict, Verdict::BadGradient(1));
  EXPECT_EQ(after[1][0].header.not_finite, 2u);
  EXPECT_EQ(after[1][0].velocity[5], kMax / 2);
  EXPECT_EQ(after[1][0].velocity[6], kMax);
  EXPECT_EQ(after[1][0].residual[6], kMax);
  ExpectSame(after, OnCpu(program, "top_k"));
}

TEST_F(CudaDeviceMomentum, ASumThatIsNotFiniteMasksNothing) {
  for (const int ranks : {2, 3}) {
    Program program(Corrected(kCut), ranks, 2);
    program.forgets = true;
    program.gradients[0][0][77] = program.gradients[0][ranks - 1][77] = kMax;
    program.gradients[1][0][77] = program.gradients[1][ranks - 1][77] = -kMax;
    const Steps after = OnDevice(program);
    ExpectRefused(program, after);
    for (const auto& of_rank : after) {
      EXPECT_EQ(of_rank[0].header.flags, static_cast<std::uint32_t>(cuda::kSumNotFinite));
    }
    ExpectSame(after, OnCpu(program, "top_k"));
  }
}

}  // namespace
}  // namespace hvd_sparse
