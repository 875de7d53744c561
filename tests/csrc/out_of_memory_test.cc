/// Whichever allocation of a rank fails, the step ends on all ranks, and its residuals lose
/// nothing.

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/comm/loopback_communicator.h"
#include "csrc/exchange/exchange.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/failing_allocations.h"

namespace hvd_sparse {
namespace {

constexpr int kRanks = 3, kVictim = 1, kBuckets = 2;
constexpr std::int64_t kNumel = 600;

/// The settings common to all buckets.
struct Kind {
  std::string sparsifier, collective;
  WireFormat wire;
  float momentum = 0;  // 0: there is no velocity
};

/// A rank's bucket of two gradients and two segments; its residual and velocity are zero at first.
class Memory {
 public:
  explicit Memory(int seed, float momentum = 0) : momentum_(momentum) {
    std::mt19937 random(seed);
    std::normal_distribution<float> gaussian;
    for (std::int64_t i = 0; i < kNumel; ++i) given.push_back(gaussian(random));
    gradient_ = given;
    if (momentum > 0) velocity.assign(kNumel, 0.0f);
  }

  static BucketSpec Spec(const std::string& name, const Kind& kind) {
    SparsifierOptions options;
    if (kind.sparsifier == "hard_threshold") options = {{"threshold", 1.0}};
    BucketSpec spec{name,           {kFirst, kNumel - kFirst}, {kNumel / 2, kNumel / 2},
                    {40, 40},       kind.sparsifier,           options,
                    kind.collective};
    spec.wire = kind.wire;
    return spec;
  }

  Launch Step() {
    Launch launch;
    launch.gradients = {{gradient_.data(), kFirst, DType::kFloat32},
                        {gradient_.data() + kFirst, kNumel - kFirst, DType::kFloat32}};
    launch.residual = residual;
    launch.velocity = velocity;
    launch.momentum = momentum_;
    launch.states = states_;
    launch.ks = {40, 40};
    launch.decays = {1.0f, 1.0f};
    return launch;
  }

  /// Returns true if error feedback is complete, or not even started unless `all_accumulated`.
  bool LostNothing(bool all_accumulated) const {
    const auto is = [this](const std::vector<float>& what) {
      return SameBits(residual, what) && (velocity.empty() || SameBits(velocity, what));
    };
    return is(given) || (!all_accumulated && is(std::vector<float>(kNumel, 0.0f)));
  }

  std::vector<float> given, velocity, residual = std::vector<float>(kNumel, 0.0f);

 private:
  static constexpr std::int64_t kFirst = kNumel / 3;

  const float momentum_;
  std::vector<float> gradient_;
  std::vector<SelectionState> states_ = std::vector<SelectionState>(2);
};

/// The thread on which an allocation fails: the one that starts buckets, or the exchange's own.
enum class Where { kStart, kExchange };

/// Makes an allocation of the exchange's thread fail, from the first transfer of the step on.
class ArmingCommunicator final : public LoopbackCommunicator {
 public:
  ArmingCommunicator(std::shared_ptr<LoopbackWorld> world, int rank, int allocation)
      : LoopbackCommunicator(std::move(world), rank), allocation_(allocation) {}

  void Transfer(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) override {
    if (allocation_ >= 0) FailAllocation(allocation_);
    allocation_ = -1;
    LoopbackCommunicator::Transfer(out, in, what);
  }

