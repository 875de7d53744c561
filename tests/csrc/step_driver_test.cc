/// Steps whose pieces come in any order, from several threads.

#include "csrc/exchange/step_driver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <limits>
#include <thread>

#include "csrc/base/error.h"
#include "csrc/comm/loopback_communicator.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kNumel = 64;
constexpr int kPieces = 4;

/// Pieces of each bucket; below zero: of one that passes.
using Layout = std::vector<int>;

/// A rank with kPieces pieces. K is everything in the first step, and 1 of each piece afterwards.
struct Rank {
  Rank(const std::shared_ptr<LoopbackWorld>& world, int rank, const Layout& layout,
       StepDriver::Hooks hooks = {}, StepRules rules = {})
      : rules(rules),
        velocity(rules.momentum > 0 ? kNumel * kPieces : 0, 0.0f),
        exchange(std::make_unique<LoopbackCommunicator>(world, rank), SelectOn::kCaller) {
    driver = std::make_unique<StepDriver>(&exchange, std::vector<Piece>(kPieces, Piece{kNumel, 1}),
                                          Buckets(layout), std::move(hooks), rules);
  }

  std::vector<DrivenBucket> Buckets(const Layout& layout) {
    std::vector<DrivenBucket> buckets;
    for (const int pieces : layout) {
      if (pieces < 0) {
        buckets.push_back({DrivenBucket::kPasses, 1, 1, {}, -pieces});
        continue;
      }
      const std::vector<std::int64_t> numels(static_cast<std::size_t>(pieces), kNumel);
      const std::vector<std::int64_t> ones(static_cast<std::size_t>(pieces), 1);
      const int bucket =
          exchange.AddBucket({"bucket", numels, numels, numels, "top_k", {}, "gtopk"});
      buckets.push_back({bucket, 1, 1, {{0, numels}, {1, ones}}, pieces});
    }
    return buckets;
  }

  void Begin() { driver->Begin(residual, states, 1, velocity); }

  /// Whether the piece passed, or else when it is there.
  struct Handed {
    bool passed = false;
    std::future<void> done;
  };

  Handed Hand(int piece) {
    auto done = std::make_shared<std::promise<void>>();
    const bool passed = driver->Launch(piece, {{Gradient(piece).data(), kNumel, DType::kFloat32}},
                                       [done](std::exception_ptr error) {
                                         if (error) return done->set_exception(error);
                                         done->set_value();
                                       });
    return {passed, done->get_future()};
  }

  std::future<void> Launch(int piece) { return Hand(piece).done; }

  /// Somebody else has summed a piece that passed.
  void Sum(int piece) { driver->Summed({{Gradient(piece).data(), kNumel, DType::kFloat32}}); }

  void End() {
    std::promise<void> ended;
    driver->End([&ended](std::exception_ptr error) {
      if (error) return ended.set_exception(error);
      ended.set_value();
    });
    ended.get_future().get();
  }

  /// All gradients are ones.
  void Fill() {
    for (auto& gradient : gradients) gradient.assign(kNumel, 1.0f);
  }

  std::vector<float>& Gradient(int piece) { return gradients[static_cast<std::size_t>(piece)]; }

  double Owed() const {
    double sum = 0;
    for (const float value : residual) sum += value;
    return sum;
  }

  const StepRules rules;
  std::vector<float> velocity;
  Exchange exchange;
  std::vector<std::vector<float>> gradients{kPieces, std::vector<float>(kNumel, 1.0f)};
  std::vector<float> residual = std::vector<float>(kNumel * kPieces, 0.0f);
  std::vector<SelectionState> states = std::vector<SelectionState>(kPieces);
  std::unique_ptr<StepDriver> driver;
};

void OnRanks(int size, const Layout& layout, const std::function<void(Rank&)>& program,
             StepRules rules = {}) {
  auto world = std::make_shared<LoopbackWorld>(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Rank one(world, rank, layout, {}, rules);
      program(one);
    });
  }
  for (auto& thread : threads) thread.join();
}

const Layout kOneByOne = {1, 1, 1, 1};

