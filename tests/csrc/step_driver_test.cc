/// Steps whose buckets come in any order, from several threads.

#include "csrc/exchange/step_driver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <limits>
#include <thread>

#include "csrc/base/error.h"
#include "csrc/comm/loopback_communicator.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kNumel = 64;
constexpr int kBuckets = 4;

struct Memory {
  std::vector<float> gradient = std::vector<float>(kNumel, 1.0f);
  std::vector<float> residual = std::vector<float>(kNumel, 0.0f);
  std::vector<SelectionState> states = std::vector<SelectionState>(1);
};

/// A rank with a driver of kBuckets buckets, whose k is kNumel in the first step and 1 afterwards.
struct Rank {
  Rank(const std::shared_ptr<LoopbackWorld>& world, int rank)
      : exchange(std::make_unique<LoopbackCommunicator>(world, rank), SelectOn::kCaller) {
    std::vector<DrivenBucket> buckets;
    for (int i = 0; i < kBuckets; ++i) {
      const int bucket =
          exchange.AddBucket({"bucket", {kNumel}, {kNumel}, {kNumel}, "top_k", {}, "gtopk"});
      buckets.push_back({bucket, 1, 1, {{0, {kNumel}}, {1, {1}}}});
    }
    driver = std::make_unique<StepDriver>(&exchange, std::move(buckets));
  }

  std::future<void> Launch(int place) {
    auto done = std::make_shared<std::promise<void>>();
    Memory& m = memory[static_cast<std::size_t>(place)];
    driver->Launch(place, {{m.gradient.data(), kNumel, DType::kFloat32}}, m.residual, m.states,
                   [done](std::exception_ptr error) {
                     if (error) return done->set_exception(error);
                     done->set_value();
                   });
    return done->get_future();
  }

  Exchange exchange;
  std::vector<Memory> memory = std::vector<Memory>(kBuckets);
  std::unique_ptr<StepDriver> driver;
};

void OnRanks(int size, const std::function<void(Rank&)>& program) {
  auto world = std::make_shared<LoopbackWorld>(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Rank one(world, rank);
      program(one);
    });
  }
  for (auto& thread : threads) thread.join();
}

ErrorKind KindOf(std::future<void> done) {
  try {
    done.get();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::kUnavailable;
}

TEST(StepDriver, BucketsThatComeInAnyOrderGiveTheSameSums) {
  OnRanks(3, [](Rank& rank) {
    std::vector<int> order = {0, 1, 2, 3};
    for (int step = 0; step < 24; ++step) {
      for (Memory& m : rank.memory) m.gradient.assign(kNumel, 1.0f);
      std::vector<std::future<void>> done;
      for (const int place : order) done.push_back(rank.Launch(place));
      for (auto& one : done) one.get();
      for (const Memory& m : rank.memory) {
        const auto applied = std::count_if(m.gradient.begin(), m.gradient.end(),
                                           [](float value) { return value != 0; });
        ASSERT_EQ(applied, step == 0 ? kNumel : 1);
      }
      // Another order in each step, and on each rank another one.
      for (int i = 0; i <= rank.exchange.Rank(); ++i)
        std::next_permutation(order.begin(), order.end());
    }
    ASSERT_EQ(rank.driver->steps(), 24);
  });
}

TEST(StepDriver, ManyThreadsMayHandOver) {
  OnRanks(2, [](Rank& rank) {
    for (int step = 0; step < 20; ++step) {
      std::vector<std::thread> threads;
      for (int place = kBuckets - 1; place >= 0; --place) {
        threads.emplace_back([&rank, place] { rank.Launch(place).get(); });
      }
      for (auto& thread : threads) thread.join();
    }
    ASSERT_EQ(rank.driver->steps(), 20);
  });
}

TEST(StepDriver, NoResultIsThereBeforeAllAre) {
  OnRanks(2, [](Rank& rank) {
    std::vector<std::future<void>> done;
    for (int place = 0; place + 1 < kBuckets; ++place) done.push_back(rank.Launch(place));
    for (auto& one : done) {
      ASSERT_EQ(one.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
    }
    rank.Launch(kBuckets - 1).get();
    for (auto& one : done) one.get();
  });
}

TEST(StepDriver, ABadGradientIsRefusedOnAllRanksAndTheNextStepIsNormal) {
  OnRanks(3, [](Rank& rank) {
    for (int step = 0; step < 3; ++step) {
      for (Memory& m : rank.memory) m.gradient.assign(kNumel, 1.0f);
      if (step == 1 && rank.exchange.Rank() == 1) {
        rank.memory[2].gradient[5] = std::numeric_limits<float>::quiet_NaN();
      }
      std::vector<std::future<void>> done;
      for (int place = 0; place < kBuckets; ++place) done.push_back(rank.Launch(place));
      for (auto& one : done) {
        if (step == 1) {
          ASSERT_EQ(KindOf(std::move(one)), ErrorKind::kNonFinite);
        } else {
          one.get();
        }
      }
    }
  });
}

TEST(StepDriver, CancellingEndsTheStepOnAllRanks) {
  OnRanks(3, [](Rank& rank) {
    std::vector<std::future<void>> done;
    const int count = rank.exchange.Rank() == 0 ? 2 : kBuckets;
    for (int place = 0; place < count; ++place) done.push_back(rank.Launch(place));
    if (rank.exchange.Rank() == 0) rank.driver->Cancel("a test wants it");
    for (auto& one : done) ASSERT_EQ(KindOf(std::move(one)), ErrorKind::kExchangeFailed);
    // A bucket whose predecessors failed before it came has nobody to wait for.
    ASSERT_EQ(KindOf(rank.Launch(2)), ErrorKind::kExchangeFailed);
    ASSERT_EQ(KindOf(rank.Launch(0)), ErrorKind::kExchangeFailed);
  });
}

TEST(StepDriver, CancellingBetweenStepsChangesNothing) {
  OnRanks(2, [](Rank& rank) {
    rank.driver->Cancel("nobody waits");
    std::vector<std::future<void>> done;
    for (int place = 0; place < kBuckets; ++place) done.push_back(rank.Launch(place));
    for (auto& one : done) one.get();
  });
}

TEST(StepDriver, ABucketThatWillNotComeEndsTheExchange) {
  OnRanks(2, [](Rank& rank) {
    if (rank.exchange.Rank() == 0) return rank.driver->Fail("a bucket was lost");
    ASSERT_EQ(KindOf(rank.Launch(0)), ErrorKind::kExchangeFailed);
  });
}

TEST(StepDriver, ABucketThatComesTwiceEndsTheExchange) {
  OnRanks(1, [](Rank& rank) {
    std::future<void> first = rank.Launch(2), second = rank.Launch(2);
    ASSERT_EQ(KindOf(std::move(second)), ErrorKind::kExchangeFailed);
    ASSERT_EQ(KindOf(std::move(first)), ErrorKind::kExchangeFailed);
  });
}

TEST(StepDriver, ClosingAmidAStepLeavesNobodyWaiting) {
  OnRanks(2, [](Rank& rank) {
    std::future<void> done = rank.Launch(0);
    if (rank.exchange.Rank() == 0) rank.driver.reset();
    if (rank.exchange.Rank() == 1) {
      for (int place = 1; place < kBuckets; ++place) rank.Launch(place);
    }
    ASSERT_EQ(KindOf(std::move(done)), ErrorKind::kExchangeFailed);
  });
}

}  // namespace
}  // namespace hvd_sparse
