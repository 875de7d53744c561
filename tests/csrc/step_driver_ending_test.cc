/// Steps of a driver that run out of memory; and when the user learns that an exchange ended.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/exchange/step_driver.h"
#include "tests/csrc/driven_ranks.h"
#include "tests/csrc/failing_allocations.h"
#include "tests/csrc/meeting.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

/// Counts how often the user is reported to know of the end.
class TellingCommunicator final : public LoopbackCommunicator {
 public:
  TellingCommunicator(std::shared_ptr<LoopbackWorld> world, std::atomic<int>* acknowledged)
      : LoopbackCommunicator(std::move(world), 0), acknowledged_(*acknowledged) {}
  void Acknowledge() override { ++acknowledged_; }

 private:
  std::atomic<int>& acknowledged_;
};

TEST(StepDriver, TheUserKnowsOfTheEndOnceNoSumIsWaitedFor) {
  for (const bool summed : {false, true}) {
    std::atomic<int> acknowledged{0};
    auto world = std::make_shared<LoopbackWorld>(2);  // the other rank never comes
    DrivenRank rank(std::make_unique<TellingCommunicator>(world, &acknowledged), {2, -2});
    rank.Begin();
    std::future<void> first = rank.Launch(0), second = rank.Launch(1);
    for (const int op : {2, 3}) {
      rank.Hand(op);
      if (summed) rank.Sum(op);
    }
    world->Fail(1, ErrorKind::kPeerLost, "rank 1 has died");
    ASSERT_EQ(KindOf(std::move(first)), ErrorKind::kPeerLost);
    ASSERT_EQ(KindOf(std::move(second)), ErrorKind::kPeerLost);
    EXPECT_EQ(acknowledged > 0, summed);
  }
}

