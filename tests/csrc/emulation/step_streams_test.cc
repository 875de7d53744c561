/// A bucket is selected while the previous one is exchanged, and nothing is done too early.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/comm/loopback_communicator.h"
#include "csrc/cuda/transport/transport_collectives.h"
#include "csrc/cuda/transport/transport_step.h"
#include "tests/csrc/cuda/bucket_specs.h"
#include "tests/csrc/cuda/own_ranks.h"
#include "tests/csrc/emulation/stream_order.h"
#include "tests/csrc/meeting.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kNumel = 500, kK = 20;
const auto kCaller = reinterpret_cast<cudaStream_t>(0x77);  // none of the transport's own

/// A transport for one of two ranks, whose peer returns the bytes sent to it.
class Mirror final : public cuda::GpuTransport {
 public:
  explicit Mirror(Communicator* comm) : GpuTransport(comm, 0, {}) {}
  const char* Name() const override { return "a mirror"; }
  void Exchange(int, const void* send, void* recv, std::int64_t bytes,
                cudaStream_t stream) override {
    cuda::Check(
        cudaMemcpyAsync(recv, send, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream),
        "copy");
  }

 private:
  std::string AwaitedRanks() const override { return "nobody"; }
};

/// A bucket over a Mirror, whose gradients come from the caller's stream.
class Mirrored {
 public:
  Mirrored(int id, cuda::GpuTransport* transport, StreamOrder* order)
      : name_(std::to_string(id)),
        order_(*order),
        step_(SpecOf({{kNumel, kK}}, {kNumel}), static_cast<std::uint32_t>(id), 0, transport) {
    for (std::int64_t i = 0; i < kNumel; ++i) gradient_.push_back(static_cast<float>(i % 83) - 41);
  }

  void Compute() {
    order_.Begin("gradient " + name_);
    emulation::Given(kCaller);
    ready_.Record(kCaller);
  }
  void Select() {
    order_.Begin("select " + name_);
    Launch launch;
    launch.gradients = {{gradient_.data(), kNumel, DType::kFloat32}};
    launch.residual = residual_;
    launch.states = states_;
    launch.ks = {kK};
    launch.decays = {1.0f};
    launch.output_scale = 0.5f;
    ready_.MakeStreamFollow(reinterpret_cast<cudaStream_t>(step_.select_stream()));  // NOLINT
    step_.Select(launch);
  }
  void Exchange() {
    order_.Begin("exchange " + name_);
    step_.Exchange();
    written_.Record(reinterpret_cast<cudaStream_t>(step_.exchange_stream()));  // NOLINT
  }
  void Update() {
    ASSERT_TRUE(step_.Arrived(1));
    written_.MakeStreamFollow(kCaller);
    order_.Begin("update " + name_);
    emulation::Given(kCaller);
  }
  void PutBack() {
    order_.Begin("put back " + name_);
    step_.PutBack();
  }

  bool IsWhole() const {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return residual_ == gradient_;
  }
  cuda::TransportStep& step() { return step_; }

 private:
  const std::string name_;
  StreamOrder& order_;
  std::vector<float> residual_ = std::vector<float>(kNumel), gradient_;
  std::vector<SelectionState> states_ = std::vector<SelectionState>(1);
  cuda::Event ready_, written_;
  cuda::TransportStep step_;
};

class StepStreams : public testing::Test {
 protected:
  LoopbackCommunicator comm_{std::make_shared<LoopbackWorld>(2), 0};
  Mirror transport_{&comm_};
  StreamOrder order_;
  Mirrored first_{0, &transport_, &order_}, second_{1, &transport_, &order_};
};

TEST_F(StepStreams, ASelectionWaitsForItsGradientAndForNoExchange) {
  first_.Compute();
  first_.Select();
  first_.Exchange();
  second_.Compute();
  second_.Select();
  second_.Exchange();
  for (const std::string bucket : {"0", "1"}) {
    EXPECT_TRUE(order_.Follows("select " + bucket, "gradient " + bucket));
    EXPECT_TRUE(order_.Follows("exchange " + bucket, "select " + bucket));
  }
  EXPECT_TRUE(order_.IsBeside("select 1", "exchange 0"));
  EXPECT_TRUE(order_.IsBeside("exchange 0", "select 1"));
  EXPECT_TRUE(order_.IsBeside("select 0", "gradient 1"));
}

TEST_F(StepStreams, ExchangesKeepTheirOrderWhateverIsSelectedMeanwhile) {
  first_.Compute();
  second_.Compute();
  second_.Select();
  first_.Select();
  first_.Exchange();
  second_.Exchange();
  EXPECT_TRUE(order_.Follows("exchange 1", "exchange 0"));
  EXPECT_TRUE(order_.Follows("exchange 1", "select 1"));
  EXPECT_TRUE(order_.Follows("exchange 0", "select 0"));
}

TEST_F(StepStreams, AnExchangeWaitsForNoSelectionThatWasGivenBeforeIt) {
  for (Mirrored* bucket : {&first_, &second_}) {
    bucket->Compute();
    bucket->Select();
  }
  first_.Exchange();
  EXPECT_TRUE(order_.IsBeside("exchange 0", "select 1"));
}

