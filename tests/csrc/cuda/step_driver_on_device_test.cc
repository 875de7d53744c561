/// Steps that an executor hands over op by op, with gradients on a GPU: applied values and
/// residuals have the bits of the same steps on the CPU.

#include <cmath>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "csrc/exchange/step_driver.h"
#include "tests/csrc/cuda/exchange_steps.h"
#include "tests/csrc/meeting.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kSizes[] = {kFirst, kSecond};

StepRules RulesOn(Device device) {
  StepRules rules;
  rules.non_finite = NonFinite::kMark;
  rules.device = device;
  return rules;
}

/// A rank with two ops, each a bucket of its own.
struct RankOn {
  RankOn(const std::shared_ptr<LoopbackWorld>& world, int rank, Device device)
      : exchange(std::make_unique<LoopbackCommunicator>(world, rank), SelectOn::kCaller),
        residual(device, std::vector<float>(kNumel)),
        origin{device, 0} {
    for (const std::int64_t numel : kSizes) {
      BucketSpec spec{"a bucket", {numel}, {numel}, {numel / 50}, "gaussian", {}, "gtopk"};
      spec.device = device;
      const float average = 1.0f / static_cast<float>(world->size());
      buckets.push_back({exchange.AddBucket(spec), 1, average, {{0, spec.max_ks}}, 1});
    }
    driver =
        std::make_unique<StepDriver>(&exchange, std::vector<OpGradients>{{kFirst, 1}, {kSecond, 1}},
                                     buckets, StepDriver::Hooks{}, RulesOn(device));
  }

  void Begin() { driver->Begin({{residual.data(), kNumel}, states, 1, {}, origin}); }

  std::future<void> Launch(int op, Memory<float>* gradient) {
    auto done = std::make_shared<std::promise<void>>();
    const auto tell = [done](std::exception_ptr error) {
      if (error) return done->set_exception(error);
      done->set_value();
    };
    driver->Launch(op, {{gradient->data(), kSizes[op], DType::kFloat32}}, tell, origin);
    return done->get_future();
  }

  void End() {
    std::promise<void> ended;
    driver->End([&ended](std::exception_ptr error) {
      EXPECT_EQ(error, nullptr);
      ended.set_value();
    });
    ended.get_future().get();
  }

  Exchange exchange;
  std::vector<DrivenBucket> buckets;
  Memory<float> residual;
  std::vector<SelectionState> states{2};
  Origin origin;
  std::unique_ptr<StepDriver> driver;
};

