/// Whichever allocation fails, on whichever thread: each of a driver's callbacks is called once,
/// and the residual holds what was not applied.

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/exchange/step_driver.h"
#include "tests/csrc/driven_ranks.h"
#include "tests/csrc/failing_allocations.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

/// A callback's recorder: how often it was called, and whether with an error.
struct Waiting {
  StepDriver::Done Done() {
    return [this](const std::exception_ptr& error) {
      failed = error != nullptr;
      ++told;
      if (first) first();
    };
  }
  void Wait() const {
    while (told == 0) std::this_thread::yield();
  }

  std::function<void()> first;  // called in the callback
  std::atomic<bool> failed{false};
  std::atomic<int> told{0};
};

/// A rank with a Waiting for each op, which exchanges one entry of each; other ranks never come.
class WaitingRank {
 public:
  explicit WaitingRank(const Layout& layout, const StepDriver::Hooks& hooks = {},
                       StepRules rules = {}, int ranks = 1)
      : world(std::make_shared<LoopbackWorld>(ranks)), rank(world, 0, layout, hooks, rules) {
    rank.driver->engine().ContinueAfter(1);
  }

  void Launch(int op) {
    Waiting& one = waiting[static_cast<std::size_t>(op)];
    const std::vector<GradView> gradient = {{rank.Gradient(op).data(), kNumel, DType::kFloat32}};
    const StepDriver::Done done = one.Done();
    rank.driver->Launch(op, gradient, done);
  }

  /// Returns the sum of an op's residual; gradients are ones.
  double Unsent(int op) const {
    double sum = 0;
    for (std::int64_t i = 0; i < kNumel; ++i) {
      sum += rank.residual[static_cast<std::size_t>(op * kNumel + i)];
    }
    return sum;
  }

  /// Returns the sum of an op's gradient as handed out.
  double Applied(int op) {
    double sum = 0;
    for (const float value : rank.Gradient(op)) sum += value;
    return sum;
  }

  const std::shared_ptr<LoopbackWorld> world;
  DrivenRank rank;
  std::vector<Waiting> waiting{kOps};
};

TEST(StepDriver, WhicheverAllocationOfALaunchFailsEveryOpIsToldOnceAndNothingIsLost) {
  for (int allocation = 0;; ++allocation) {
    WaitingRank one(kOneByOne);
    std::atomic<bool> kept{true};
    for (int op = 0; op < kOps; ++op) {
      // This rank owns the memory again, whatever the exchange's own thread does.
      Waiting& waiting = one.waiting[static_cast<std::size_t>(op)];
      waiting.first = [&one, &waiting, &kept, op] {
        const double unsent = one.Unsent(op);
        if (waiting.failed && unsent != 0 && unsent != kNumel) kept = false;  // joined, or not yet
      };
    }
    one.rank.Begin();
    for (const int op : {1, 2, 3}) one.Launch(op);
    bool thrown = false;
    FailAllocation(allocation);
    try {
      one.Launch(0);
    } catch (const std::exception&) {
      thrown = true;
    }
    const bool any = StopFailingAllocations();
    if (!thrown) {
      for (const Waiting& waiting : one.waiting) waiting.Wait();
    }
    const bool failed = thrown || one.waiting[0].failed;
    one.rank.driver.reset();
    EXPECT_EQ(failed, any) << allocation;
    for (int op = 0; op < kOps; ++op) {
      EXPECT_EQ(one.waiting[static_cast<std::size_t>(op)].told, thrown && op == 0 ? 0 : 1)
          << "op " << op << ", allocation " << allocation;
    }
    EXPECT_TRUE(kept) << allocation;
    if (!any || testing::Test::HasFailure()) return;
  }
}

TEST(StepDriver, WhicheverAllocationOfAnEndFailsItIsToldOnceThatTheStepCounts) {
  for (const bool hooked : {false, true}) {
    for (int allocation = 0;; ++allocation) {
      StepDriver::Hooks hooks;
      if (hooked) hooks.step_ended = [](const StepEnd&) {};
      WaitingRank one({-4}, hooks);
      one.rank.Begin();
      for (int op = 0; op < kOps; ++op) one.rank.Hand(op);
      Waiting ending;
      StepDriver::Done done = ending.Done();
      FailAllocation(allocation);
      EXPECT_NO_THROW(one.rank.driver->End(std::move(done)));
      const bool any = StopFailingAllocations();
      one.rank.driver.reset();
      ASSERT_EQ(ending.told, 1);
      EXPECT_FALSE(ending.failed);  // the step counts: its residuals are part of the sums
      if (!any) break;
      EXPECT_THROW(one.world->Check(0), Error);
    }
  }
}

