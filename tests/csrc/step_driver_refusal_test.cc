/// Steps of a driver that are refused or measured, have velocities, or do not end.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/exchange/step_driver.h"
#include "tests/csrc/driven_ranks.h"
#include "tests/csrc/meeting.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

TEST(StepDriver, ABadGradientIsRefusedOnAllRanksAndTheNextStepIsNormal) {
  OnRanks(3, kOneByOne, [](DrivenRank& rank) {
    for (int step = 0; step < 3; ++step) {
      rank.Fill();
      if (step == 1 && rank.exchange.Rank() == 1) {
        rank.Gradient(2)[5] = std::numeric_limits<float>::quiet_NaN();
      }
      rank.Begin();
      std::vector<std::future<void>> done;
      for (int op = 0; op < kOps; ++op) done.push_back(rank.Launch(op));
      for (auto& one : done) {
        if (step == 1) {
          ASSERT_EQ(KindOf(std::move(one)), ErrorKind::kNonFinite);
        } else {
          one.get();
        }
      }
      if (step != 1) rank.End();
    }
  });
}

TEST(StepDriver, ABadGradientMayMarkTheStepOnAllRanksInstead) {
  auto world = std::make_shared<LoopbackWorld>(2);
  std::vector<std::thread> threads;
  for (int number = 0; number < 2; ++number) {
    threads.emplace_back([&world, number] {
      DrivenRank rank(world, number, {2, 2}, {}, {NonFinite::kMark});
      for (int step = 0; step < 3; ++step) {
        rank.Fill();
        if (step == 1 && number == 1) rank.Gradient(3)[5] = std::numeric_limits<float>::infinity();
        rank.Begin();
        std::vector<std::future<void>> done;
        for (int op = 0; op < kOps; ++op) done.push_back(rank.Launch(op));
        for (auto& one : done) one.get();
        rank.End();
        for (const auto& gradient : rank.gradients) {
          ASSERT_EQ(std::isnan(gradient[0]), step == 1);
        }
      }
      ASSERT_EQ(rank.driver->engine().steps(), 3);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(StepDriver, ASumOfOthersThatIsNotFiniteIsRefusedOnAllRanks) {
  for (const NonFinite non_finite : {NonFinite::kRefuse, NonFinite::kMark}) {
    OnRanks(2, {2, -2},
            [](DrivenRank& rank) {
              std::fill(rank.residual.begin(), rank.residual.end(), 2.0f);
              for (int step = 0; step < 3; ++step) {
                rank.Fill();
                rank.Begin();
                std::vector<std::future<void>> done;
                for (const int op : {0, 1}) done.push_back(rank.Launch(op));
                for (const int op : {2, 3}) rank.Hand(op);
                rank.Sum(2);
                ASSERT_EQ(done[0].wait_for(std::chrono::milliseconds(20)),
                          std::future_status::timeout);
                if (step == 1) rank.Gradient(3)[7] = std::numeric_limits<float>::infinity();
                rank.Sum(3);
                const bool marks = rank.rules.non_finite == NonFinite::kMark;
                for (auto& one : done) {
                  if (step == 1 && !marks) {
                    ASSERT_EQ(KindOf(std::move(one)), ErrorKind::kNonFinite);
                  } else {
                    one.get();
                  }
                }
                ASSERT_EQ(std::isnan(rank.Gradient(0)[0]), step == 1 && marks);
                if (step != 1 || marks) rank.End();
                // The first step sends everything; the second one is refused, and the residual
                // keeps it.
                if (step == 1) {
                  ASSERT_EQ(rank.Unsent(), 2.0 * kNumel);
                }
              }
            },
            {non_finite});
  }
}

TEST(StepDriver, WhereAllIsSentDenseAStepThatIsNotFiniteEndsWithAnError) {
  auto world = std::make_shared<LoopbackWorld>(1);
  DrivenRank rank(world, 0, {-4});
  std::fill(rank.residual.begin(), rank.residual.end(), 2.0f);
  for (const bool bad : {true, false}) {
    rank.Fill();
    rank.Begin();
    for (int op = 0; op < kOps; ++op) {
      rank.Hand(op);
      ASSERT_EQ(rank.Gradient(op)[0], 3.0f);
      if (bad) rank.Gradient(op)[0] = std::numeric_limits<float>::quiet_NaN();
      rank.Sum(op);
    }
    if (bad) {
      EXPECT_THROW(rank.End(), Error);
    } else {
      rank.End();
    }
    EXPECT_EQ(rank.Unsent(), bad ? 2.0 * kNumel * kOps : 0.0);
  }
  rank.exchange.Check();
  EXPECT_EQ(rank.driver->engine().steps(), 2);
}

TEST(StepDriver, OfARefusedStepTheResidualHasDecayedAllTheSame) {
  auto world = std::make_shared<LoopbackWorld>(1);
  DrivenRank rank(world, 0, {-4}, {}, {NonFinite::kMark});
  std::fill(rank.residual.begin(), rank.residual.end(), 2.0f);
  rank.driver->Begin({rank.residual, rank.states, 0.5f});
  for (int op = 0; op < kOps; ++op) {
    rank.Hand(op);
    EXPECT_EQ(rank.Gradient(op)[0], 2.0f);
    rank.driver->SummedAs(false);
  }
  rank.End();
  EXPECT_EQ(rank.Unsent(), 1.0 * kNumel * kOps);
}

TEST(StepDriver, AnExchangeThatEndsEndsTheWaitForSums) {
  Meeting begun(2);
  OnRanks(2, {2, -2}, [&begun](DrivenRank& rank) {
    rank.BeginTogether(&begun);
    std::vector<std::future<void>> done;
    for (const int op : {0, 1}) done.push_back(rank.Launch(op));
    if (rank.exchange.Rank() == 0) rank.driver->engine().Cancel("its sums will not come");
    for (auto& one : done) ASSERT_EQ(KindOf(std::move(one)), ErrorKind::kExchangeFailed);
  });
}

TEST(StepDriver, WhatIsSentDenseTakesItsVelocityAlongAndARefusedStepLeavesIt) {
  StepRules rules;
  rules.has_velocity = true;
  OnRanks(
      2, {1, -3},
      [](DrivenRank& rank) {
        float expected = 0;  // for a gradient of ones
        ASSERT_EQ(rank.driver->engine().Room(), 3 * kNumel);
        for (int step = 0; step < 4; ++step) {
          rank.Fill();
          rank.Begin();
          std::future<void> zero = rank.Launch(0);
          for (const int op : {1, 2, 3}) {
            const auto own = static_cast<float>(op);
            rank.Gradient(op).assign(kNumel, own);
            rank.Hand(op);
            ASSERT_EQ(rank.Gradient(op)[0], own * (0.5f * expected + 1));
            if (step == 2) rank.Gradient(op)[0] = std::numeric_limits<float>::quiet_NaN();
            rank.Sum(op);
          }
          if (step == 2) {
            ASSERT_EQ(KindOf(std::move(zero)), ErrorKind::kNonFinite);
          } else {
            zero.get();
            rank.End();
            expected = 0.5f * expected + 1;
          }
          for (const int op : {1, 2, 3}) {
            const auto begin = rank.velocity.begin() + op * kNumel;
            ASSERT_EQ(std::vector<float>(begin, begin + kNumel),
                      std::vector<float>(kNumel, static_cast<float>(op) * expected));
          }
        }
        // Velocities of exchanged ops go on in a refused step, and are masked in others: all
        // entries in the first step, and then one.
        ASSERT_EQ(rank.velocity[kNumel - 1], 1.75f);
        ASSERT_TRUE(std::any_of(rank.velocity.begin(), rank.velocity.begin() + kNumel,
                                [](float value) { return value == 0; }));
      },
      rules);
}

TEST(StepDriver, VelocitiesNeedRoomForThoseSentDense) {
  StepRules rules;
  rules.has_velocity = true;
  OnRanks(
      1, {1, -3},
      [](DrivenRank& rank) {
        const auto begin = [&] { rank.driver->Begin(rank.Memory()); };
        rank.room.resize(5);
        EXPECT_TRUE(Says(Thrown(begin), "room must have 192 elements, got 5"));
        rank.exchange.ClearBuckets();
        rank.driver->engine().Replace(rank.Buckets({4}));
        EXPECT_TRUE(Says(Thrown(begin), "room must have 0 elements, got 5"));
        rank.room.clear();
        EXPECT_NO_THROW(begin());
      },
      rules);
  OnRanks(1, {1, -3}, [](DrivenRank& rank) { EXPECT_EQ(rank.driver->engine().Room(), 0); });
}

TEST(StepDriver, AStepIsMeasuredWhenThatWasAskedFor) {
  StepRules rules;
  rules.measure_every = 2;
  rules.has_velocity = true;
  auto world = std::make_shared<LoopbackWorld>(1);
  std::vector<StepSample> seen;
  StepDriver::Hooks hooks;
  hooks.measured = [&seen](const std::vector<StepSample>& samples) {
    seen.insert(seen.end(), samples.begin(), samples.end());
  };
  DrivenRank rank(world, 0, {1, 1, -2}, hooks, rules);
  for (int step = 0; step < 3; ++step) {
    rank.Fill();
    std::vector<float> unsent = rank.residual;
    for (std::size_t i = 0; i < unsent.size(); ++i) unsent[i] += 1 + 0.5f * rank.velocity[i];
    rank.Begin();
    std::vector<std::future<void>> done;
    for (const int op : {0, 1}) done.push_back(rank.Launch(op));
    for (const int op : {2, 3}) {
      rank.Hand(op);
      rank.Sum(op);
    }
    for (auto& one : done) one.get();
    rank.End();
    ASSERT_EQ(seen.size(), step == 2 ? 4u : 2u);
    if (step == 1) continue;
    const StepSample& last = seen.back();
    EXPECT_EQ(last.bucket, 1u);
    EXPECT_EQ(last.step, step);
    const auto at = static_cast<std::ptrdiff_t>(kNumel);
    EXPECT_EQ(last.accumulated, std::vector<float>(unsent.begin() + at, unsent.begin() + 2 * at));
    EXPECT_EQ(last.applied, rank.Gradient(1));
    for (std::size_t i = 0; i < last.left.size(); ++i) {
      EXPECT_EQ(last.left[i] + last.applied[i], last.accumulated[i]);
    }
  }
}

TEST(StepDriver, WhatHasNoUnitsOfSelectionMustBeSentDense) {
  auto world = std::make_shared<LoopbackWorld>(1);
  Exchange exchange(std::make_unique<LoopbackCommunicator>(world, 0), SelectOn::kCaller);
  const DrivenBucket dense{DrivenBucket::kDense, 1, 1, {}, 1}, sparse{0, 1, 1, {{0, {1}}}, 1};
  EXPECT_NO_THROW(StepDriver(&exchange, {{kNumel, 0}}, {dense}));
  EXPECT_THROW(StepDriver(&exchange, {{kNumel, 0}}, {sparse}), Error);
}

TEST(StepDriver, CancellingEndsTheStepOnAllRanks) {
  Meeting begun(3);
  OnRanks(3, kOneByOne, [&begun](DrivenRank& rank) {
    rank.BeginTogether(&begun);
    std::vector<std::future<void>> done;
    const int count = rank.exchange.Rank() == 0 ? 2 : kOps;
    for (int op = 0; op < count; ++op) done.push_back(rank.Launch(op));
    if (rank.exchange.Rank() == 0) rank.driver->engine().Cancel("a test wants it");
    for (auto& one : done) ASSERT_EQ(KindOf(std::move(one)), ErrorKind::kExchangeFailed);
    // An op whose predecessors failed before it was launched has nobody to wait for.
    ASSERT_EQ(KindOf(rank.Launch(2)), ErrorKind::kExchangeFailed);
    ASSERT_EQ(KindOf(rank.Launch(0)), ErrorKind::kExchangeFailed);
  });
}

TEST(StepDriver, CancellingBetweenStepsChangesNothing) {
  OnRanks(2, kOneByOne, [](DrivenRank& rank) {
    rank.driver->engine().Cancel("nobody waits");
    rank.Begin();
    std::vector<std::future<void>> done;
    for (int op = 0; op < kOps; ++op) done.push_back(rank.Launch(op));
    for (auto& one : done) one.get();
  });
}

TEST(StepDriver, AnOpThatWillNotComeEndsTheExchange) {
  OnRanks(2, kOneByOne, [](DrivenRank& rank) {
    if (rank.exchange.Rank() == 0) return rank.driver->engine().Fail("an op was lost");
    const Error error = Thrown([&] {  // perhaps when the step begins
      rank.Begin();
      rank.Launch(0).get();
    });
    ASSERT_EQ(error.kind(), ErrorKind::kExchangeFailed);
  });
}

TEST(StepDriver, AnOpThatComesTwiceEndsTheExchange) {
  OnRanks(1, kOneByOne, [](DrivenRank& rank) {
    rank.Begin();
    std::future<void> first = rank.Launch(2);
    ASSERT_EQ(Thrown([&] { rank.Launch(2); }).kind(), ErrorKind::kExchangeFailed);
    ASSERT_EQ(KindOf(std::move(first)), ErrorKind::kExchangeFailed);
  });
}

TEST(StepDriver, AnOpThatIsSentDenseTwiceEndsTheExchange) {
  for (const Layout& layout : {Layout{-4}, Layout{2, -2}}) {
    OnRanks(1, layout, [](DrivenRank& rank) {
      for (int step = 0; step < 2; ++step) {  // one launch in each is normal
        rank.Begin();
        ASSERT_TRUE(rank.Hand(3).sent_dense);
      }
      ASSERT_EQ(Thrown([&] { rank.Hand(3); }).kind(), ErrorKind::kExchangeFailed);
      ASSERT_THROW(rank.exchange.Check(), Error);
    });
  }
}

TEST(StepDriver, AStepThatBeginsAmidAnotherEndsTheExchange) {
  OnRanks(1, kOneByOne, [](DrivenRank& rank) {
    rank.Begin();
    std::future<void> first = rank.Launch(2);
    EXPECT_THROW(rank.Begin(), Error);
    ASSERT_EQ(KindOf(std::move(first)), ErrorKind::kExchangeFailed);
  });
}

TEST(StepDriver, WhatDoesNotFitIsRefusedAndNothingHasHappened) {
  OnRanks(1, kOneByOne, [](DrivenRank& rank) {
    EXPECT_THROW(rank.Launch(0), Error);  // before its step
    EXPECT_THROW(rank.driver->Begin({{rank.residual.data(), 3}, rank.states}), Error);
    EXPECT_THROW(rank.driver->Begin({rank.residual, {rank.states.data(), 3}}), Error);
    EXPECT_THROW(rank.driver->engine().Replace(rank.Buckets({3})), Error);
    EXPECT_THROW(rank.driver->Launch(kOps, {}, nullptr), Error);
    EXPECT_THROW(rank.driver->Launch(0, {}, nullptr), Error);
    const Origin elsewhere{{DeviceType::kCuda, 0}, 1};
    EXPECT_THROW(rank.driver->Begin({rank.residual, rank.states, 1, {}, elsewhere}), Error);
    rank.Begin();
    const std::vector<GradView> gradient = {{rank.Gradient(0).data(), kNumel, DType::kFloat32}};
    EXPECT_THROW(rank.driver->Launch(0, gradient, nullptr, elsewhere), Error);
  });
}

TEST(StepDriver, WhoeverHasLookedAtSumsMayTellInstead) {
  OnRanks(2, {3, -1}, [](DrivenRank& rank) {
    for (const bool finite : {true, false, true}) {
      rank.Fill();
      rank.Begin();
      std::vector<std::future<void>> done;
      for (const int op : {0, 1, 2}) done.push_back(rank.Launch(op));
      rank.Hand(3);
      rank.driver->SummedAs(finite);
      for (auto& one : done) {
        if (finite) {
          one.get();
        } else {
          ASSERT_EQ(KindOf(std::move(one)), ErrorKind::kNonFinite);
        }
      }
      if (finite) rank.End();
    }
  });
}

TEST(StepDriver, ClosingAmidAStepLeavesNobodyWaiting) {
  Meeting begun(2);
  OnRanks(2, kOneByOne, [&begun](DrivenRank& rank) {
    rank.BeginTogether(&begun);
    std::future<void> done = rank.Launch(0);
    if (rank.exchange.Rank() == 0) rank.driver.reset();
    if (rank.exchange.Rank() == 1) {
      for (int op = 1; op < kOps; ++op) rank.Launch(op);
    }
    ASSERT_EQ(KindOf(std::move(done)), ErrorKind::kExchangeFailed);
  });
}

}  // namespace
}  // namespace hvd_sparse