void OnRanks(int size, Device device, const std::function<void(RankOn&)>& program) {
  auto world = std::make_shared<LoopbackWorld>(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      RankOn one(world, rank, device);
      program(one);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Expects that the first element marks the step as refused, and the rest are zero.
void ExpectMarked(const std::vector<float>& gradient) {
  EXPECT_TRUE(std::isnan(gradient[0]));
  EXPECT_EQ(std::accumulate(gradient.begin() + 1, gradient.end(), 0.0f), 0.0f);
}

/// Runs steps of three ranks; in one step, a gradient of the last rank is not finite.
std::vector<StepBits> RunSteps(Device device) {
  constexpr int kRanks = 3;
  std::vector<StepBits> seen(kRanks);
  OnRanks(kRanks, device, [&](RankOn& rank) {
    const int number = rank.exchange.Rank();
    std::mt19937 random(17 + number);
    std::normal_distribution<float> gaussian;
    StepBits& mine = seen[static_cast<std::size_t>(number)];
    for (int step = 0; step < kSteps; ++step) {
      std::vector<std::unique_ptr<Memory<float>>> gradients;
      for (const std::int64_t numel : kSizes) {
        std::vector<float> values(static_cast<std::size_t>(numel));
        for (float& value : values) value = gaussian(random);
        if (step == kBadStep && number == kRanks - 1) values[7] = kInf;
        gradients.push_back(std::make_unique<Memory<float>>(rank.origin.device, values));
      }
      rank.Begin();
      std::vector<std::future<void>> done;
      for (const int op : {number % 2, 1 - number % 2}) {  // in any order
        done.push_back(rank.Launch(op, gradients[static_cast<std::size_t>(op)].get()));
      }
      for (auto& one : done) one.get();
      rank.End();
      for (const auto& gradient : gradients) {
        step == kBadStep ? ExpectMarked(gradient->Values()) : mine.Add(gradient->Values());
      }
      mine.Add(rank.residual.Values());
    }
  });
  return seen;
}

class StepDriverOnDevice : public CudaTest {};

TEST_F(StepDriverOnDevice, StepsHaveTheBitsOfTheCpu) {
  const std::vector<StepBits> of_cpu = RunSteps({}), of_gpu = RunSteps(kGpu);
  for (std::size_t rank = 0; rank < of_cpu.size(); ++rank) {
    EXPECT_TRUE(of_gpu[rank].bits == of_cpu[rank].bits) << "rank " << rank;
  }
}

TEST_F(StepDriverOnDevice, AStepThatFailsLeavesNothingInABlock) {
  Meeting begun(2);
  OnRanks(2, kGpu, [&begun](RankOn& rank) {
    Memory<float> first(kGpu, std::vector<float>(kFirst, 1.0f));
    rank.Begin();
    begun.Attend();
    std::future<void> done = rank.Launch(0, &first);
    if (rank.exchange.Rank() == 0) rank.driver->engine().Cancel("a test wants it");
    EXPECT_THROW(done.get(), Error);
    const std::vector<float> left = rank.residual.Values();
    const float unsent = std::accumulate(left.begin(), left.end(), 0.0f);
    EXPECT_TRUE(unsent == 0.0f || unsent == static_cast<float>(kFirst)) << unsent;
  });
}

TEST_F(StepDriverOnDevice, WhatDoesNotComeFromTheStreamOfTheStepIsRefused) {
  OnRanks(1, kGpu, [](RankOn& rank) {
    const auto begin_on_the_cpu = [&] {
      rank.driver->Begin({{rank.residual.data(), kNumel}, rank.states});
    };
    EXPECT_TRUE(Says(Thrown(begin_on_the_cpu), "must lie on cuda:0, got cpu"));
    rank.Begin();
    Memory<float> first(kGpu, std::vector<float>(kFirst, 1.0f));
    rank.origin.stream = 5;
    const auto launch = [&] { rank.Launch(0, &first); };
    EXPECT_TRUE(Says(Thrown(launch), "op 0 must come from the stream of its step"));
  });
}

/// Runs steps of a single rank that sends everything dense; a sum of the first is not finite.
/// Returns the gradients handed on and the residual after each step.
template <typename T>
StepBits RunDenseSteps(Device device) {
  auto world = std::make_shared<LoopbackWorld>(1);
  Exchange exchange(std::make_unique<LoopbackCommunicator>(world, 0), SelectOn::kCaller);
  const DrivenBucket dense{DrivenBucket::kDense, 0.3f, 1, {}, 2};
  StepDriver driver(&exchange, {{kFirst, 1}, {kSecond, 1}}, {dense}, {}, RulesOn(device));
  std::mt19937 random(3);
  std::normal_distribution<float> gaussian;
  std::vector<float> unsent(kNumel);
  for (float& value : unsent) value = gaussian(random);
  Memory<float> residual(device, unsent);
  std::vector<SelectionState> states(2);
  const Origin origin{device, 0};
  StepBits seen;
  for (int step = 0; step < 4; ++step) {
    driver.Begin({{residual.data(), kNumel}, states, 0.5f, {}, origin});
    for (const int op : {1, 0}) {
      std::vector<T> values(static_cast<std::size_t>(kSizes[op]));
      for (T& value : values) value = Narrow<T>(gaussian(random));
      Memory<T> gradient(device, values);
      EXPECT_TRUE(driver.Launch(op, {{gradient.data(), kSizes[op], kDTypeOf<T>}}, nullptr, origin));
      driver.SummedAs(step > 0 || op == 0);
      seen.Add(gradient.Values());
    }
    driver.End([](std::exception_ptr error) { EXPECT_EQ(error, nullptr); });
    seen.Add(residual.Values());
  }
  return seen;
}

TEST_F(StepDriverOnDevice, WhatIsSentDenseTakesItsResidualAlongWithTheBitsOfTheCpu) {
  EXPECT_TRUE(RunDenseSteps<float>(kGpu).bits == RunDenseSteps<float>({}).bits);
  EXPECT_TRUE(RunDenseSteps<Float16>(kGpu).bits == RunDenseSteps<Float16>({}).bits);
}

}  // namespace
}  // namespace hvd_sparse