ErrorKind KindOf(std::future<void> done) {
  try {
    done.get();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::kUnavailable;
}

class StepDriverOfBuckets : public testing::TestWithParam<Layout> {};

TEST_P(StepDriverOfBuckets, PiecesThatComeInAnyOrderGiveTheSameSums) {
  OnRanks(3, GetParam(), [](Rank& rank) {
    std::vector<int> order = {0, 1, 2, 3};
    for (int step = 0; step < 24; ++step) {
      rank.Fill();
      rank.Begin();
      std::vector<std::future<void>> done;
      for (const int piece : order) done.push_back(rank.Launch(piece));
      for (auto& one : done) one.get();
      rank.End();
      std::int64_t applied = 0;
      for (const auto& gradient : rank.gradients) {
        applied +=
            std::count_if(gradient.begin(), gradient.end(), [](float value) { return value != 0; });
      }
      ASSERT_EQ(applied, step == 0 ? kNumel * kPieces : kPieces);
      // Another order in each step, and on each rank another one.
      for (int i = 0; i <= rank.exchange.Rank(); ++i)
        std::next_permutation(order.begin(), order.end());
    }
    ASSERT_EQ(rank.driver->steps(), 24);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, StepDriverOfBuckets,
                         testing::Values(kOneByOne, Layout{4}, Layout{1, 2, 1}, Layout{2, 2}));

TEST(StepDriver, BucketsStartInTheOrderThatWasAskedFor) {
  OnRanks(2, {1, 2, 1}, [](Rank& rank) {
    rank.driver->Reorder({2, 0, 1});
    for (const std::vector<int>& last_piece : {std::vector<int>{3}, {0, 3}, {1, 2, 0, 3}}) {
      // Only bucket 2, of piece 3, holds up the others; its exchange is the first to begin.
      rank.Begin();
      std::vector<std::future<void>> done;
      for (int piece = 0; piece < kPieces; ++piece) {
        if (std::count(last_piece.begin(), last_piece.end(), piece) == 0)
          done.push_back(rank.Launch(piece));
      }
      for (const int piece : last_piece) done.push_back(rank.Launch(piece));
      for (auto& one : done) one.get();
      rank.End();
      const double begun = rank.exchange.Stats(2).select_begin;
      ASSERT_LE(begun, rank.exchange.Stats(0).select_begin);
      ASSERT_LE(rank.exchange.Stats(0).select_begin, rank.exchange.Stats(1).select_begin);
    }
    ASSERT_THROW(rank.driver->Reorder({0, 1, 1}), Error);
    ASSERT_THROW(rank.driver->Reorder({0, 1}), Error);
  });
}

TEST(StepDriver, ADriverGoesOnWhereAnotherOneWas) {
  OnRanks(2, {4}, [](Rank& rank) {
    rank.driver->GoOnAfter(7);  // past the first step, in which everything is sent
    rank.residual.assign(rank.residual.size(), 2.0f);
    rank.Fill();
    rank.Begin();
    std::vector<std::future<void>> done;
    for (int piece = 0; piece < kPieces; ++piece) done.push_back(rank.Launch(piece));
    for (auto& one : done) one.get();
    rank.End();
    ASSERT_EQ(rank.driver->steps(), 8);
    ASSERT_EQ(rank.Owed(), 3.0 * (kNumel - 1) * kPieces);
  });
}

TEST(StepDriver, AResidualThatWasLoadedPassesWithItsGradient) {
  auto world = std::make_shared<LoopbackWorld>(1);
  Rank rank(world, 0, {-4});
  for (int step = 0; step < 2; ++step) {
    rank.Fill();
    rank.Begin();
    for (int piece = 0; piece < kPieces; ++piece) ASSERT_TRUE(rank.Hand(piece).passed);
    rank.End();
    ASSERT_EQ(rank.Gradient(2)[9], step == 0 ? 1.0f : 6.0f);
    rank.residual.assign(rank.residual.size(), 5.0f);
    rank.driver->GoOnAfter(1);
  }
  EXPECT_THROW(rank.driver->GoOnAfter(-1), Error);
}

TEST(StepDriver, ManyThreadsMayHandOver) {
  OnRanks(2, {1, 3}, [](Rank& rank) {
    for (int step = 0; step < 20; ++step) {
      rank.Begin();
      std::vector<std::thread> threads;
      for (int piece = kPieces - 1; piece >= 0; --piece) {
        threads.emplace_back([&rank, piece] { rank.Launch(piece).get(); });
      }
      for (auto& thread : threads) thread.join();
      rank.End();
    }
    ASSERT_EQ(rank.driver->steps(), 20);
  });
}

TEST(StepDriver, NoResultIsThereBeforeAllAre) {
  OnRanks(2, kOneByOne, [](Rank& rank) {
    rank.Begin();
    std::vector<std::future<void>> done;
    for (int piece = 0; piece + 1 < kPieces; ++piece) done.push_back(rank.Launch(piece));
    for (auto& one : done) {
      ASSERT_EQ(one.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
    }
    rank.Launch(kPieces - 1).get();
    for (auto& one : done) one.get();
    rank.End();
  });
}

TEST(StepDriver, APieceThatPassesIsHandedBackAtOnceWithWhatItsResidualHeld) {
  OnRanks(2, {1, -2, 1}, [](Rank& rank) {
    std::fill(rank.residual.begin(), rank.residual.end(), 2.0f);
    rank.Fill();
    rank.Begin();
    Rank::Handed first = rank.Hand(1);
    ASSERT_TRUE(first.passed);
    ASSERT_EQ(rank.Gradient(1), std::vector<float>(kNumel, 3.0f));
    ASSERT_EQ(rank.residual[kNumel], 2.0f);  // until the step has ended
    ASSERT_TRUE(rank.Hand(2).passed);
    for (const int piece : {1, 2}) rank.Sum(piece);
    std::future<void> zero = rank.Launch(0), three = rank.Launch(3);
    zero.get();
    three.get();
    rank.End();
    ASSERT_TRUE(std::all_of(rank.residual.begin() + kNumel, rank.residual.begin() + 3 * kNumel,
                            [](float value) { return value == 0; }));
    // It joined once: the next step passes gradients as they are.
    rank.Fill();
    rank.Begin();
    ASSERT_TRUE(rank.Hand(1).passed);
    ASSERT_EQ(rank.Gradient(1), std::vector<float>(kNumel, 1.0f));
  });
}

TEST(StepDriver, AStepThatNeverEndsLeavesResidualsOfPassedPiecesAlone) {
  OnRanks(1, {-4}, [](Rank& rank) {
    std::fill(rank.residual.begin(), rank.residual.end(), 2.0f);
    for (int attempt = 0; attempt < 2; ++attempt) {
      rank.Fill();
      rank.Begin();
      ASSERT_TRUE(rank.Hand(0).passed);
      ASSERT_EQ(rank.Gradient(0), std::vector<float>(kNumel, 3.0f));
      ASSERT_EQ(rank.Owed(), 2.0 * kNumel * kPieces);
    }
  });
}

TEST(StepDriver, BucketsThatAreReplacedLoseNothing) {
  OnRanks(3, {-4}, [](Rank& rank) {
    const std::vector<Layout> layouts = {{4}, {-1, 3}, kOneByOne, {-4}, {2, -2}};
    double applied = 0;
    std::int64_t steps = 0;
    for (const Layout& layout : layouts) {
      for (int step = 0; step < 3; ++step, ++steps) {
        rank.Fill();
        rank.Begin();
        std::vector<std::future<void>> done;
        for (int piece = 0; piece < kPieces; ++piece) {
          Rank::Handed handed = rank.Hand(piece);
          if (!handed.passed) {
            done.push_back(std::move(handed.done));
            continue;
          }
          // Every rank gives the same, so the sum over the ranks is this.
          for (float& value : rank.Gradient(piece)) value *= 3;
          rank.Sum(piece);
        }
        for (auto& one : done) one.get();
        rank.End();
        for (const auto& gradient : rank.gradients) {
          for (const float value : gradient) applied += value;
        }
      }
      rank.exchange.ClearBuckets();
      rank.driver->Replace(rank.Buckets(layout));
    }
    ASSERT_EQ(rank.driver->steps(), steps);
    ASSERT_EQ(applied + 3 * rank.Owed(), 3.0 * static_cast<double>(steps) * kNumel * kPieces);
  });
}

TEST(StepDriver, WhoeverWantsToKnowIsToldWhenPiecesCame) {
  auto world = std::make_shared<LoopbackWorld>(1);
  std::vector<StepTimes> seen;
  StepDriver::Hooks hooks;
  hooks.step_ended = [&seen](const StepTimes& times) { seen.push_back(times); };
  Rank rank(world, 0, {-4}, hooks);
  for (int step = 0; step < 2; ++step) {
    rank.Begin();
    for (const int piece : {2, 0, 3}) rank.Hand(piece);
    rank.End();
  }
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_TRUE(std::isnan(seen[0].step));
  const StepTimes& last = seen[1];
  ASSERT_EQ(last.ready.size(), static_cast<std::size_t>(kPieces));
  EXPECT_EQ(last.ready[2], 0);
  EXPECT_TRUE(std::isnan(last.ready[1]));
  EXPECT_LE(last.ready[0], last.ready[3]);
  EXPECT_LE(last.forward + last.ready[3], last.step);
}

TEST(StepDriver, AHookThatThrowsFailsTheStepAndEndsTheExchange) {
  auto world = std::make_shared<LoopbackWorld>(1);
  StepDriver::Hooks hooks;
  hooks.step_ended = [](const StepTimes&) { Throw(ErrorKind::kExchangeFailed, "of a test"); };
  Rank rank(world, 0, {-4}, hooks);
  rank.Begin();
  EXPECT_THROW(rank.End(), Error);
  EXPECT_THROW(rank.exchange.Check(), Error);
}

TEST(StepDriver, ABadGradientIsRefusedOnAllRanksAndTheNextStepIsNormal) {
  OnRanks(3, kOneByOne, [](Rank& rank) {
    for (int step = 0; step < 3; ++step) {
      rank.Fill();
      if (step == 1 && rank.exchange.Rank() == 1) {
        rank.Gradient(2)[5] = std::numeric_limits<float>::quiet_NaN();
      }
      rank.Begin();
      std::vector<std::future<void>> done;
      for (int piece = 0; piece < kPieces; ++piece) done.push_back(rank.Launch(piece));
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
      Rank rank(world, number, {2, 2}, {}, {NonFinite::kMark});
      for (int step = 0; step < 3; ++step) {
        rank.Fill();
        if (step == 1 && number == 1) rank.Gradient(3)[5] = std::numeric_limits<float>::infinity();
        rank.Begin();
        std::vector<std::future<void>> done;
        for (int piece = 0; piece < kPieces; ++piece) done.push_back(rank.Launch(piece));
        for (auto& one : done) one.get();
        rank.End();
        for (const auto& gradient : rank.gradients) {
          ASSERT_EQ(std::isnan(gradient[0]), step == 1);
        }
      }
      ASSERT_EQ(rank.driver->steps(), 3);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(StepDriver, ASumOfOthersThatIsNotFiniteIsRefusedOnAllRanks) {
  for (const NonFinite non_finite : {NonFinite::kRefuse, NonFinite::kMark}) {
    OnRanks(2, {2, -2},
            [](Rank& rank) {
              std::fill(rank.residual.begin(), rank.residual.end(), 2.0f);
              for (int step = 0; step < 3; ++step) {
                rank.Fill();
                rank.Begin();
                std::vector<std::future<void>> done;
                for (const int piece : {0, 1}) done.push_back(rank.Launch(piece));
                for (const int piece : {2, 3}) rank.Hand(piece);
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
                // The first step sends all; of the second one nothing counts, and the residual
                // keeps it.
                if (step == 1) {
                  ASSERT_EQ(rank.Owed(), 2.0 * kNumel);
                }
              }
            },
            {non_finite});
  }
}

TEST(StepDriver, WhereAllPassAStepThatIsNotFiniteEndsWithAnError) {
  auto world = std::make_shared<LoopbackWorld>(1);
  Rank rank(world, 0, {-4});
  std::fill(rank.residual.begin(), rank.residual.end(), 2.0f);
  for (const bool bad : {true, false}) {
    rank.Fill();
    rank.Begin();
    for (int piece = 0; piece < kPieces; ++piece) {
      rank.Hand(piece);
      ASSERT_EQ(rank.Gradient(piece)[0], 3.0f);
      if (bad) rank.Gradient(piece)[0] = std::numeric_limits<float>::quiet_NaN();
      rank.Sum(piece);
    }
    if (bad) {
      EXPECT_THROW(rank.End(), Error);
    } else {
      rank.End();
    }
    EXPECT_EQ(rank.Owed(), bad ? 2.0 * kNumel * kPieces : 0.0);
  }
  rank.exchange.Check();
  EXPECT_EQ(rank.driver->steps(), 2);
}

TEST(StepDriver, AnExchangeThatEndsEndsTheWaitForSums) {
  OnRanks(2, {2, -2}, [](Rank& rank) {
    rank.Begin();
    std::vector<std::future<void>> done;
    for (const int piece : {0, 1}) done.push_back(rank.Launch(piece));
    if (rank.exchange.Rank() == 0) rank.driver->Cancel("its sums will not come");
    for (auto& one : done) ASSERT_EQ(KindOf(std::move(one)), ErrorKind::kExchangeFailed);
  });
}

TEST(StepDriver, WhatPassesTakesItsVelocityAlongAndARefusedStepLeavesIt) {
  StepRules rules;
  rules.momentum = 0.5f;
  OnRanks(
      2, {1, -3},
      [](Rank& rank) {
        std::vector<float> expected(kNumel, 0.0f);
        for (int step = 0; step < 4; ++step) {
          rank.Fill();
          rank.Begin();
          std::future<void> zero = rank.Launch(0);
          for (const int piece : {1, 2, 3}) {
            rank.Hand(piece);
            ASSERT_EQ(rank.Gradient(piece)[0], 0.5f * expected[0] + 1);
            if (step == 2) rank.Gradient(piece)[0] = std::numeric_limits<float>::quiet_NaN();
            rank.Sum(piece);
          }
          if (step == 2) {
            ASSERT_EQ(KindOf(std::move(zero)), ErrorKind::kNonFinite);
          } else {
            zero.get();
            rank.End();
            for (float& value : expected) value = 0.5f * value + 1;
          }
          for (const int piece : {1, 2, 3}) {
            const auto begin = rank.velocity.begin() + piece * kNumel;
            ASSERT_EQ(std::vector<float>(begin, begin + kNumel), expected);
          }
        }
        // What was exchanged goes on in a step that is refused, and is masked in others: all of it
        // in the first one, and then one entry.
        ASSERT_EQ(rank.velocity[kNumel - 1], 1.75f);
        ASSERT_TRUE(std::any_of(rank.velocity.begin(), rank.velocity.begin() + kNumel,
                                [](float value) { return value == 0; }));
      },
      rules);
}

TEST(StepDriver, AStepIsMeasuredWhenThatWasAskedFor) {
  StepRules rules;
  rules.measure_every = 2;
  rules.momentum = 0.5f;
  auto world = std::make_shared<LoopbackWorld>(1);
  std::vector<StepSample> seen;
  StepDriver::Hooks hooks;
  hooks.measured = [&seen](const std::vector<StepSample>& samples) {
    seen.insert(seen.end(), samples.begin(), samples.end());
  };
  Rank rank(world, 0, {1, 1, -2}, hooks, rules);
  for (int step = 0; step < 3; ++step) {
    rank.Fill();
    std::vector<float> owed = rank.residual;
    for (std::size_t i = 0; i < owed.size(); ++i) owed[i] += 1 + 0.5f * rank.velocity[i];
    rank.Begin();
    std::vector<std::future<void>> done;
    for (const int piece : {0, 1}) done.push_back(rank.Launch(piece));
    for (const int piece : {2, 3}) {
      rank.Hand(piece);
      rank.Sum(piece);
    }
    for (auto& one : done) one.get();
    rank.End();
    ASSERT_EQ(seen.size(), step == 2 ? 4u : 2u);
    if (step == 1) continue;
    const StepSample& last = seen.back();
    EXPECT_EQ(last.bucket, 1u);
    EXPECT_EQ(last.step, step);
    const auto at = static_cast<std::ptrdiff_t>(kNumel);
    EXPECT_EQ(last.accumulated, std::vector<float>(owed.begin() + at, owed.begin() + 2 * at));
    EXPECT_EQ(last.applied, rank.Gradient(1));
    for (std::size_t i = 0; i < last.left.size(); ++i) {
      EXPECT_EQ(last.left[i] + last.applied[i], last.accumulated[i]);
    }
  }
}

TEST(StepDriver, WhatHasNoUnitsOfSelectionMustPass) {
  auto world = std::make_shared<LoopbackWorld>(1);
  Exchange exchange(std::make_unique<LoopbackCommunicator>(world, 0), SelectOn::kCaller);
  const DrivenBucket passes{DrivenBucket::kPasses, 1, 1, {}, 1}, sparse{0, 1, 1, {{0, {1}}}, 1};
  EXPECT_NO_THROW(StepDriver(&exchange, {{kNumel, 0}}, {passes}));
  EXPECT_THROW(StepDriver(&exchange, {{kNumel, 0}}, {sparse}), Error);
  StepRules rules;
  rules.momentum = 1;
  EXPECT_THROW(StepDriver(&exchange, {{kNumel, 0}}, {passes}, {}, rules), Error);
}

TEST(StepDriver, CancellingEndsTheStepOnAllRanks) {
  OnRanks(3, kOneByOne, [](Rank& rank) {
    rank.Begin();
    std::vector<std::future<void>> done;
    const int count = rank.exchange.Rank() == 0 ? 2 : kPieces;
    for (int piece = 0; piece < count; ++piece) done.push_back(rank.Launch(piece));
    if (rank.exchange.Rank() == 0) rank.driver->Cancel("a test wants it");
    for (auto& one : done) ASSERT_EQ(KindOf(std::move(one)), ErrorKind::kExchangeFailed);
    // A piece whose predecessors failed before it came has nobody to wait for.
    ASSERT_EQ(KindOf(rank.Launch(2)), ErrorKind::kExchangeFailed);
    ASSERT_EQ(KindOf(rank.Launch(0)), ErrorKind::kExchangeFailed);
  });
}

TEST(StepDriver, CancellingBetweenStepsChangesNothing) {
  OnRanks(2, kOneByOne, [](Rank& rank) {
    rank.driver->Cancel("nobody waits");
    rank.Begin();
    std::vector<std::future<void>> done;
    for (int piece = 0; piece < kPieces; ++piece) done.push_back(rank.Launch(piece));
    for (auto& one : done) one.get();
  });
}

TEST(StepDriver, APieceThatWillNotComeEndsTheExchange) {
  OnRanks(2, kOneByOne, [](Rank& rank) {
    if (rank.exchange.Rank() == 0) return rank.driver->Fail("a piece was lost");
    rank.Begin();
    ASSERT_EQ(KindOf(rank.Launch(0)), ErrorKind::kExchangeFailed);
  });
}

TEST(StepDriver, APieceThatComesTwiceEndsTheExchange) {
  OnRanks(1, kOneByOne, [](Rank& rank) {
    rank.Begin();
    std::future<void> first = rank.Launch(2), second = rank.Launch(2);
    ASSERT_EQ(KindOf(std::move(second)), ErrorKind::kExchangeFailed);
    ASSERT_EQ(KindOf(std::move(first)), ErrorKind::kExchangeFailed);
  });
}

TEST(StepDriver, AStepThatBeginsAmidAnotherEndsTheExchange) {
  OnRanks(1, kOneByOne, [](Rank& rank) {
    rank.Begin();
    std::future<void> first = rank.Launch(2);
    EXPECT_THROW(rank.Begin(), Error);
    ASSERT_EQ(KindOf(std::move(first)), ErrorKind::kExchangeFailed);
  });
}

TEST(StepDriver, WhatDoesNotFitIsRefusedAndNothingHasHappened) {
  OnRanks(1, kOneByOne, [](Rank& rank) {
    EXPECT_THROW(rank.Launch(0), Error);  // before its step
    EXPECT_THROW(rank.driver->Begin({rank.residual.data(), 3}, rank.states), Error);
    EXPECT_THROW(rank.driver->Begin(rank.residual, {rank.states.data(), 3}), Error);
    EXPECT_THROW(rank.driver->Replace(rank.Buckets({3})), Error);
    EXPECT_THROW(rank.driver->Launch(kPieces, {}, nullptr), Error);
    EXPECT_THROW(rank.driver->Launch(0, {}, nullptr), Error);
  });
}

TEST(StepDriver, ClosingAmidAStepLeavesNobodyWaiting) {
  OnRanks(2, kOneByOne, [](Rank& rank) {
    rank.Begin();
    std::future<void> done = rank.Launch(0);
    if (rank.exchange.Rank() == 0) rank.driver.reset();
    if (rank.exchange.Rank() == 1) {
      for (int piece = 1; piece < kPieces; ++piece) rank.Launch(piece);
    }
    ASSERT_EQ(KindOf(std::move(done)), ErrorKind::kExchangeFailed);
  });
}

}  // namespace
}  // namespace hvd_sparse