 private:
  int allocation_;
};

/// Waits for the first `buckets` buckets, until their memory is released; returns true if the
/// exchange ended.
bool EndsWhileWaiting(Exchange* exchange, int buckets) {
  bool ended = false;
  for (int bucket = 0; bucket < buckets; ++bucket) {
    try {
      while (!exchange->Wait(bucket, 1.0)) {
      }
    } catch (const Error&) {
      ended = true;
    }
  }
  try {
    exchange->Check();
  } catch (const Error&) {
    ended = true;
  }
  return ended;
}

/// Runs a step in which that allocation of the victim fails; returns true if there was one.
bool FailsAt(int allocation, Where where, const Kind& kind) {
  auto world = std::make_shared<LoopbackWorld>(kRanks);
  std::atomic<bool> any{false};
  const auto run = [&](int rank) {
    const bool victim = rank == kVictim;
    const bool arms = victim && where == Where::kExchange;
    Exchange exchange(std::make_unique<ArmingCommunicator>(world, rank, arms ? allocation : -1),
                      SelectOn::kCaller, Nodes::Of(kRanks, 1));
    std::deque<Memory> memory;
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      memory.emplace_back(10 * rank + bucket, kind.momentum);
      exchange.AddBucket(Memory::Spec(std::to_string(bucket), kind));
    }
    std::deque<Launch> launches;
    for (Memory& bucket : memory) launches.push_back(bucket.Step());
    int started = 0;
    std::string error;
    try {
      // From the first bucket on, whose memory this thread has not allocated yet.
      if (victim && where == Where::kStart) FailAllocation(allocation);
      for (; started < kBuckets; ++started) {
        exchange.Start(started, std::move(launches[static_cast<std::size_t>(started)]));
      }
      StopFailingAllocations();
      for (int bucket = 0; bucket < kBuckets; ++bucket) {
        while (!exchange.Wait(bucket, 1.0)) {
        }
      }
      exchange.Commit("");
    } catch (const Error& raised) {
      error = raised.what();
      if (victim) {
        any = true;
        EXPECT_EQ(raised.kind(), ErrorKind::kOutOfMemory);
        EXPECT_NE(error.find("rank 1 ran out of memory in bucket '"), std::string::npos) << error;
      }
    }
    if (error.empty()) return;  // it had all it needed before the victim failed, if any did
    EXPECT_TRUE(EndsWhileWaiting(&exchange, started));
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      // Gradients are unchanged if selecting could not begin, or the exchange had ended before.
      const bool accumulated = exchange.Stats(bucket).select_end > 0;
      EXPECT_TRUE(memory[static_cast<std::size_t>(bucket)].LostNothing(accumulated))
          << "bucket " << bucket << " of rank " << rank << ", " << error;
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  return any;
}

class OutOfMemory : public testing::TestWithParam<Where> {};

TEST_P(OutOfMemory, InAnyAllocationOfAStepLosesNothing) {
  const std::vector<std::string> sparsifiers = SparsifierNames();
  std::vector<std::string> collectives = CollectiveNames();
  collectives.insert(collectives.end(), {"shard_sum", "median"});
  for (std::size_t s = 0; s < sparsifiers.size(); ++s) {
    for (std::size_t c = 0; c < collectives.size(); ++c) {
      // Momentum and wire take turns: both meet every sparsifier and every collective.
      const Kind kinds[] = {{sparsifiers[s], collectives[c], {}},
                            {sparsifiers[s], collectives[c], {}, 0.5f},
                            {sparsifiers[s], collectives[c], {true, Values::kFloat16}}};
      const Kind& kind = kinds[(s + c) % 3];
      SCOPED_TRACE(testing::Message() << sparsifiers[s] << ", " << collectives[c] << ", "
                                      << kind.wire.packed << ", " << kind.momentum);
      int allocation = 0;
      while (!HasFailure() && FailsAt(allocation, GetParam(), kind)) ++allocation;
      EXPECT_GE(allocation, 2);
    }
  }
}

TEST(OutOfMemory, OnTheThreadThatSelectsLosesNothing) {
  for (int allocation = 0;; ++allocation) {
    FailAllocationOfNewThreads(allocation);
    Exchange exchange(std::make_unique<LoopbackCommunicator>(std::make_shared<LoopbackWorld>(1), 0),
                      SelectOn::kEngine);
    Memory memory(1, 0.5f);
    exchange.AddBucket(Memory::Spec("0", {"top_k", "gtopk", {}}));
    exchange.Start(0, memory.Step());
    const bool ended = EndsWhileWaiting(&exchange, 1);
    FailAllocationOfNewThreads(-1);
    if (!ended) {
      EXPECT_NO_THROW(exchange.Commit(""));
      EXPECT_GE(allocation, 2);
      return;
    }
    EXPECT_TRUE(memory.LostNothing(exchange.Stats(0).select_end > 0)) << allocation;
  }
}

TEST(OutOfMemory, WhicheverAllocationOfAnEndFailsAllRanksHearOfIt) {
  for (int allocation = 0;; ++allocation) {
    auto world = std::make_shared<LoopbackWorld>(2);
    Exchange exchange(std::make_unique<LoopbackCommunicator>(world, 0), SelectOn::kCaller);
    FailAllocation(allocation);
    EXPECT_NO_THROW(exchange.Fail("a reason that takes memory to be told"));
    const bool any = StopFailingAllocations();
    EXPECT_THROW(world->Check(0), Error);
    EXPECT_THROW(exchange.Check(), Error);
    if (!any || testing::Test::HasFailure()) return;
  }
}

TEST(OutOfMemory, WhicheverAllocationOfAClosingFailsNothingIsLost) {
  for (const int size : {1, 2}) {  // the bucket completes, or waits for a rank that never comes
    for (int allocation = 0;; ++allocation) {
      auto world = std::make_shared<LoopbackWorld>(size);
      Memory memory(1);
      auto exchange = std::make_unique<Exchange>(std::make_unique<LoopbackCommunicator>(world, 0),
                                                 SelectOn::kCaller);
      exchange->AddBucket(Memory::Spec("0", {"top_k", "gtopk", {}}));
      exchange->Start(0, memory.Step());
      if (size == 1) {
        EXPECT_FALSE(EndsWhileWaiting(exchange.get(), 1));
      }
      EXPECT_FALSE(SameBits(memory.residual, memory.given));
      FailAllocation(allocation);
      exchange.reset();
      const bool any = StopFailingAllocations();
      EXPECT_THROW(world->Check(0), Error);
      EXPECT_TRUE(SameBits(memory.residual, memory.given)) << allocation;
      if (!any || testing::Test::HasFailure()) break;
    }
  }
}

TEST(Commit, TakesNoMemory) {
  auto world = std::make_shared<LoopbackWorld>(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&world, rank] {
      Exchange exchange(std::make_unique<LoopbackCommunicator>(world, rank), SelectOn::kCaller);
      Memory memory(rank, 0.5f);
      exchange.AddBucket(Memory::Spec("0", {"top_k", "gtopk", {}}));
      exchange.Start(0, memory.Step());
      while (!exchange.Wait(0, 1.0)) {
      }
      FailAllocation(0);
      EXPECT_NO_THROW(exchange.Commit(""));
      EXPECT_FALSE(StopFailingAllocations());
      // Delivered entries have left velocity and residual alike.
      EXPECT_TRUE(SameBits(memory.velocity, memory.residual));
      EXPECT_FALSE(SameBits(memory.velocity, memory.given));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(On, OutOfMemory, testing::Values(Where::kStart, Where::kExchange),
                         [](const auto& test) {
                           return test.param == Where::kStart ? "TheCallersThread" : "ItsOwnThread";
                         });

}  // namespace
}  // namespace hvd_sparse