TEST_F(StepStreams, TheNextStepFollowsAllOfTheOneBefore) {
  for (Mirrored* bucket : {&first_, &second_}) {
    bucket->Compute();
    bucket->Select();
  }
  for (Mirrored* bucket : {&first_, &second_}) bucket->Exchange();
  for (Mirrored* bucket : {&first_, &second_}) bucket->Update();
  EXPECT_TRUE(order_.Follows("update 0", "exchange 0"));
  EXPECT_TRUE(order_.Follows("update 0", "select 0"));
  EXPECT_TRUE(order_.IsBeside("update 0", "exchange 1"));
  EXPECT_TRUE(order_.Follows("update 1", "exchange 1"));
}

TEST_F(StepStreams, WhatWasSelectedReturnsBehindItsSelection) {
  first_.Compute();
  first_.Select();
  EXPECT_FALSE(first_.IsWhole());
  first_.PutBack();  // as if the ranks had disagreed
  EXPECT_TRUE(order_.Follows("put back 0", "select 0"));
  EXPECT_TRUE(first_.IsWhole());
}

TEST_F(StepStreams, ASelectionEndsBeforeItsTurnComes) {
  first_.Compute();
  first_.Select();
  first_.Exchange();
  first_.Update();
  const DeviceStepReport& report = first_.step().report();
  EXPECT_LE(report.begin, report.select_end);
  EXPECT_LE(report.select_end, report.messages.begin);
  EXPECT_LE(report.messages.begin, report.messages.end);
  EXPECT_LE(report.messages.end, report.end);
  EXPECT_EQ(report.selected, kK);
}

// ---- In an exchange -----------------------------------------------------------------------------

TEST_F(StepStreams, ABucketBeginsBehindTheCallersStreamWhichGoesOnBehindItsEnd) {
  LoopbackCommunicator alone(std::make_shared<LoopbackWorld>(1), 0);
  const auto gpu_collectives = cuda::MakeGpuCollectives(0, std::make_unique<Mirror>(&alone));
  const Kernels& kernels = KernelsFor(kGpu);
  BucketSpec spec{"b", {kNumel}, {kNumel}, {kK}, "gaussian", {}, "gtopk"};
  spec.device = kGpu;
  Bucket bucket(0, spec);
  bucket.PrepareSteps(gpu_collectives.get());
  std::vector<float> gradient(kNumel, 1.0f), residual(kNumel);
  std::vector<SelectionState> states(1);
  Launch launch;
  launch.gradients = {{gradient.data(), kNumel, DType::kFloat32}};
  launch.residual = residual;
  launch.states = states;
  launch.ks = {kK};
  launch.decays = {1.0f};
  const auto caller = reinterpret_cast<StreamHandle>(kCaller);  // NOLINT

  order_.Begin("gradient");
  emulation::Given(kCaller);
  const std::shared_ptr<const Mark> ready = kernels.EndOf(caller);
  order_.Begin("select");
  bucket.Select(launch, 0, kernels, Route::kStep, ready.get());
  order_.Begin("exchange");
  EXPECT_FALSE(bucket.step().Reduce(alone, kernels, nullptr));
  kernels.MakeStreamFollow(caller, bucket.step().Written(kernels).get());
  order_.Begin("update");
  emulation::Given(kCaller);
  EXPECT_TRUE(order_.Follows("select", "gradient"));
  EXPECT_TRUE(order_.Follows("exchange", "select"));
  EXPECT_TRUE(order_.Follows("update", "exchange"));
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

std::atomic<int> given{0};  // pieces of work, on all ranks

/// Over MPI, a thread of the exchange sends the first bucket's messages in the meantime.
TEST(StepStreamsOverMpi, ABucketIsSelectedWhileMessagesOfTheOneBeforeAreUnderWay) {
  constexpr int kOfASelection = cuda::DeviceSelector::kLaunches;
  ::setenv("HVD_SPARSE_CUDA_AWARE_MPI", "1", 1);
  std::atomic<bool> looks{false}, seen{false};
  Conditions conditions;
  conditions.before_transfer = [&](Communicator&, const std::string& what) {
    if (!looks || what.find("'0'") == std::string::npos) return;
    if (what.find("over MPI") == std::string::npos) return;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (given < 2 * kRanks * kOfASelection && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    seen = given >= 2 * kRanks * kOfASelection;
    looks = false;
  };
  Meeting meeting(kRanks);
  OnOwnRanks(
      2, End::kCounts,
      [&](int rank, OwnRank& own) {
        own.StartAll();  // the first step connects the devices
        own.WaitForAll();
        own.exchange->Commit("");
        meeting.Attend();
        if (rank == 0) {
          emulation::at_work = [](cudaStream_t) { ++given; };
          looks = true;
        }
        meeting.Attend();
        own.StartAll();
        own.WaitForAll();
        own.exchange->Commit("");
      },
      conditions);
  emulation::at_work = nullptr;
  ::unsetenv("HVD_SPARSE_CUDA_AWARE_MPI");
  EXPECT_TRUE(seen);
}

}  // namespace
}  // namespace hvd_sparse
