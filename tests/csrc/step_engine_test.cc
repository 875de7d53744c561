/// Steps that the calling thread runs: it hands gradients over, waits and commits.

#include "csrc/exchange/step_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "csrc/comm/loopback_communicator.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kNumel = 32;
constexpr int kOps = 3;

/// A rank with kOps ops of two gradients each. All entries are sent in the first step, then one.
/// Velocities have a momentum of 0.5 unless a test chooses another one.
struct EngineRank {
  EngineRank(const std::shared_ptr<LoopbackWorld>& world, int rank, const std::vector<int>& layout,
             StepRules rules)
      : exchange(std::make_unique<LoopbackCommunicator>(world, rank), SelectOn::kCaller),
        velocity(rules.has_velocity ? kNumel * kOps : 0, 0.0f),
        engine(&exchange, std::vector<OpGradients>(kOps, OpGradients{kNumel, 1}), Buckets(layout),
               rules) {}

  /// Numbers of ops by bucket; negative if the ops are sent dense.
  std::vector<DrivenBucket> Buckets(const std::vector<int>& layout) {
    std::vector<DrivenBucket> buckets;
    for (const int ops : layout) {
      if (ops < 0) {
        buckets.push_back({DrivenBucket::kDense, 1, 1, {}, -ops});
        continue;
      }
      const auto count = static_cast<std::size_t>(ops);
      const std::vector<std::int64_t> numels(count, kNumel), ones(count, 1);
      const std::vector<std::int64_t> halves(2 * count, kNumel / 2);
      const int bucket =
          exchange.AddBucket({"bucket", halves, numels, numels, "top_k", {}, "gtopk"});
      buckets.push_back({bucket, 1, 1, {{0, numels}, {1, ones}}, ops});
    }
    return buckets;
  }

  bool Begin(float loss_scale = 1, float momentum = 0.5f, float dampening = 0) {
    room.assign(static_cast<std::size_t>(engine.Room()), 0.0f);
    return engine.Begin({residual, states, 1, velocity, {}, room, loss_scale, momentum, dampening});
  }

  bool BeginOf(const std::set<int>& ops) {
    return engine.Begin({residual, states, 1, velocity, {}, room}, ops);
  }

  bool Launch(int op, const std::vector<float>& decays = {}) {
    float* const data = gradients.data() + op * kNumel;
    return engine.Launch(
        op, {{data, kNumel / 2, DType::kFloat32}, {data + kNumel / 2, kNumel / 2, DType::kFloat32}},
        decays);
  }

  void WaitAndCommit(bool sums_are_finite = true) {
    while (!engine.Wait(1)) {
    }
    engine.SummedAs(sums_are_finite);
    engine.Commit();
  }

  /// Waits for the buckets of some ops and commits them.
  void CommitPart(const std::vector<int>& ops) {
    while (!engine.WaitFor(ops, 1)) {
    }
    engine.CommitPart(ops);
  }

  void Step() {
    Begin();
    for (int op = 0; op < kOps; ++op) Launch(op);
    WaitAndCommit();
  }

  double Unsent() const {
    double sum = 0;
    for (const float value : residual) sum += value;
    return sum;
  }

  Exchange exchange;
  std::vector<float> gradients = std::vector<float>(kNumel * kOps, 1.0f);
  std::vector<float> residual = std::vector<float>(kNumel * kOps, 0.0f);
  std::vector<float> velocity, room;
  std::vector<SelectionState> states = std::vector<SelectionState>(kOps);
  StepEngine engine;
};

void OnRanks(int size, const std::vector<int>& layout,
             const std::function<void(EngineRank&)>& program, StepRules rules = {}) {
  auto world = std::make_shared<LoopbackWorld>(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      EngineRank one(world, rank, layout, rules);
      program(one);
    });
  }
  for (auto& thread : threads) thread.join();
}

/// Returns the kind of the error that `call` throws.
ErrorKind KindOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::kUnavailable;
}