/// The outcome of a step, had no allocation failed on the driver's thread.
enum class Step { kCounts, kIsRefused, kIsLost };

class OnTheDriversThread : public testing::TestWithParam<Step> {};

TEST_P(OnTheDriversThread, WhicheverAllocationFailsEveryOpIsToldOnceAndNothingIsLost) {
  for (int allocation = 0;; ++allocation) {
    bool any = false;
    StepDriver::Hooks hooks;
    hooks.measured = [](const std::vector<StepSample>&) {};
    hooks.step_ended = [&](const StepEnd&) { FailAllocation(allocation); };
    StepRules rules;
    rules.measure_every = 1;
    WaitingRank one({-4}, hooks, rules, GetParam() == Step::kIsLost ? 2 : 1);
    one.rank.driver->engine().ContinueAfter(1, /*pending=*/false);  // so that no op need come
    one.rank.Begin();
    one.rank.End();
    one.rank.driver->engine().Replace(one.rank.Buckets({2, 1, -1}));
    if (GetParam() == Step::kIsRefused) one.rank.Gradient(1)[3] = NAN;
    one.waiting[0].first = [&] { any = StopFailingAllocations(); };
    one.rank.Begin();
    for (int op = 0; op < kOps; ++op) one.Launch(op);
    if (GetParam() == Step::kIsLost) {
      one.world->Fail(1, ErrorKind::kPeerLost, "the other rank was lost");
    } else {
      one.rank.Sum(3);
    }
    for (const int op : {0, 1, 2}) one.waiting[static_cast<std::size_t>(op)].Wait();
    one.rank.driver.reset();
    const bool failed = one.waiting[0].failed;
    for (const int op : {0, 1, 2}) {
      EXPECT_EQ(one.waiting[static_cast<std::size_t>(op)].told, 1);
      EXPECT_EQ(one.waiting[static_cast<std::size_t>(op)].failed, failed);
      const int finite = GetParam() == Step::kIsRefused && op == 1 ? kNumel - 1 : kNumel;
      EXPECT_EQ(one.Unsent(op) + (failed ? 0 : one.Applied(op)), finite)
          << "op " << op << ", allocation " << allocation;
    }
    EXPECT_TRUE(failed || GetParam() == Step::kCounts);
    if (any && GetParam() == Step::kCounts) {
      EXPECT_THROW(one.world->Check(0), Error);
    } else {  // if a step is refused, its reason may be cut short
      EXPECT_EQ(failed, GetParam() != Step::kCounts);
    }
    if (!any || HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(OfAStepThat, OnTheDriversThread,
                         testing::Values(Step::kCounts, Step::kIsRefused, Step::kIsLost),
                         [](const auto& test) {
                           switch (test.param) {
                             case Step::kCounts:
                               return "Counts";
                             case Step::kIsRefused:
                               return "IsRefused";
                             case Step::kIsLost:
                               break;
                           }
                           return "IsLost";
                         });

TEST(StepDriver, WhicheverAllocationOfACancellationFailsAllAreTold) {
  for (int allocation = 0;; ++allocation) {
    WaitingRank one({4});
    one.rank.Begin();
    one.Launch(2);
    FailAllocation(allocation);
    EXPECT_NO_THROW(
        one.rank.driver->engine().Cancel("nobody wants this step, whatever is there of it"));
    const bool any = StopFailingAllocations();
    EXPECT_THROW(one.world->Check(0), Error);
    one.rank.driver.reset();
    EXPECT_EQ(one.waiting[2].told, 1);
    EXPECT_TRUE(one.waiting[2].failed);
    if (!any || testing::Test::HasFailure()) return;
  }
}

TEST(StepDriver, AStepThatIsEndedTwiceEndsTheExchange) {
  std::atomic<bool> go{false};
  StepDriver::Hooks hooks;
  hooks.step_ended = [&go](const StepEnd&) {
    while (!go) std::this_thread::yield();
  };
  WaitingRank one({-4}, hooks);
  std::vector<Waiting> ends(3);
  one.rank.driver->engine().ContinueAfter(1, /*pending=*/false);  // so that no op need come
  one.rank.Begin();
  // The first may have begun, which makes room for another one.
  for (Waiting& end : ends) one.rank.driver->End(end.Done());
  EXPECT_TRUE(ends[1].failed || ends[2].failed);
  EXPECT_THROW(one.world->Check(0), Error);
  go = true;
  one.rank.driver.reset();
  for (const Waiting& end : ends) EXPECT_EQ(end.told, 1);
}

}  // namespace
}  // namespace hvd_sparse
