/// The order in which a step's stream and the exchange's own streams wait for each other, by CUDA's
/// events.

#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/comm/loopback_communicator.h"
#include "csrc/exchange/step_driver.h"
#include "tests/csrc/cuda/device_array.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kNumel = 100;
const auto kStream = reinterpret_cast<cudaStream_t>(0x77);  // none of the exchange's own

/// A log of events, one letter each: the step's stream was marked (M), made to wait (w), or given
/// work (k); one of the exchange's own was made to wait (f); an op was done (d).
class Log {
 public:
  Log() {
    Text().clear();
    emulation::at_event = [](cudaStream_t stream, cudaEvent_t, bool waits) {
      if (stream == kStream) Add(waits ? 'w' : 'M');
      if (stream != kStream && waits) Add('f');
    };
    emulation::at_work = [](cudaStream_t stream) {
      if (stream == kStream) Add('k');
    };
  }
  ~Log() {
    emulation::at_event = nullptr;
    emulation::at_work = nullptr;
  }

  static void Add(char what) {
    const std::lock_guard lock(Mutex());
    Text() += what;
  }

  static std::string All() { return Without(0); }

  /// Returns all letters except `left_out`.
  static std::string Without(char left_out) {
    const std::lock_guard lock(Mutex());
    std::string seen;
    for (const char what : Text()) seen += what == left_out ? "" : std::string(1, what);
    return seen;
  }

 private:
  static std::mutex& Mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::string& Text() {
    static std::string text;
    return text;
  }
};

StepRules RulesOnGpu() {
  StepRules rules;
  rules.non_finite = NonFinite::kMark;
  rules.device = kGpu;
  return rules;
}

/// A single rank, with buckets of one op each, all of which may be sent dense.
class RankAlone {
 public:
  explicit RankAlone(std::int64_t ops, bool is_dense = false, StepRules rules = RulesOnGpu())
      : rules_(rules),
        exchange_(std::make_unique<LoopbackCommunicator>(std::make_shared<LoopbackWorld>(1), 0),
                  SelectOn::kCaller),
        residual_(std::vector<float>(static_cast<std::size_t>(ops * kNumel))),
        velocity_(residual_.Values()),
        room_(residual_.Values()),
        states_(static_cast<std::size_t>(ops)) {
    std::vector<DrivenBucket> buckets;
    for (std::int64_t op = 0; op < ops; ++op) {
      if (is_dense) {
        buckets.push_back({DrivenBucket::kDense, 1, 1, {}, 1});
        continue;
      }
      BucketSpec spec{"a bucket", {kNumel}, {kNumel}, {10}, "top_k", {}, "gtopk"};
      spec.device = rules_.device;
      buckets.push_back({exchange_.AddBucket(spec), 1, 1, {{0, {10}}}, 1});
    }
    driver_ = std::make_unique<StepDriver>(
        &exchange_, std::vector<OpGradients>(static_cast<std::size_t>(ops), OpGradients{kNumel, 1}),
        buckets,
        StepDriver::Hooks{nullptr, [](const std::vector<StepSample>&) {},
                          [this](const StepEnd& ended) { ended_ = ended; }},
        rules_);
  }

  void Begin() {
    StepMemory memory{residual_.span(), states_};
    if (rules_.has_velocity) memory.velocity = velocity_.span();
    memory.momentum = 0.5f;
    memory.room = {room_.data(), driver_->engine().Room()};
    memory.origin = origin_;
    driver_->Begin(memory);
  }

  std::future<void> Launch(int op, DeviceArray<float>* gradient) {
    auto done = std::make_shared<std::promise<void>>();
    const auto tell = [done](std::exception_ptr error) {
      EXPECT_EQ(error, nullptr);
      Log::Add('d');
      done->set_value();
    };
    driver_->Launch(op, {{gradient->data(), kNumel, DType::kFloat32}}, tell, origin_);
    return done->get_future();
  }

  /// Ends the step and returns its StepEnd.
  StepEnd End() {
    std::promise<void> ended;
    driver_->End([&ended](std::exception_ptr error) {
      EXPECT_EQ(error, nullptr);
      ended.set_value();
    });
    ended.get_future().get();
    return ended_;
  }

  /// Runs a step of gradients that are all sent dense.
  StepEnd SendDense(std::vector<std::unique_ptr<DeviceArray<float>>>* gradients) {
    Begin();
    for (std::size_t op = 0; op < gradients->size(); ++op) {
      Launch(static_cast<int>(op), (*gradients)[op].get());
      driver_->SummedAs(true);
    }
    return End();
  }

  StepDriver& driver() { return *driver_; }

 private:
  const StepRules rules_;
  const Origin origin_{rules_.device, reinterpret_cast<StreamHandle>(kStream)};
  Exchange exchange_;
  DeviceArray<float> residual_, velocity_, room_;
  std::vector<SelectionState> states_;
  StepEnd ended_;
  std::unique_ptr<StepDriver> driver_;
};

TEST(StepDriverMarks, GradientsAreReadAfterTheStepsStreamAndFoundWrittenByIt) {
  RankAlone rank(1);
  DeviceArray<float> gradient(std::vector<float>(kNumel, 1.0f));
  const Log log;
  rank.Begin();
  rank.Launch(0, &gradient).get();
  // Both threads of the exchange, the selecting and the writing one, follow.
  EXPECT_EQ(Log::All(), "Mffwd");
}