TEST(StepEngine, OpsInAnyOrderGiveTheSameSumsOnAllRanks) {
  OnRanks(3, {1, 2}, [](EngineRank& rank) {
    std::vector<int> order = {0, 1, 2};
    for (int step = 0; step < 12; ++step) {
      std::fill(rank.gradients.begin(), rank.gradients.end(), 1.0f);
      rank.Begin();
      for (const int op : order) ASSERT_FALSE(rank.Launch(op));
      rank.WaitAndCommit();
      const auto applied = std::count_if(rank.gradients.begin(), rank.gradients.end(),
                                         [](float value) { return value != 0; });
      ASSERT_EQ(applied, step == 0 ? kNumel * kOps : kOps);
      ASSERT_EQ(rank.engine.Stats().size(), 2U);
      ASSERT_EQ(rank.engine.Stats()[1].asked, step == 0 ? 2 * kNumel : 2);
      for (int i = 0; i <= rank.exchange.Rank(); ++i) {
        std::next_permutation(order.begin(), order.end());
      }
    }
    ASSERT_EQ(rank.engine.steps(), 12);
  });
}

TEST(StepEngine, TheTimesOfOpsAreThoseOfTheirLaunches) {
  OnRanks(1, {1, 2}, [](EngineRank& rank) {
    rank.Begin();
    rank.Launch(2);
    rank.Launch(0);
    ASSERT_TRUE(std::isnan(rank.engine.Came()[1]));
    rank.Launch(1);
    const std::vector<double> came = rank.engine.Came();
    ASSERT_EQ(came[2], 0);
    ASSERT_LE(came[2], came[0]);
    ASSERT_LE(came[0], came[1]);
    rank.WaitAndCommit();
    ASSERT_LE(rank.engine.Stats()[0].ready, rank.engine.Stats()[1].ready);
    ASSERT_LE(rank.engine.Stats()[0].ready, rank.engine.Stats()[0].select_begin);
  });
}

TEST(StepEngine, ALossScaleIsInGradientsAndResultsButNotInResiduals) {
  for (const bool is_dense : {false, true}) {
    OnRanks(2, {is_dense ? -kOps : kOps}, [is_dense](EngineRank& rank) {
      std::fill(rank.gradients.begin(), rank.gradients.end(), 4.0f);
      if (is_dense) rank.residual.assign(rank.residual.size(), 1.0f);
      rank.Begin(4);
      for (int op = 0; op < kOps; ++op) ASSERT_EQ(rank.Launch(op), is_dense);
      rank.WaitAndCommit();
      for (const float value : rank.gradients) ASSERT_EQ(value, 8);  // 2 ranks' 1, or 1 + 1, x 4
      ASSERT_EQ(rank.Unsent(), 0);
    });
  }
}

TEST(StepEngine, EachGradientHasADecayOfItsOwn) {
  for (const int layout : {kOps, -kOps}) {
    OnRanks(1, {layout}, [](EngineRank& rank) {
      rank.residual.assign(rank.residual.size(), 1.0f);
      rank.Begin();
      for (int op = 0; op < kOps; ++op) rank.Launch(op, {0.5f, 2.0f});
      rank.WaitAndCommit();
      for (std::int64_t i = 0; i < kNumel * kOps; ++i) {
        ASSERT_EQ(rank.gradients[static_cast<std::size_t>(i)],
                  i % kNumel < kNumel / 2 ? 1.5f : 3.0f);
      }
    });
  }
}

TEST(StepEngine, ARefusedStepLeavesEverythingInTheResiduals) {
  OnRanks(2, {2, -1}, [](EngineRank& rank) {
    rank.residual.assign(rank.residual.size(), 1.0f);
    ASSERT_TRUE(rank.Begin());
    for (int op = 0; op < kOps; ++op) rank.Launch(op, {0.5f, 2.0f});
    ASSERT_EQ(KindOf([&] { rank.WaitAndCommit(false); }), ErrorKind::kNonFinite);
    const double decayed = (0.5 + 2) * (kNumel / 2) * kOps;  // the new rates have been noted
    ASSERT_EQ(rank.Unsent(), decayed + 2 * kNumel);          // the dense gradient is lost
    rank.engine.ContinueAfter(0);
    std::fill(rank.gradients.begin(), rank.gradients.end(), 0.0f);
    rank.Step();
    ASSERT_EQ(rank.Unsent(), 0);
  });
}

