/// One exchange on thread ranks: order, errors, undone steps.

#include "csrc/exchange/exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <thread>

#include "csrc/base/error.h"
#include "csrc/base/process.h"
#include "csrc/comm/loopback_communicator.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kNumel = 64;

BucketSpec Spec(const std::string& name) {
  return {name, {kNumel}, {kNumel}, {kNumel}, "top_k", {}, "gtopk"};
}

/// Buffers of one bucket on one rank, and the launch of a step with them.
struct Memory {
  std::vector<float> gradient = std::vector<float>(kNumel, 1.0f);
  std::vector<float> residual = std::vector<float>(kNumel, 0.0f);
  std::vector<SelectionState> states = std::vector<SelectionState>(1);

  Launch Step(std::int64_t k) {
    Launch launch;
    launch.gradients = {{gradient.data(), kNumel, DType::kFloat32}};
    launch.residual = residual;
    launch.states = states;
    launch.ks = {k};
    launch.decays = {1.0f};
    return launch;
  }
};

void OnRanks(int size, SelectOn select_on, const std::function<void(Exchange&)>& program) {
  auto world = std::make_shared<LoopbackWorld>(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Exchange exchange(std::make_unique<LoopbackCommunicator>(world, rank), select_on);
      program(exchange);
    });
  }
  for (auto& thread : threads) thread.join();
}

void WaitFor(Exchange& exchange, int bucket) {
  while (!exchange.Wait(bucket, 1.0)) {
  }
}

ErrorKind KindOf(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::kUnavailable;
}

class ExchangeTest : public testing::TestWithParam<SelectOn> {};

TEST_P(ExchangeTest, ManyBucketsInFlightArriveInOrder) {
  OnRanks(4, GetParam(), [](Exchange& exchange) {
    std::vector<Memory> memory(8);
    for (int b = 0; b < 8; ++b) exchange.AddBucket(Spec("bucket"));
    for (int step = 0; step < 5; ++step) {
      for (auto& m : memory) m.gradient.assign(kNumel, 1.0f);
      for (int b = 0; b < 8; ++b) exchange.Start(b, memory[b].Step(kNumel));
      for (int b = 7; b >= 0; --b) WaitFor(exchange, b);
      exchange.Commit("");
      for (auto& m : memory) ASSERT_EQ(m.gradient, std::vector<float>(kNumel, 4.0f));
    }
  });
}

TEST_P(ExchangeTest, TheTimesOfABucketFollowOneAnother) {
  OnRanks(4, GetParam(), [](Exchange& exchange) {
    std::vector<Memory> memory(3);
    for (int b = 0; b < 3; ++b) exchange.AddBucket(Spec("bucket"));
    double step_begin = SteadySeconds();
    for (int step = 0; step < 3; ++step) {
      for (int b = 0; b < 3; ++b) exchange.Start(b, memory[b].Step(kNumel));
      double previous_end = 0;
      for (int b = 0; b < 3; ++b) {
        WaitFor(exchange, b);
        const BucketStats& stats = exchange.Stats(b);
        std::vector<double> times = {step_begin, stats.select_begin, stats.select_end,
                                     stats.exchange_begin};
        std::int64_t sent = 0, received = 0;
        for (const RoundTimes& round : stats.rounds) {
          times.insert(times.end(), {round.begin, round.end});
          sent += round.bytes_sent;
          received += round.bytes_received;
        }
        times.insert(times.end(), {stats.settle_begin, stats.exchange_end, SteadySeconds()});
        ASSERT_TRUE(std::is_sorted(times.begin(), times.end()));
        ASSERT_LE(previous_end, stats.exchange_begin);
        previous_end = stats.exchange_end;
        ASSERT_EQ(stats.rounds.size(), 2u);  // gtopk of 4 ranks
        ASSERT_EQ(stats.rounds[1].name, "gtopk, round 2");
        ASSERT_EQ(sent, stats.bytes_sent);
        ASSERT_EQ(received, stats.bytes_received);
      }
      exchange.Commit("");
      step_begin = SteadySeconds();
    }
  });
}

