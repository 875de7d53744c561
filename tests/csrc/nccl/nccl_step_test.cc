/// Steps that a device runs alone, in whole exchanges over NCCL's stand-in: the bits of the same
/// steps on the CPU, the same thresholds, and nothing lost when a step is refused.
///
/// If no threshold is known, or one misses, the device takes the exact top-k, while `gaussian` on
/// the CPU searches. So steps that forget thresholds are compared with `top_k`, and steps that
/// follow them start with thresholds learned on the CPU.

#include <gtest/gtest.h>

#include <cfloat>
#include <iterator>
#include <string>
#include <vector>

#include "csrc/base/process.h"
#include "tests/csrc/cuda/step_ranks.h"
#include "tests/csrc/nccl/with_fake_nccl.h"

namespace hvd_sparse {
namespace {

class NcclStep : public WithFakeNccl {};

TEST_F(NcclStep, HasTheBitsOfTheCpuForAnyNumberOfRanks) {
  ExpectTheBitsOfTopKForAnyNumberOfRanks();
}

TEST_F(NcclStep, HasTheBitsOfTheCpuWhereMomentumIsCorrected) { ExpectTheBitsOfTopKWithMomentum(); }

TEST_F(NcclStep, FollowsAKThatWarmsUp) {
  StepRun run;
  run.steps = 4;
  run.ks = [](int step) {
    return std::vector<std::int64_t>{120 >> step, 0, 1, step < 2 ? 150 : 7};
  };
  ExpectTheBitsOfTopK<BFloat16>(3, run);
}

TEST_F(NcclStep, AGradientThatIsNotFiniteIsToldToAllAndNothingIsLost) {
  for (const int bad : {0, 2}) {
    StepRun run;
    run.alter = [bad](int rank, int step, std::vector<float>* first, std::vector<float>* second) {
      if (step != 1 || rank < bad) return;
      (*first)[3] = rank == bad ? kInf : (*first)[3];
      (*second)[5] = kNan;
    };
    ExpectTheBitsOfTopK<BFloat16>(3, run);
  }
}

TEST_F(NcclStep, ASumThatOverflowsIsToldToAllAndNothingIsLost) {
  StepRun run;
  run.output_scale = 1;
  run.alter = [](int, int step, std::vector<float>* first, std::vector<float>*) {
    if (step == 1) (*first)[3] = FLT_MAX;
  };
  ExpectTheBitsOfTopK<float>(4, run);
}

TEST_F(NcclStep, WhatANarrowGradientCannotHoldIsToldToAllAndNothingIsLost) {
  StepRun run;
  run.forgets = true;
  run.output_scale = 1;
  run.alter = [](int, int step, std::vector<float>*, std::vector<float>* second) {
    if (step == 1) (*second)[5] = 40000;
  };
  const auto on_device = RunSteps<Float16>(3, StepSpecOf(kGpu, "gaussian"), run);
  const auto on_cpu = RunSteps<Float16>(3, StepSpecOf({}, "top_k"), run);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_NE(on_device[rank][1].refused.find("overflows"), std::string::npos);
    for (int step = 0; step < run.steps; ++step) {
      EXPECT_EQ(on_device[rank][step].refused.empty(), step != 1);
      EXPECT_TRUE(on_device[rank][step].residual == on_cpu[rank][step].residual);
    }
  }
}

// ---- Thresholds ---------------------------------------------------------------------------------

TEST_F(NcclStep, FollowsThresholdsAsTheCpuDoes) {
  for (const float momentum : {0.0f, 0.5f}) {
    SCOPED_TRACE(momentum);
    StepRun run;
    run.steps = 5;
    run.momentum = momentum;
    run.before = Learned<BFloat16>(3, momentum);
    const auto on_device = RunSteps<BFloat16>(3, StepSpecOf(kGpu, "gaussian"), run);
    const auto on_cpu = RunSteps<BFloat16>(3, StepSpecOf({}, "gaussian"), run);
    ExpectSameBits(on_device, on_cpu);
    for (int rank = 0; rank < 3; ++rank) {
      for (int step = 0; step < run.steps; ++step) {
        EXPECT_TRUE(SameStates(on_device[rank][step].states, on_cpu[rank][step].states));
      }
      EXPECT_GT(on_device[rank][0].states[0].threshold, 0.0f);
    }
  }
}

TEST_F(NcclStep, ThresholdsOfARefusedStepAreThoseOfTheCpu) {
  StepRun run;
  run.before = Learned<float>(2);
  run.alter = [](int rank, int step, std::vector<float>* first, std::vector<float>*) {
    if (step == 1 && rank == 1) (*first)[3] = kInf;
  };
  const auto on_device = RunSteps<float>(2, StepSpecOf(kGpu, "gaussian"), run);
  const auto on_cpu = RunSteps<float>(2, StepSpecOf({}, "gaussian"), run);
  ExpectSameBits(on_device, on_cpu);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(SameStates(on_device[rank][2].states, on_cpu[rank][2].states));
  }
}

