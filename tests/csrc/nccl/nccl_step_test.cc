/// Steps whose blocks go from device to device, in whole exchanges over NCCL's stand-in: the bits
/// of the same steps on the CPU, and nothing lost when a step is refused.

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
  ExpectTheBitsOfTheCpuForAnyNumberOfRanks();
}

TEST_F(NcclStep, HasTheBitsOfTheCpuWhereMomentumIsCorrected) {
  ExpectTheBitsOfTheCpuWithMomentum();
}

TEST_F(NcclStep, FollowsAKThatWarmsUp) {
  StepRun run;
  run.steps = 4;
  run.ks = [](int step) {
    return std::vector<std::int64_t>{120 >> step, 0, 1, step < 2 ? 150 : 7};
  };
  ExpectTheBitsOfTheCpu<BFloat16>(3, run);
}

TEST_F(NcclStep, AGradientThatIsNotFiniteIsToldToAllAndNothingIsLost) {
  for (const int bad : {0, 2}) {
    StepRun run;
    run.alter = [bad](int rank, int step, std::vector<float>* first, std::vector<float>* second) {
      if (step != 1 || rank < bad) return;
      (*first)[3] = rank == bad ? kInf : (*first)[3];
      (*second)[5] = kNan;
    };
    ExpectTheBitsOfTheCpu<BFloat16>(3, run);
  }
}

TEST_F(NcclStep, ASumThatOverflowsIsToldToAllAndNothingIsLost) {
  StepRun run;
  run.output_scale = 1;
  run.alter = [](int, int step, std::vector<float>* first, std::vector<float>*) {
    if (step == 1) (*first)[3] = FLT_MAX;
  };
  ExpectTheBitsOfTheCpu<float>(4, run);
}

TEST_F(NcclStep, WhatANarrowGradientCannotHoldIsToldToAllAndNothingIsLost) {
  StepRun run;
  run.output_scale = 1;
  run.alter = [](int, int step, std::vector<float>*, std::vector<float>* second) {
    if (step == 1) (*second)[5] = 40000;
  };
  const auto on_device = RunSteps<Float16>(3, StepSpecOf(kGpu), run);
  const auto on_cpu = RunSteps<Float16>(3, StepSpecOf({}), run);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_NE(on_device[rank][1].refused.find("overflows"), std::string::npos);
    for (int step = 0; step < run.steps; ++step) {
      EXPECT_EQ(on_device[rank][step].refused.empty(), step != 1);
      EXPECT_TRUE(on_device[rank][step].residual == on_cpu[rank][step].residual);
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
  const BucketSpec step = StepSpecOf(kGpu);
  EXPECT_EQ(RouteOn(3, step), Route::kRounds);
  EXPECT_EQ(RouteOn(1, step), Route::kCalls);
  EXPECT_EQ(RouteOn(3, StepSpecOf({})), Route::kCalls);
  EXPECT_EQ(RouteOn(3, StepSpecOf(kGpu, "sidco")), Route::kRounds);
  BucketSpec packed = step, narrow = step, other = step;
  packed.wire.packed = true;
  EXPECT_EQ(RouteOn(3, packed), Route::kRounds);
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
  const double before = SteadySeconds();
  const auto seen = RunSteps<float>(kRanks, StepSpecOf(kGpu, "top_k"), run);
  const double after = SteadySeconds();
  for (const auto& of_rank : seen) {
    double last = before;
    for (const SeenStep& step : of_rank) {
      const BucketStats& stats = step.stats;
      EXPECT_EQ(stats.asked, 271);
      EXPECT_EQ(stats.selected, 271);
      EXPECT_EQ(stats.reduced, 271);
      ASSERT_EQ(stats.rounds.size(), 3u);  // two of them compare headers
      const RoundTimes& messages = stats.rounds[2];
      EXPECT_EQ(messages.name, "gtopk, over NCCL");
      // Two rounds of 320 entries, as 271 are rounded up, and a header of 32 bytes each.
      EXPECT_EQ(messages.bytes_sent, 2 * (32 + 8 * 320));
      EXPECT_EQ(messages.bytes_received, messages.bytes_sent);
      EXPECT_GT(stats.bytes_sent, messages.bytes_sent);  // with the prior comparison
      const double times[] = {
          last,           stats.select_begin, stats.select_end,   stats.exchange_begin,
          messages.begin, messages.end,       stats.settle_begin, stats.exchange_end,
          after};
      for (std::size_t i = 1; i < std::size(times); ++i) EXPECT_LE(times[i - 1], times[i]) << i;
      last = stats.exchange_end;
    }
  }
}

}  // namespace
}  // namespace hvd_sparse