TEST_P(ExchangeTest, BucketsCanBeReplacedBetweenSteps) {
  OnRanks(3, GetParam(), [](Exchange& exchange) {
    for (int plan = 0; plan < 3; ++plan) {
      std::vector<Memory> memory(static_cast<std::size_t>(3 - plan));
      std::vector<int> buckets;
      for (auto& m : memory) {
        buckets.push_back(exchange.AddBucket(Spec("bucket")));
        m.gradient.assign(kNumel, 1.0f);
      }
      for (std::size_t b = 0; b < memory.size(); ++b) {
        exchange.Start(buckets[b], memory[b].Step(kNumel));
      }
      ASSERT_EQ(KindOf([&] { exchange.ClearBuckets(); }), ErrorKind::kInvalidArgument);
      for (const int bucket : buckets) WaitFor(exchange, bucket);
      exchange.Commit("");
      for (auto& m : memory) ASSERT_EQ(m.gradient, std::vector<float>(kNumel, 3.0f));
      exchange.ClearBuckets();
      ASSERT_EQ(KindOf([&] { exchange.Start(buckets[0], memory[0].Step(kNumel)); }),
                ErrorKind::kInvalidArgument);
    }
  });
}

TEST_P(ExchangeTest, RanksMayReplaceBucketsTwiceBetweenSteps) {
  OnRanks(3, GetParam(), [](Exchange& exchange) {
    for (int plan = 0; plan < 3; ++plan) {
      if (exchange.Rank() == 0) {
        for (int b = 0; b < 4; ++b) exchange.AddBucket(Spec("that no step will use"));
        exchange.ClearBuckets();
      }
      Memory memory;
      const int bucket = exchange.AddBucket(Spec("bucket"));
      ASSERT_EQ(bucket, plan);
      exchange.Start(bucket, memory.Step(kNumel));
      WaitFor(exchange, bucket);
      exchange.Commit("");
      ASSERT_EQ(memory.gradient, std::vector<float>(kNumel, 3.0f));
      exchange.ClearBuckets();
    }
  });
}

TEST_P(ExchangeTest, ABadGradientUndoesAllBucketsOfTheStepOnAllRanks) {
  OnRanks(3, GetParam(), [](Exchange& exchange) {
    std::vector<Memory> memory(3);
    for (int b = 0; b < 3; ++b) exchange.AddBucket(Spec("bucket"));
    if (exchange.Rank() == 1) memory[2].gradient[5] = std::numeric_limits<float>::quiet_NaN();
    for (int b = 0; b < 3; ++b) exchange.Start(b, memory[b].Step(10));
    for (int b = 0; b < 3; ++b) WaitFor(exchange, b);
    ASSERT_EQ(KindOf([&] { exchange.Commit(""); }), ErrorKind::kNonFinite);
    for (int b = 0; b < 3; ++b) {
      std::vector<float> expected(kNumel, 1.0f);
      if (exchange.Rank() == 1 && b == 2) expected[5] = 0.0f;
      ASSERT_EQ(memory[b].residual, expected);
    }
    for (auto& m : memory) m.gradient.assign(kNumel, 0.0f);
    for (int b = 0; b < 3; ++b) exchange.Start(b, memory[b].Step(kNumel));
    for (int b = 0; b < 3; ++b) WaitFor(exchange, b);
    exchange.Commit("");
    ASSERT_EQ(memory[0].gradient, std::vector<float>(kNumel, 3.0f));
  });
}

TEST_P(ExchangeTest, WhatOneRankEndsEndsForAllAndPutsDeliveredEntriesBack) {
  std::atomic<int> delivered{0};
  OnRanks(4, GetParam(), [&delivered](Exchange& exchange) {
    std::vector<Memory> memory(2);
    for (int b = 0; b < 2; ++b) exchange.AddBucket(Spec("bucket"));
    exchange.Start(0, memory[0].Step(kNumel));
    WaitFor(exchange, 0);
    ++delivered;
    while (delivered < 4) std::this_thread::yield();
    if (exchange.Rank() == 2) {
      exchange.Fail("enough");
    } else {
      // The peers may learn of it before or while they wait.
      const auto kind = KindOf([&] {
        exchange.Start(1, memory[1].Step(kNumel));
        WaitFor(exchange, 1);
      });
      ASSERT_EQ(kind, ErrorKind::kExchangeFailed);
    }
    ASSERT_EQ(KindOf([&] { exchange.Check(); }), ErrorKind::kExchangeFailed);
    ASSERT_EQ(memory[0].residual, std::vector<float>(kNumel, 1.0f));
  });
}