TEST(StepEngine, TheCauseOfADenseSumThatOverflowsLeavesTheResidual) {
  OnRanks(2, {2, -1}, [](EngineRank& rank) {
    float* const dense = rank.residual.data() + 2 * kNumel;
    dense[3] = -2e38f;
    dense[4] = 8e37f;
    for (const bool refused : {true, false}) {
      rank.Begin();
      for (int op = 0; op < kOps; ++op) rank.Launch(op);
      if (!refused) return rank.WaitAndCommit();
      ASSERT_EQ(KindOf([&] { rank.WaitAndCommit(false); }), ErrorKind::kNonFinite);
      ASSERT_EQ(dense[3], 0);
      ASSERT_EQ(dense[4], 8e37f);  // such entries of two ranks have a sum
    }
  });
}

TEST(StepEngine, AGradientThatIsNotFiniteRefusesTheStepOnAllRanks) {
  OnRanks(2, {1, 2}, [](EngineRank& rank) {
    if (rank.exchange.Rank() == 1) rank.gradients[5] = std::numeric_limits<float>::quiet_NaN();
    ASSERT_EQ(KindOf([&] { rank.Step(); }), ErrorKind::kNonFinite);
    ASSERT_EQ(rank.engine.steps(), 1);
    std::fill(rank.gradients.begin(), rank.gradients.end(), 1.0f);
    rank.Step();
    ASSERT_EQ(rank.engine.steps(), 2);
  });
}

TEST(StepEngine, ACallerRefusesAStepThatNothingElseWould) {
  for (const std::vector<int>& layout : {std::vector<int>{1, -2}, std::vector<int>{-3}}) {
    OnRanks(2, layout, [](EngineRank& rank) {
      rank.Begin();
      for (int op = 0; op < kOps; ++op) rank.Launch(op);
      while (!rank.engine.Wait(1)) {
      }
      ASSERT_EQ(rank.engine.Problem(), "");
      const Error error = Thrown([&] { rank.engine.Commit("another shard is not finite"); });
      ASSERT_EQ(error.kind(), ErrorKind::kNonFinite);
      ASSERT_TRUE(Says(error, "another shard is not finite: no rank applies this step"));
      const bool has_bucket = rank.engine.layout().Exchanges();
      ASSERT_EQ(rank.Unsent(), has_bucket ? kNumel : 0);
      ASSERT_EQ(rank.engine.steps(), 1);
    });
  }
}

TEST(StepEngine, TheProblemOfAStepIsKnownBeforeItIsCommitted) {
  OnRanks(2, {1, -2}, [](EngineRank& rank) {
    rank.gradients[0] = std::numeric_limits<float>::infinity();
    rank.Begin();
    for (int op = 0; op < kOps; ++op) rank.Launch(op);
    while (!rank.engine.Wait(1)) {
    }
    ASSERT_NE(rank.engine.Problem().find("holds NaN or Inf"), std::string::npos);
    ASSERT_EQ(KindOf([&] { rank.engine.Commit(); }), ErrorKind::kNonFinite);
  });
}

TEST(StepEngine, AStepOfSomeBucketsLeavesTheOthersAlone) {
  OnRanks(2, {1, -1, 1}, [](EngineRank& rank) {
    rank.BeginOf({1});
    ASSERT_TRUE(rank.Launch(1));
    ASSERT_EQ(KindOf([&] { rank.Launch(2); }), ErrorKind::kInvalidArgument);
    rank.WaitAndCommit();
    ASSERT_TRUE(rank.engine.AnyPending());
    rank.BeginOf({2});
    ASSERT_EQ(KindOf([&] { rank.engine.Commit(); }), ErrorKind::kInvalidArgument);
    ASSERT_FALSE(rank.Launch(2));
    rank.WaitAndCommit();
    ASSERT_EQ(rank.engine.steps(), 2);
    ASSERT_EQ(rank.engine.Stats().size(), 1U);
    ASSERT_EQ(rank.Unsent(), kNumel - 1);  // of op 2
    ASSERT_EQ(rank.gradients.front(), 1);
    rank.Step();
    ASSERT_EQ(rank.engine.Stats().size(), 2U);
    ASSERT_FALSE(rank.engine.AnyPending());
  });
}

TEST(StepEngine, AStepHasAllOpsOfItsBuckets) {
  OnRanks(1, {2, 1}, [](EngineRank& rank) {
    ASSERT_EQ(KindOf([&] { rank.BeginOf({0}); }), ErrorKind::kInvalidArgument);
    ASSERT_EQ(KindOf([&] { rank.BeginOf({3}); }), ErrorKind::kInvalidArgument);
    rank.Step();
    ASSERT_EQ(rank.engine.steps(), 1);
  });
}