TEST(StepDriverMarks, NobodyIsToldBeforeTheStepsStreamWaitsForAllBuckets) {
  RankAlone rank(2);
  const std::vector<float> ones(kNumel, 1.0f);
  DeviceArray<float> first(ones), second(ones);
  const Log log;
  rank.Begin();
  std::future<void> later = rank.Launch(1, &second);
  EXPECT_EQ(Log::All(), "");  // its turn has not come
  rank.Launch(0, &first).get();
  later.get();
  const std::string seen = Log::Without('f');
  EXPECT_EQ(seen.substr(seen.size() - 2), "dd");
  EXPECT_EQ(seen.find('d'), 4u) << seen;  // two marks and two waits, in any order but these
  EXPECT_EQ(seen[0], 'M');
}

TEST(StepDriverMarks, GradientsOfARefusedStepAreMarkedInTheOrderOfTheStepsStream) {
  RankAlone rank(1);
  std::vector<float> values(kNumel, 1.0f);
  values[3] = std::numeric_limits<float>::infinity();
  DeviceArray<float> gradient(values);
  const Log log;
  rank.Begin();
  rank.Launch(0, &gradient).get();
  EXPECT_EQ(Log::Without('f'), "MwMwd");
  EXPECT_TRUE(std::isnan(gradient.Values()[0]));
  EXPECT_EQ(gradient.Values()[3], 0.0f);
}

std::vector<std::unique_ptr<DeviceArray<float>>> Gradients(int count) {
  std::vector<std::unique_ptr<DeviceArray<float>>> gradients;
  for (int i = 0; i < count; ++i) {
    gradients.push_back(std::make_unique<DeviceArray<float>>(std::vector<float>(kNumel, 1.0f)));
  }
  return gradients;
}

TEST(StepDriverMarks, ATimedStepMarksOpsAndItsEndAndOthersMarkNothing) {
  RankAlone rank(2, true);
  auto gradients = Gradients(2);
  const Log log;
  EXPECT_EQ(rank.SendDense(&gradients).reading, nullptr);
  EXPECT_EQ(Log::Without('k'), "");
  rank.driver().engine().TimeSteps(true);
  EXPECT_EQ(Log::Without('k'), "M");  // where the first one begins
  EXPECT_NE(rank.SendDense(&gradients).reading, nullptr);
  EXPECT_EQ(Log::Without('k'), "MMMM");
  rank.driver().engine().TimeSteps(true);  // the end of one step is the beginning of the next
  EXPECT_NE(rank.SendDense(&gradients).reading, nullptr);
  EXPECT_EQ(Log::Without('k'), "MMMMMMM");
  rank.driver().engine().TimeSteps(false);
  EXPECT_EQ(rank.SendDense(&gradients).reading, nullptr);
  EXPECT_EQ(Log::Without('k'), "MMMMMMM");
}

TEST(StepDriverMarks, ResidualsJoinAndGoInTheOrderOfTheStepsStream) {
  RankAlone rank(2, true);
  auto gradients = Gradients(2);
  rank.SendDense(&gradients);
  rank.driver().engine().ContinueAfter(1);  // with another residual
  const Log log;
  rank.driver().engine().TimeSteps(true);
  rank.SendDense(&gradients);
  EXPECT_EQ(Log::All(), "MMkMkkkM");  // ops are ready, then joined; the end follows all
  rank.SendDense(&gradients);
  EXPECT_EQ(Log::All(), "MMkMkkkMMMM");  // no residual is left
}

TEST(StepDriverMarks, VelocitiesJoinAndGoOnInTheOrderOfTheStepsStreamInEveryStep) {
  StepRules rules = RulesOnGpu();
  rules.has_velocity = true;
  RankAlone rank(2, true, rules);
  auto gradients = Gradients(2);
  for (int step = 0; step < 2; ++step) {
    const Log log;
    rank.Begin();
    for (const int op : {0, 1}) {
      rank.Launch(op, gradients[static_cast<std::size_t>(op)].get());
      rank.driver().SummedAs(true);
    }
    EXPECT_EQ(Log::All(), "kk");
    rank.End();
    EXPECT_EQ(Log::All(), "kkkkkk");  // a velocity and a residual of each
  }
}

TEST(StepDriverMarks, WhatIsMeasuredIsReadBehindTheStepsStream) {
  StepRules rules = RulesOnGpu();
  rules.measure_every = 2;
  RankAlone rank(1, false, rules);
  DeviceArray<float> gradient(std::vector<float>(kNumel, 1.0f));
  for (const char* order : {"MfMffwMfd", "Mffwd"}) {
    const Log log;
    rank.Begin();
    rank.Launch(0, &gradient).get();
    EXPECT_EQ(Log::All(), order);
    rank.End();
  }
}

/// Keeps the device from reaching any event while it lives.
class BusyDevice {
 public:
  BusyDevice() {
    emulation::device_is_idle = [] { return false; };
  }
  ~BusyDevice() { emulation::device_is_idle = nullptr; }
};

TEST(StepDriverMarks, NobodyWaitsForTheDeviceBeforeAStepIsRead) {
  StepRules rules = RulesOnGpu();
  rules.has_velocity = true;
  RankAlone rank(2, true, rules);
  auto gradients = Gradients(2);
  std::shared_ptr<StepReading> reading;
  rank.driver().engine().TimeSteps(true);
  {
    const BusyDevice busy;  // a wait for it would never end
    const int waits = emulated_calls.waits;
    reading =
        rank.SendDense(&gradients).reading;  // and residuals and velocities join the gradients
    EXPECT_EQ(emulated_calls.waits, waits);
    EXPECT_FALSE(reading->Passed());
  }
  ASSERT_TRUE(reading->Passed());
  const StepTimes times = reading->Times();
  EXPECT_GE(times.forward, 0);
  EXPECT_EQ(times.ready[0], 0);
  EXPECT_GE(times.ready[1], 0);
  EXPECT_GE(times.step, times.forward + times.ready[1]);
}

}  // namespace
}  // namespace hvd_sparse