TEST(StepDriver, WhoeverIsToldThatAStepEndedAmidItsSumsHasAllThatWasTakenAgain) {
  auto world = std::make_shared<LoopbackWorld>(1);
  DrivenRank rank(world, 0, {2, -2});
  rank.driver->engine().ContinueAfter(1);  // one entry of each op is taken
  rank.Begin();
  std::promise<double> unsent;
  rank.driver->Launch(0, {{rank.Gradient(0).data(), kNumel, DType::kFloat32}},
                      [&](const std::exception_ptr& error) {
                        unsent.set_value(error == nullptr ? -1 : rank.Unsent());
                      });
  std::future<void> second = rank.Launch(1);
  for (const int op : {2, 3}) rank.Hand(op);
  ASSERT_EQ(second.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  while (!rank.exchange.Wait(0, 1.0)) {
  }
  ASSERT_GT(rank.exchange.Stats(0).exchange_end, 0);
  rank.driver->engine().Cancel("its sums will not come");
  EXPECT_EQ(unsent.get_future().get(), 2.0 * kNumel);
}

/// Sets a short timeout for drivers made while it lives.
struct ShortPatience {
  ShortPatience() { ::setenv("HVD_SPARSE_TIMEOUT_SECONDS", "0.05", 1); }
  ~ShortPatience() { ::unsetenv("HVD_SPARSE_TIMEOUT_SECONDS"); }
};

TEST(StepDriver, SumsThatNeverComeAreGivenUpOnAllRanks) {
  const ShortPatience impatient;
  Meeting begun(2);
  OnRanks(2, {2, -2}, [&begun](DrivenRank& rank) {
    rank.BeginTogether(&begun);
    for (const int op : {2, 3}) rank.Hand(op);
    rank.Sum(2);
    std::vector<std::future<void>> done;  // after them the wait for sums begins
    for (const int op : {0, 1}) done.push_back(rank.Launch(op));
    for (auto& one : done) {
      const Error error = Thrown([&] { one.get(); });
      ASSERT_EQ(error.kind(), ErrorKind::kTimeout);
      EXPECT_TRUE(Says(error, "gave up waiting for 1 of the host's sums")) << error.what();
    }
  });
}

TEST(StepDriver, TheDeadlineOfSumsHoldsWhereAllOpsAreSentDense) {
  const ShortPatience impatient;
  auto world = std::make_shared<LoopbackWorld>(1);
  DrivenRank rank(world, 0, {-4});
  rank.Begin();
  for (int op = 0; op + 1 < kOps; ++op) rank.Hand(op);
  const Error error = Thrown([&] {
    rank.Hand(kOps - 1);  // the wait begins
    for (;;) {
      rank.exchange.Check();
      std::this_thread::yield();
    }
  });
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  EXPECT_TRUE(Says(error, "gave up waiting for 4 of the host's sums")) << error.what();
  EXPECT_THROW(rank.Hand(0), Error);
}

TEST(StepDriver, ALackOfMemoryEndsTheStepOnAllRanks) {
  const auto fail = [] { throw std::bad_alloc(); };
  StepDriver::Hooks measuring, ending;
  measuring.measured = [&](const std::vector<StepSample>&) { fail(); };
  ending.step_ended = [&](const StepEnd&) { fail(); };
  StepRules rules;
  rules.measure_every = 1;
  for (const StepDriver::Hooks& hooks : {measuring, ending}) {
    auto world = std::make_shared<LoopbackWorld>(2);
    std::vector<std::thread> threads;
    for (int number = 0; number < 2; ++number) {
      threads.emplace_back([&, number] {
        DrivenRank rank(world, number, {4}, number == 1 ? hooks : StepDriver::Hooks{}, rules);
        const auto step = [&] {
          rank.Begin();
          std::vector<std::future<void>> done;
          for (int op = 0; op < kOps; ++op) done.push_back(rank.Launch(op));
          for (auto& one : done) one.get();
          rank.End();
        };
        const Error error = Thrown([&] {
          for (;;) step();
        });
        EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
        EXPECT_TRUE(Says(error, "rank 1 ran out of memory in the end of a step")) << error.what();
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

/// Runs a step of a single rank whose step_ended hook fails, and optionally begins another one.
void TakeAStepWhoseHookFails(const StepDriver::Hooks& hooks, bool another) {
  StepRules rules;
  rules.measure_every = 1;
  auto world = std::make_shared<LoopbackWorld>(1);
  DrivenRank rank(world, 0, {2, -2}, hooks, rules);
  rank.driver->engine().ContinueAfter(1);
  rank.Begin();
  std::future<void> first = rank.Launch(0), second = rank.Launch(1);
  for (const int op : {2, 3}) {
    rank.Hand(op);
    rank.Sum(op);
  }
  EXPECT_NO_THROW(first.get());
  EXPECT_NO_THROW(second.get());
  EXPECT_NO_THROW(rank.End());
  double applied = 0;
  for (const int op : {0, 1}) {
    for (const float value : rank.Gradient(op)) applied += value;
  }
  EXPECT_EQ(applied + rank.Unsent(), 2 * kNumel);
  EXPECT_GT(applied, 0);

  if (!another) return;
  const Error error = Thrown([&] { rank.Begin(); });
  EXPECT_TRUE(Says(error, "the hook has failed")) << error.what();
}

TEST(StepDriver, AStepThatCountsIsHandedOutAndWhatItsHooksThrowIsToldByTheNextOneOrTheLog) {
  const auto fail = [] { Throw(ErrorKind::kExchangeFailed, "the hook has failed"); };
  StepDriver::Hooks measuring, ending;
  measuring.measured = [&](const std::vector<StepSample>&) { fail(); };
  ending.step_ended = [&](const StepEnd&) { fail(); };
  for (const StepDriver::Hooks& hooks : {measuring, ending}) {
    for (const bool another : {false, true}) {
      testing::internal::CaptureStderr();
      TakeAStepWhoseHookFails(hooks, another);
      const std::string said = testing::internal::GetCapturedStderr();
      const bool is_told = said.find("the last one: the hook has failed") != std::string::npos;
      EXPECT_EQ(is_told, !another) << said;
    }
  }
}

TEST(StepDriver, NoMemoryToStartABucketEndsTheStep) {
  for (int allocation = 0;; ++allocation) {
    auto world = std::make_shared<LoopbackWorld>(1);
    StepRules rules;
    rules.measure_every = 1;  // copies the residual first
    DrivenRank rank(world, 0, {1, -3}, {}, rules);
    rank.Begin();
    for (const int op : {1, 2, 3}) {
      rank.Hand(op);
      rank.Sum(op);
    }
    const std::vector<GradView> gradient = {{rank.Gradient(0).data(), kNumel, DType::kFloat32}};
    std::promise<std::string> told;
    StepDriver::Done done = [&told](const std::exception_ptr& error) {
      told.set_value(error ? Thrown([&] { std::rethrow_exception(error); }).what() : "");
    };
    std::string text;
    FailAllocation(allocation);
    try {
      rank.driver->Launch(0, gradient, std::move(done));
      StopFailingAllocations();
      text = told.get_future().get();
    } catch (const std::bad_alloc&) {  // nothing has happened
      continue;
    }
    if (text.empty()) return;
    EXPECT_EQ(text.find("rank 0 ran out of memory in "), 0u) << text;
    EXPECT_THROW(rank.exchange.Check(), Error);
  }
}

}  // namespace
}  // namespace hvd_sparse