TEST_F(NcclStep, WhatIsSavedBetweenTwoStepsIsAllThatTheNextOneNeeds) {
  StepRun run;
  run.steps = 4;
  run.momentum = 0.9f;
  const auto through = RunSteps<float>(3, StepSpecOf(kGpu, "gaussian"), run);
  run.renewed = 2;
  const auto renewed = RunSteps<float>(3, StepSpecOf(kGpu, "gaussian"), run);
  for (int rank = 0; rank < 3; ++rank) {
    for (int step = 0; step < run.steps; ++step) {
      EXPECT_TRUE(through[rank][step].gradients == renewed[rank][step].gradients);
      EXPECT_TRUE(through[rank][step].residual == renewed[rank][step].residual);
      EXPECT_TRUE(through[rank][step].velocity == renewed[rank][step].velocity);
      EXPECT_TRUE(SameStates(through[rank][step].states, renewed[rank][step].states));
    }
  }
}

// ---- The route, and what is reported of it ------------------------------------------------------

class NcclRoute : public WithFakeNccl {
 protected:
  static Route RouteOn(int size, const BucketSpec& spec) {
    StepRun run;
    run.steps = 1;
    const auto seen = RunSteps<float>(size, spec, run);
    for (const auto& of_rank : seen) EXPECT_EQ(of_rank[0].stats.route, seen[0][0].stats.route);
    return seen[0][0].stats.route;
  }
};

TEST_F(NcclRoute, FollowsFromTheBucketAndFromTheUsersWish) {
  const BucketSpec step = StepSpecOf(kGpu, "gaussian");
  EXPECT_EQ(RouteOn(3, step), Route::kStep);
  EXPECT_EQ(RouteOn(1, step), Route::kCalls);
  EXPECT_EQ(RouteOn(3, StepSpecOf({}, "gaussian")), Route::kCalls);
  EXPECT_EQ(RouteOn(3, StepSpecOf(kGpu, "sidco")), Route::kRounds);
  BucketSpec packed = step, narrow = step, other = step;
  packed.wire.packed = true;
  EXPECT_EQ(RouteOn(3, packed), Route::kStep);
  narrow.wire.values = Values::kBFloat16;
  EXPECT_EQ(RouteOn(3, narrow), Route::kCalls);
  other.collective = "allgather";
  EXPECT_EQ(RouteOn(3, other), Route::kCalls);
  ::unsetenv("HVD_SPARSE_NCCL");
  EXPECT_EQ(RouteOn(3, step), Route::kCalls);
}

TEST_F(NcclRoute, ItsStatisticsSayWhenWhatHappenedAndHowMuch) {
  constexpr int kRanks = 4;
  StepRun run;
  run.forgets = true;  // so that exactly k are selected
  const double before = SteadySeconds();
  const auto seen = RunSteps<float>(kRanks, StepSpecOf(kGpu, "gaussian"), run);
  const double after = SteadySeconds();
  for (const auto& of_rank : seen) {
    double last = before;
    for (const SeenStep& step : of_rank) {
      const BucketStats& stats = step.stats;
      EXPECT_EQ(stats.asked, 271);
      EXPECT_EQ(stats.selected, 271);
      EXPECT_EQ(stats.reduced, 271);
      ASSERT_EQ(stats.rounds.size(), 1u);
      EXPECT_EQ(stats.rounds[0].name, "gtopk, over NCCL");
      // Two rounds of 320 entries, as 271 are rounded up, and a header of 32 bytes each.
      EXPECT_EQ(stats.rounds[0].bytes_sent, 2 * (32 + 8 * 320));
      EXPECT_EQ(stats.rounds[0].bytes_received, stats.rounds[0].bytes_sent);
      EXPECT_GT(stats.bytes_sent, stats.rounds[0].bytes_sent);  // with the prior comparison
      const double times[] = {last,
                              stats.select_begin,
                              stats.select_end,
                              stats.exchange_begin,
                              stats.rounds[0].begin,
                              stats.rounds[0].end,
                              stats.settle_begin,
                              stats.exchange_end,
                              after};
      for (std::size_t i = 1; i < std::size(times); ++i) EXPECT_LE(times[i - 1], times[i]) << i;
      last = stats.exchange_end;
    }
  }
}

}  // namespace
}  // namespace hvd_sparse