TEST(StepEngine, PartsAreCommittedAlone) {
  OnRanks(2, {1, 1, -1}, [](EngineRank& rank) {
    rank.residual.assign(rank.residual.size(), 1.0f);
    rank.Begin();
    for (int op = 0; op < kOps; ++op) rank.Launch(op);
    for (const int bucket : {1, 0}) rank.CommitPart({bucket});
    ASSERT_EQ(rank.Unsent(), kNumel);  // of the dense op, whose sum has not arrived yet
    rank.CommitPart({2});
    ASSERT_EQ(rank.Unsent(), 0);
    ASSERT_EQ(rank.engine.steps(), 0);
    rank.WaitAndCommit();
    ASSERT_EQ(rank.engine.steps(), 1);
    rank.Step();
    ASSERT_EQ(rank.engine.steps(), 2);
  });
}

TEST(StepEngine, BucketsOfOnePartAreAppliedTogetherOrNotAtAll) {
  OnRanks(2, {1, 1, 1}, [](EngineRank& rank) {
    rank.residual.assign(rank.residual.size(), 1.0f);
    if (rank.exchange.Rank() == 1) rank.gradients[5] = std::numeric_limits<float>::quiet_NaN();
    rank.Begin();
    for (int op = 0; op < kOps; ++op) rank.Launch(op);
    ASSERT_EQ(KindOf([&] { rank.CommitPart({2, 0}); }), ErrorKind::kNonFinite);
    rank.CommitPart({1});
    const bool damaged = rank.exchange.Rank() == 1;  // one entry of the first bucket
    ASSERT_EQ(rank.Unsent(), 4 * kNumel - (damaged ? 1 : 0));
    rank.WaitAndCommit();
    ASSERT_EQ(rank.engine.steps(), 1);
  });
}

TEST(StepEngine, ARefusedPartLeavesTheOthersAlone) {
  OnRanks(2, {1, 1, -1}, [](EngineRank& rank) {
    rank.residual.assign(rank.residual.size(), 1.0f);
    if (rank.exchange.Rank() == 1) rank.gradients[5] = std::numeric_limits<float>::quiet_NaN();
    rank.Begin();
    for (int op = 0; op < kOps; ++op) rank.Launch(op);
    ASSERT_EQ(KindOf([&] { rank.CommitPart({0}); }), ErrorKind::kNonFinite);
    rank.engine.SummedAs(false, "a");
    rank.CommitPart({1});
    const Error error = Thrown([&] { rank.CommitPart({2}); });
    ASSERT_EQ(error.kind(), ErrorKind::kNonFinite);
    ASSERT_TRUE(Says(error, "the sum of the gradients of 'a' over the ranks is not finite: no"));
    const bool damaged = rank.exchange.Rank() == 1;
    ASSERT_EQ(rank.Unsent(), 2 * kNumel - (damaged ? 1 : 0) + kNumel);
    rank.WaitAndCommit();  // the others count
    ASSERT_TRUE(rank.engine.AnyPending());
    std::fill(rank.gradients.begin(), rank.gradients.end(), 0.0f);
    rank.engine.ContinueAfter(0);
    rank.Step();
    ASSERT_EQ(rank.Unsent(), 0);
    ASSERT_FALSE(rank.engine.AnyPending());
  });
}

TEST(StepEngine, DenseSumsAreCheckedOnlyWhileSomethingMayBeAddedToThem) {
  OnRanks(2, {-kOps}, [](EngineRank& rank) {
    for (const bool checked : {true, false, false}) {
      ASSERT_EQ(rank.Begin(), checked);
      for (int op = 0; op < kOps; ++op) ASSERT_TRUE(rank.Launch(op));
      rank.WaitAndCommit();
    }
    ASSERT_FALSE(rank.Begin());  // then no op need be handed over
    rank.engine.Commit();
    ASSERT_EQ(rank.engine.steps(), 4);
    rank.engine.Replace(rank.Buckets({-kOps}));
    ASSERT_TRUE(rank.Begin());
    ASSERT_EQ(KindOf([&] { rank.engine.Commit(); }), ErrorKind::kInvalidArgument);
  });
}

