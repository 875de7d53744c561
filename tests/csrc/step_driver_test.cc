/// Steps whose ops come in any order, from several threads.

#include "csrc/exchange/step_driver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <thread>

#include "csrc/base/process.h"
#include "csrc/kernels/half.h"
#include "tests/csrc/driven_ranks.h"

namespace hvd_sparse {
namespace {

class StepDriverOfBuckets : public testing::TestWithParam<Layout> {};

TEST_P(StepDriverOfBuckets, OpsThatComeInAnyOrderGiveTheSameSums) {
  OnRanks(3, GetParam(), [](DrivenRank& rank) {
    std::vector<int> order = {0, 1, 2, 3};
    for (int step = 0; step < 24; ++step) {
      rank.Fill();
      rank.Begin();
      std::vector<std::future<void>> done;
      for (const int op : order) done.push_back(rank.Launch(op));
      for (auto& one : done) one.get();
      rank.End();
      std::int64_t applied = 0;
      for (const auto& gradient : rank.gradients) {
        applied +=
            std::count_if(gradient.begin(), gradient.end(), [](float value) { return value != 0; });
      }
      ASSERT_EQ(applied, step == 0 ? kNumel * kOps : kOps);
      // The order differs between steps and between ranks.
      for (int i = 0; i <= rank.exchange.Rank(); ++i)
        std::next_permutation(order.begin(), order.end());
    }
    ASSERT_EQ(rank.driver->engine().steps(), 24);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, StepDriverOfBuckets,
                         testing::Values(kOneByOne, Layout{4}, Layout{1, 2, 1}, Layout{2, 2}));

TEST(StepDriver, BucketsStartInTheOrderThatWasAskedFor) {
  OnRanks(2, {1, 2, 1}, [](DrivenRank& rank) {
    rank.driver->engine().Reorder({2, 0, 1});
    for (const std::vector<int>& last_op : {std::vector<int>{3}, {0, 3}, {1, 2, 0, 3}}) {
      // Only bucket 2, of op 3, holds up the others; its exchange is the first to begin.
      rank.Begin();
      std::vector<std::future<void>> done;
      for (int op = 0; op < kOps; ++op) {
        if (std::count(last_op.begin(), last_op.end(), op) == 0) done.push_back(rank.Launch(op));
      }
      for (const int op : last_op) done.push_back(rank.Launch(op));
      for (auto& one : done) one.get();
      rank.End();
      const double begun = rank.exchange.Stats(2).select_begin;
      ASSERT_LE(begun, rank.exchange.Stats(0).select_begin);
      ASSERT_LE(rank.exchange.Stats(0).select_begin, rank.exchange.Stats(1).select_begin);
    }
    ASSERT_THROW(rank.driver->engine().Reorder({0, 1, 1}), Error);
    ASSERT_THROW(rank.driver->engine().Reorder({0, 1}), Error);
  });
}

TEST(StepDriver, ADriverGoesOnWhereAnotherOneWas) {
  OnRanks(2, {4}, [](DrivenRank& rank) {
    rank.driver->engine().ContinueAfter(7);  // past the first step, which sends everything
    rank.residual.assign(rank.residual.size(), 2.0f);
    rank.Fill();
    rank.Begin();
    std::vector<std::future<void>> done;
    for (int op = 0; op < kOps; ++op) done.push_back(rank.Launch(op));
    for (auto& one : done) one.get();
    rank.End();
    ASSERT_EQ(rank.driver->engine().steps(), 8);
    ASSERT_EQ(rank.Unsent(), 3.0 * (kNumel - 1) * kOps);
  });
}

TEST(StepDriver, AResidualThatWasLoadedIsSentWithItsGradient) {
  auto world = std::make_shared<LoopbackWorld>(1);
  DrivenRank rank(world, 0, {-4});
  for (int step = 0; step < 2; ++step) {
    rank.Fill();
    rank.Begin();
    for (int op = 0; op < kOps; ++op) ASSERT_TRUE(rank.Hand(op).sent_dense);
    rank.End();
    ASSERT_EQ(rank.Gradient(2)[9], step == 0 ? 1.0f : 6.0f);
    rank.residual.assign(rank.residual.size(), 5.0f);
    rank.driver->engine().ContinueAfter(1);
  }
  EXPECT_THROW(rank.driver->engine().ContinueAfter(-1), Error);
}

TEST(StepDriver, SumsMatterUntilNothingIsUnsent) {
  auto world = std::make_shared<LoopbackWorld>(1);
  DrivenRank rank(world, 0, {-4});
  for (const bool matters : {true, false, true, false}) {
    EXPECT_EQ(rank.driver->Begin({rank.residual, rank.states}), matters);
    for (int op = 0; op < kOps; ++op) rank.Hand(op);
    rank.End();
    if (!matters) rank.driver->engine().ContinueAfter(1);
  }
}

TEST(StepDriver, WhatANarrowTypeRoundsAwayWaitsUntilAllArePendingAgain) {
  constexpr float kTiny = 0x1p-20f;  // next to 1 too small for float16
  auto world = std::make_shared<LoopbackWorld>(1);
  DrivenRank rank(world, 0, {-4});
  std::vector<Float16> halves(kNumel, Narrow<Float16>(1));
  float& left = rank.residual[2 * kNumel + 5];
  left = kTiny;
  rank.residual[5] = 3;
  const auto step = [&](float decay, bool narrow) {
    rank.Fill();
    const bool matters = rank.driver->Begin({rank.residual, rank.states, decay});
    for (int op = 0; op < kOps; ++op) {
      if (narrow && op == 2) {
        rank.driver->Launch(op, {{halves.data(), kNumel, DType::kFloat16}}, nullptr);
      } else {
        rank.Hand(op);
      }
    }
    rank.End();
    return matters;
  };
  EXPECT_TRUE(step(1, true));
  EXPECT_EQ(rank.Gradient(0)[5], 4.0f);
  EXPECT_EQ(rank.Unsent(), kTiny);
  EXPECT_FALSE(step(0.5f, true));  // the rate has changed
  EXPECT_EQ(left, kTiny / 2);
  rank.driver->engine().ContinueAfter(2);
  EXPECT_TRUE(step(1, false));
  EXPECT_EQ(rank.Gradient(2)[5], 1 + kTiny / 2);
  EXPECT_EQ(rank.Unsent(), 0);
  EXPECT_FALSE(step(1, false));
}

TEST(StepDriver, ManyThreadsMayHandOver) {
  OnRanks(2, {1, 3}, [](DrivenRank& rank) {
    for (int step = 0; step < 20; ++step) {
      rank.Begin();
      std::vector<std::thread> threads;
      for (int op = kOps - 1; op >= 0; --op) {
        threads.emplace_back([&rank, op] { rank.Launch(op).get(); });
      }
      for (auto& thread : threads) thread.join();
      rank.End();
    }
    ASSERT_EQ(rank.driver->engine().steps(), 20);
  });
}

TEST(StepDriver, NoResultIsThereBeforeAllAre) {
  OnRanks(2, kOneByOne, [](DrivenRank& rank) {
    rank.Begin();
    std::vector<std::future<void>> done;
    for (int op = 0; op + 1 < kOps; ++op) done.push_back(rank.Launch(op));
    for (auto& one : done) {
      ASSERT_EQ(one.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
    }
    rank.Launch(kOps - 1).get();
    for (auto& one : done) one.get();
    rank.End();
  });
}

TEST(StepDriver, AnOpThatIsSentDenseIsHandedBackAtOnceWithWhatItsResidualHeld) {
  OnRanks(2, {1, -2, 1}, [](DrivenRank& rank) {
    std::fill(rank.residual.begin(), rank.residual.end(), 2.0f);
    rank.Fill();
    rank.Begin();
    DrivenRank::Handed first = rank.Hand(1);
    ASSERT_TRUE(first.sent_dense);
    ASSERT_EQ(rank.Gradient(1), std::vector<float>(kNumel, 3.0f));
    ASSERT_EQ(rank.residual[kNumel], 2.0f);  // until the step has ended
    ASSERT_TRUE(rank.Hand(2).sent_dense);
    for (const int op : {1, 2}) rank.Sum(op);
    std::future<void> zero = rank.Launch(0), three = rank.Launch(3);
    zero.get();
    three.get();
    rank.End();
    ASSERT_TRUE(std::all_of(rank.residual.begin() + kNumel, rank.residual.begin() + 3 * kNumel,
                            [](float value) { return value == 0; }));
    // It joined once: the next step passes gradients unchanged.
    rank.Fill();
    rank.Begin();
    ASSERT_TRUE(rank.Hand(1).sent_dense);
    ASSERT_EQ(rank.Gradient(1), std::vector<float>(kNumel, 1.0f));
  });
}

TEST(StepDriver, AStepThatNeverEndsLeavesResidualsOfOpsSentDenseAlone) {
  OnRanks(1, {-4}, [](DrivenRank& rank) {
    std::fill(rank.residual.begin(), rank.residual.end(), 2.0f);
    for (int attempt = 0; attempt < 2; ++attempt) {
      rank.Fill();
      rank.Begin();
      ASSERT_TRUE(rank.Hand(0).sent_dense);
      ASSERT_EQ(rank.Gradient(0), std::vector<float>(kNumel, 3.0f));
      ASSERT_EQ(rank.Unsent(), 2.0 * kNumel * kOps);
    }
  });
}

TEST(StepDriver, BucketsThatAreReplacedLoseNothing) {
  OnRanks(3, {-4}, [](DrivenRank& rank) {
    const std::vector<Layout> layouts = {{4}, {-1, 3}, kOneByOne, {-4}, {2, -2}};
    double applied = 0;
    std::int64_t steps = 0;
    for (const Layout& layout : layouts) {
      for (int step = 0; step < 3; ++step, ++steps) {
        rank.Fill();
        rank.Begin();
        std::vector<std::future<void>> done;
        for (int op = 0; op < kOps; ++op) {
          DrivenRank::Handed handed = rank.Hand(op);
          if (!handed.sent_dense) {
            done.push_back(std::move(handed.done));
            continue;
          }
          // Every rank gives the same values, so this is the sum over the ranks.
          for (float& value : rank.Gradient(op)) value *= 3;
          rank.Sum(op);
        }
        for (auto& one : done) one.get();
        rank.End();
        for (const auto& gradient : rank.gradients) {
          for (const float value : gradient) applied += value;
        }
      }
      rank.exchange.ClearBuckets();
      rank.driver->engine().Replace(rank.Buckets(layout));
    }
    ASSERT_EQ(rank.driver->engine().steps(), steps);
    ASSERT_EQ(applied + 3 * rank.Unsent(), 3.0 * static_cast<double>(steps) * kNumel * kOps);
  });
}

TEST(StepDriver, WhoeverWantsToKnowIsToldWhenOpsCame) {
  auto world = std::make_shared<LoopbackWorld>(1);
  std::vector<StepEnd> seen;
  StepDriver::Hooks hooks;
  hooks.step_ended = [&seen](const StepEnd& ended) { seen.push_back(ended); };
  DrivenRank rank(world, 0, {-4}, hooks);
  rank.driver->engine().ContinueAfter(0, /*pending=*/false);  // ops may be missing
  for (int step = 0; step < 3; ++step) {
    rank.Begin();
    for (const int op : {2, 0, 3}) rank.Hand(op);
    rank.End();
    rank.driver->engine().TimeSteps(step == 0);
  }
  ASSERT_EQ(seen.size(), 3u);
  const auto expect_order = [](const std::vector<double>& of_ops) {
    ASSERT_EQ(of_ops.size(), static_cast<std::size_t>(kOps));
    EXPECT_EQ(of_ops[2], 0);
    EXPECT_TRUE(std::isnan(of_ops[1]));
    EXPECT_LE(of_ops[0], of_ops[3]);
  };
  for (const StepEnd& ended : seen) expect_order(ended.came);
  EXPECT_EQ(seen[0].reading, nullptr);
  EXPECT_EQ(seen[2].reading, nullptr);
  ASSERT_TRUE(seen[1].reading->Passed());
  const StepTimes times = seen[1].reading->Times();
  expect_order(times.ready);
  EXPECT_GT(times.forward, 0);
  EXPECT_LE(times.forward + times.ready[3], times.step);
}

TEST(StepDriver, ATimedStepBeginsWhereTheOneBeforeHasEnded) {
  auto world = std::make_shared<LoopbackWorld>(1);
  double sum = 0;
  StepDriver::Hooks hooks;
  hooks.step_ended = [&sum](const StepEnd& ended) { sum += ended.reading->Times().step; };
  DrivenRank rank(world, 0, {-4}, hooks);
  rank.driver->engine().ContinueAfter(0, /*pending=*/false);  // ops may be missing
  const double begin = SteadySeconds();
  rank.driver->engine().TimeSteps(true);
  for (int step = 0; step < 100; ++step) {
    rank.Begin();
    rank.Hand(2);
    rank.End();
    rank.driver->engine().TimeSteps(true);
  }
  EXPECT_LE(sum, SteadySeconds() - begin);
}

TEST(StepDriver, AStepWithoutOpsIsAllForward) {
  auto world = std::make_shared<LoopbackWorld>(1);
  StepTimes times;
  StepDriver::Hooks hooks;
  hooks.step_ended = [&times](const StepEnd& ended) { times = ended.reading->Times(); };
  DrivenRank rank(world, 0, {-4}, hooks);
  rank.driver->engine().ContinueAfter(0, /*pending=*/false);  // ops may be missing
  rank.driver->engine().TimeSteps(true);
  rank.Begin();
  rank.End();
  EXPECT_GT(times.step, 0);
  EXPECT_EQ(times.forward, times.step);
  EXPECT_TRUE(std::all_of(times.ready.begin(), times.ready.end(),
                          [](double ready) { return std::isnan(ready); }));
}

}  // namespace
}  // namespace hvd_sparse
