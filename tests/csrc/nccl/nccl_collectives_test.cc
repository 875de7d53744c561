/// Collectives whose blocks go from device to device, over NCCL's stand-in: the bits of the same
/// steps by the CPUs, and nothing lost when a step is refused.

#include <gtest/gtest.h>

#include <cfloat>
#include <string>
#include <vector>

#include "tests/csrc/cuda/step_ranks.h"
#include "tests/csrc/nccl/with_fake_nccl.h"

namespace hvd_sparse {
namespace {

class NcclCollective : public WithFakeNccl, public testing::WithParamInterface<const char*> {
 protected:
  template <typename T>
  static void ExpectTheBitsOfTheCpu(int size, const StepRun& run,
                                    const std::string& sparsifier = "gaussian") {
    SCOPED_TRACE(size);
    ExpectSameBits(RunSteps<T>(size, StepSpecOf(kGpu, sparsifier, GetParam()), run),
                   RunSteps<T>(size, StepSpecOf({}, sparsifier, GetParam()), run));
  }
};

INSTANTIATE_TEST_SUITE_P(Of, NcclCollective, testing::Values("allgather", "gtopk", "shard_topk"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(NcclCollective, HasTheBitsOfTheCpuForAnyNumberOfRanks) {
  for (const int size : {2, 3, 4, 5, 8, 17}) {
    StepRun run;
    run.steps = size > 5 ? 2 : 3;
    size % 2 == 0 ? ExpectTheBitsOfTheCpu<float>(size, run)
                  : ExpectTheBitsOfTheCpu<BFloat16>(size, run);
  }
}

/// More ranks than a rank sends to at once.
TEST_P(NcclCollective, HasTheBitsOfTheCpuForManyRanks) {
  StepRun run;
  run.steps = 1;
  ExpectTheBitsOfTheCpu<float>(35, run);
}

TEST_P(NcclCollective, FollowsAKThatChanges) {
  StepRun run;
  run.steps = 5;
  run.ks = [](int step) {
    return std::vector<std::int64_t>{step == 3 ? 120 : 120 >> step, 0, 1, step < 2 ? 7 : 150};
  };
  for (const int size : {3, 4}) ExpectTheBitsOfTheCpu<BFloat16>(size, run);
}

/// In step 1 a rank has nothing to send, in step 2 none has, until values of before are left over.
TEST_P(NcclCollective, TakesBlocksWithoutEntries) {
  StepRun run;
  run.steps = 4;
  run.alter = [](int rank, int step, std::vector<float>* first, std::vector<float>* second) {
    if (step == 1 ? rank != 0 : step != 2) return;
    std::fill(first->begin(), first->end(), 0.0f);
    std::fill(second->begin(), second->end(), 0.0f);
  };
  for (const int size : {2, 3, 5}) {
    ExpectTheBitsOfTheCpu<float>(size, run, "top_k");
    ExpectTheBitsOfTheCpu<float>(size, run, "hard_threshold");
  }
}

TEST_P(NcclCollective, HasTheBitsOfTheCpuWhereMomentumIsCorrected) {
  StepRun run;
  run.steps = 4;
  run.momentum = 0.9f;
  run.alter = [](int rank, int step, std::vector<float>* first, std::vector<float>*) {
    if (step == 2 && rank == 1) (*first)[3] = kInf;  // all ranks refuse this step
  };
  for (const int size : {2, 3, 6}) ExpectTheBitsOfTheCpu<BFloat16>(size, run);
}

TEST_P(NcclCollective, AGradientThatIsNotFiniteIsToldToAllAndNothingIsLost) {
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

TEST_P(NcclCollective, ASumThatOverflowsIsToldToAllAndNothingIsLost) {
  for (const int size : {2, 3, 4}) {
    StepRun run;
    run.output_scale = 1;
    run.alter = [](int, int step, std::vector<float>* first, std::vector<float>*) {
      if (step == 1) (*first)[3] = FLT_MAX;
    };
    ExpectTheBitsOfTheCpu<float>(size, run);
  }
}

TEST_P(NcclCollective, WhatANarrowGradientCannotHoldIsToldToAllAndNothingIsLost) {
  StepRun run;
  run.output_scale = 1;
  run.alter = [](int, int step, std::vector<float>*, std::vector<float>* second) {
    if (step == 1) (*second)[5] = 40000;
  };
  ExpectTheBitsOfTheCpu<Float16>(3, run);
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
  const BucketSpec rounds = StepSpecOf(kGpu);
  EXPECT_EQ(RouteOn(3, rounds), Route::kRounds);
  EXPECT_EQ(RouteOn(1, rounds), Route::kCalls);
  EXPECT_EQ(RouteOn(3, StepSpecOf({})), Route::kCalls);
  EXPECT_EQ(RouteOn(3, StepSpecOf(kGpu, "sidco", "allgather")), Route::kRounds);
  EXPECT_EQ(RouteOn(3, StepSpecOf(kGpu, "top_k", "shard_topk")), Route::kRounds);
  EXPECT_EQ(RouteOn(3, StepSpecOf(kGpu, "top_k", "recursive_doubling")), Route::kCalls);
  BucketSpec packed = rounds, narrow = rounds, by_cpus = rounds;
  packed.wire.packed = true;
  EXPECT_EQ(RouteOn(3, packed), Route::kCalls);
  narrow.wire.values = Values::kBFloat16;
  EXPECT_EQ(RouteOn(3, narrow), Route::kCalls);
  by_cpus.by_devices = false;
  EXPECT_EQ(RouteOn(3, by_cpus), Route::kCalls);
  ::setenv("HVD_SPARSE_NCCL", "0", 1);
  EXPECT_EQ(RouteOn(3, rounds), Route::kCalls);
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

TEST_F(NcclRoute, MessagesAreAsLongAsTheirEntriesAreMany) {
  StepRun run;
  run.steps = 1;
  for (const auto& of_rank : RunSteps<float>(3, StepSpecOf(kGpu, "top_k", "allgather"), run)) {
    const RoundTimes& messages = of_rank[0].stats.rounds.back();
    EXPECT_EQ(messages.name, "allgather, over NCCL");
    EXPECT_EQ(messages.bytes_sent, 2 * 8 * 271);
    EXPECT_EQ(messages.bytes_received, messages.bytes_sent);
  }
  std::int64_t sent = 0, received = 0, selected = 0, reduced = 0;
  for (const auto& of_rank : RunSteps<float>(3, StepSpecOf(kGpu, "top_k", "shard_topk"), run)) {
    const BucketStats& stats = of_rank[0].stats;
    for (const RoundTimes& round : stats.rounds) {
      if (round.name.find("over NCCL") == std::string::npos) continue;
      sent += round.bytes_sent;
      received += round.bytes_received;
    }
    selected += stats.selected;  // by each rank, and as an owner
    reduced = stats.reduced;
  }
  EXPECT_EQ(sent, received);
  EXPECT_EQ(sent, 8 * (selected - reduced) + 2 * 8 * reduced);
}

}  // namespace
}  // namespace hvd_sparse