TEST(StepEngine, VelocitiesOfDenseOpsAreKeptOnceTheStepIsCommitted) {
  StepRules rules;
  rules.has_velocity = true;
  OnRanks(
      1, {-kOps},
      [](EngineRank& rank) {
        float expected = 0;
        for (int step = 0; step < 4; ++step) {
          std::fill(rank.gradients.begin(), rank.gradients.end(), 1.0f);
          rank.Begin();
          for (int op = 0; op < kOps; ++op) rank.Launch(op);
          const bool refused = step == 2;
          if (refused) {
            ASSERT_EQ(KindOf([&] { rank.WaitAndCommit(false); }), ErrorKind::kNonFinite);
          } else {
            rank.WaitAndCommit();
            expected = 0.5f * expected + 1;
          }
          for (const float value : rank.velocity) ASSERT_EQ(value, expected);
        }
      },
      rules);
}

/// One entry of each op by the definition; all numbers are exact.
struct Entry {
  float velocity = 0, unsent = 0;

  void Add(float gradient, float momentum, float dampening) {
    velocity = momentum * velocity + (1 - dampening) * gradient;
    unsent += velocity;
  }
};

class StepEngineVelocity : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Masks, StepEngineVelocity, testing::Bool());

TEST_P(StepEngineVelocity, FollowsTheMomentumAndTheDampeningOfEachStep) {
  constexpr float kLossScale = 4, kDampening = 0.5f;
  StepRules rules;
  rules.has_velocity = true;
  rules.masks_velocity = GetParam();
  OnRanks(
      2, {1, -2},
      [&rules](EngineRank& rank) {
        std::vector<Entry> entries(kNumel);  // of op 0; those of ops 1 and 2 are never masked
        std::vector<float> dense(kNumel);    // their velocity
        for (std::size_t step = 0; step < 6; ++step) {
          const float momentum = step < 3 ? 0.5f : 0.25f;
          const auto gradient = [step](std::size_t i) { return i == step ? 1024.0f : 8.0f; };
          for (std::size_t i = 0; i < rank.gradients.size(); ++i) {
            rank.gradients[i] = kLossScale * gradient(i % kNumel);
          }
          rank.Begin(kLossScale, momentum, kDampening);
          for (int op = 0; op < kOps; ++op) ASSERT_EQ(rank.Launch(op), op > 0);
          rank.WaitAndCommit();
          for (std::size_t i = 0; i < kNumel; ++i) {
            Entry& one = entries[i];
            one.Add(gradient(i), momentum, kDampening);
            const bool arrives = step == 0 || i == step;
            ASSERT_EQ(rank.gradients[i], arrives ? kLossScale * 2 * one.unsent : 0);
            if (arrives) one = {rules.masks_velocity ? 0.0f : one.velocity, 0.0f};
            ASSERT_EQ(rank.velocity[i], one.velocity);
            ASSERT_EQ(rank.residual[i], one.unsent);
            dense[i] = momentum * dense[i] + (1 - kDampening) * gradient(i);
            for (const std::size_t at : {i + kNumel, i + 2 * kNumel}) {
              ASSERT_EQ(rank.gradients[at], kLossScale * dense[i]);
              ASSERT_EQ(rank.velocity[at], dense[i]);
            }
          }
        }
      },
      rules);
}

TEST(StepEngine, MomentumAndDampeningMustLieBetweenZeroAndOne) {
  StepRules rules;
  rules.has_velocity = true;
  OnRanks(
      1, {1, -2},
      [](EngineRank& rank) {
        for (const float bad : {-0.1f, 1.0f, std::numeric_limits<float>::quiet_NaN()}) {
          SCOPED_TRACE(bad);
          const Error momentum = Thrown([&] { rank.Begin(1, bad); });
          EXPECT_EQ(momentum.kind(), ErrorKind::kInvalidArgument);
          EXPECT_TRUE(Says(momentum, "momentum must lie in [0, 1), got ")) << momentum.what();
          const Error dampening = Thrown([&] { rank.Begin(1, 0.5f, bad); });
          EXPECT_EQ(dampening.kind(), ErrorKind::kInvalidArgument);
          EXPECT_TRUE(Says(dampening, "dampening must lie in [0, 1), got ")) << dampening.what();
        }
        EXPECT_NO_THROW(rank.Begin(1, 0, 0));
      },
      rules);
}