TEST_P(ExchangeTest, ARankThatClosesInMidStepEndsTheOthersWaits) {
  OnRanks(2, GetParam(), [](Exchange& exchange) {
    Memory memory;
    exchange.AddBucket(Spec("bucket"));
    if (exchange.Rank() == 1) {
      exchange.Fail("leaving");
      return;
    }
    ASSERT_EQ(KindOf([&] {
                exchange.Start(0, memory.Step(1));
                WaitFor(exchange, 0);
              }),
              ErrorKind::kExchangeFailed);
  });
}

TEST_P(ExchangeTest, ArgumentsAreRefusedBeforeAnythingHappens) {
  OnRanks(1, GetParam(), [](Exchange& exchange) {
    Memory memory;
    exchange.AddBucket(Spec("bucket"));
    for (std::int64_t k : {std::int64_t{0}, kNumel + 1}) {
      ASSERT_EQ(KindOf([&] { exchange.Start(0, memory.Step(k)); }), ErrorKind::kInvalidArgument);
    }
    Launch launch = memory.Step(1);
    launch.residual.size -= 1;
    ASSERT_EQ(KindOf([&] { exchange.Start(0, launch); }), ErrorKind::kInvalidArgument);
    launch = memory.Step(1);
    launch.states.size = 0;
    ASSERT_EQ(KindOf([&] { exchange.Start(0, launch); }), ErrorKind::kInvalidArgument);
    launch = memory.Step(1);
    launch.decays = {std::numeric_limits<float>::infinity()};
    ASSERT_EQ(KindOf([&] { exchange.Start(0, launch); }), ErrorKind::kInvalidArgument);
    ASSERT_EQ(memory.residual, std::vector<float>(kNumel, 0.0f));
    ASSERT_EQ(KindOf([&] { exchange.Start(1, memory.Step(1)); }), ErrorKind::kInvalidArgument);
    ASSERT_EQ(KindOf([&] { exchange.Wait(0, 0); }), ErrorKind::kInvalidArgument);
    exchange.Start(0, memory.Step(1));
    ASSERT_EQ(KindOf([&] { exchange.Start(0, memory.Step(1)); }), ErrorKind::kInvalidArgument);
    WaitFor(exchange, 0);
    exchange.Commit("");
  });
}

TEST_P(ExchangeTest, SwapsRunBetweenStepsAndNeverBesideABucket) {
  std::atomic<bool> refused{false};
  OnRanks(2, GetParam(), [&refused](Exchange& exchange) {
    const int peer = 1 - exchange.Rank();
    Memory memory;
    exchange.AddBucket(Spec("bucket"));
    ASSERT_EQ(exchange.Swap(peer, 1000, 3).size(), 3u);
    if (exchange.Rank() == 0) {
      exchange.Start(0, memory.Step(kNumel));
      ASSERT_EQ(KindOf([&] { exchange.Swap(peer, 1, 1); }), ErrorKind::kInvalidArgument);
      refused = true;
    } else {
      while (!refused) std::this_thread::yield();  // until then, the bucket of rank 0 is in flight
      exchange.Start(0, memory.Step(kNumel));
    }
    WaitFor(exchange, 0);
    ASSERT_EQ(exchange.Swap(peer, 2000, 2).size(), 2u);
    exchange.Commit("");
    ASSERT_EQ(memory.gradient, std::vector<float>(kNumel, 2.0f));
  });
}

INSTANTIATE_TEST_SUITE_P(SelectOn, ExchangeTest,
                         testing::Values(SelectOn::kCaller, SelectOn::kEngine),
                         [](const auto& info) {
                           return info.param == SelectOn::kCaller ? "Caller" : "Engine";
                         });

}  // namespace
}  // namespace hvd_sparse