TEST(StepEngine, TheResidualIsNotedAfterPowersOfTwoWithASparseBucket) {
  OnRanks(2, {1, -2}, [](EngineRank& rank) {
    double expected = 0;
    for (int step = 0; step < 130; ++step) {
      std::fill(rank.gradients.begin(), rank.gradients.end(), 1.0f);
      rank.Step();
      if (step + 1 != 64 && step + 1 != 128) continue;
      double energy = 0;
      for (const float value : rank.residual) energy += double{value} * value;
      expected = std::sqrt(energy);
      ASSERT_EQ(rank.engine.ResidualNorms().back().first, step + 1);
      ASSERT_NEAR(rank.engine.ResidualNorms().back().second, expected, 1e-6 * expected);
    }
    ASSERT_GT(expected, 0);
    ASSERT_EQ(rank.engine.ResidualNorms().size(), 2);
  });
  OnRanks(1, {-kOps}, [](EngineRank& rank) {
    for (int step = 0; step < 64; ++step) rank.Step();
    ASSERT_TRUE(rank.engine.ResidualNorms().empty());
  });
}

TEST(StepEngine, AnAbandonedStepReturnsWhatWasSelected) {
  OnRanks(2, {1, 2}, [](EngineRank& rank) {
    if (rank.exchange.Rank() == 1) {
      rank.exchange.Fail("rank 1 has had enough");
      return;
    }
    const auto step = [&] { rank.Step(); };
    ASSERT_EQ(KindOf(step), ErrorKind::kExchangeFailed);
    rank.engine.Abandon();
    ASSERT_EQ(rank.engine.steps(), 0);
    const double unsent = rank.Unsent();  // of the ops that came before the failure was noticed
    ASSERT_EQ(unsent, kNumel * std::round(unsent / kNumel));
    ASSERT_EQ(KindOf(step), ErrorKind::kExchangeFailed);
  });
}

TEST(StepEngine, AnOpThatIsHandedOverTwiceEndsTheExchange) {
  OnRanks(1, {1, 2}, [](EngineRank& rank) {
    rank.Begin();
    rank.Launch(1);
    ASSERT_EQ(KindOf([&] { rank.Launch(1); }), ErrorKind::kExchangeFailed);
    rank.engine.Abandon();
    ASSERT_THROW(rank.Begin(), Error);
  });
}

TEST(StepEngine, MisuseIsRefusedBeforeAnythingHappens) {
  OnRanks(1, {1, 2}, [](EngineRank& rank) {
    const auto refused = [](const std::function<void()>& call) {
      return KindOf(call) == ErrorKind::kInvalidArgument;
    };
    ASSERT_TRUE(refused([&] { rank.Launch(0); }));
    ASSERT_TRUE(refused([&] { rank.Begin(0); }));
    ASSERT_TRUE(refused([&] { rank.Begin(std::numeric_limits<float>::infinity()); }));
    rank.Begin();
    ASSERT_TRUE(refused([&] { rank.Launch(0, {1}); }));
    ASSERT_TRUE(refused([&] { rank.Launch(kOps); }));
    rank.Launch(0);
    ASSERT_TRUE(refused([&] { rank.engine.Commit(); }));
    ASSERT_TRUE(refused([&] { rank.engine.CommitPart({0}); }));
    ASSERT_TRUE(refused([&] { rank.engine.CommitPart({kOps}); }));
    rank.Launch(1);
    rank.Launch(2);
    rank.WaitAndCommit();
    ASSERT_EQ(rank.engine.steps(), 1);
  });
}

TEST(StepEngine, AnEngineWithoutOpsCountsSteps) {
  auto world = std::make_shared<LoopbackWorld>(1);
  Exchange exchange(std::make_unique<LoopbackCommunicator>(world, 0), SelectOn::kCaller);
  StepEngine engine(&exchange, {}, {});
  ASSERT_FALSE(engine.Begin({}));
  ASSERT_TRUE(engine.Wait(0));
  engine.Commit();
  ASSERT_EQ(engine.steps(), 1);
}

}  // namespace
}  // namespace hvd_sparse
