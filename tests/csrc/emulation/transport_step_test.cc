/// Giving a device a step makes no call that waits, and copies only what is needed.

#include "csrc/cuda/transport/transport_step.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "csrc/comm/loopback_communicator.h"
#include "csrc/cuda/transport/mpi_transport.h"
#include "tests/csrc/cuda/bucket_specs.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kNumel = 500, kK = 20;

/// A single rank and its memory.
struct OwnStep {
  std::vector<float> residual = std::vector<float>(kNumel), velocity, gradient;
  std::vector<SelectionState> states = std::vector<SelectionState>(1);
  LoopbackCommunicator comm{std::make_shared<LoopbackWorld>(1), 0};
  cuda::MpiTransport transport{&comm, 0, {}};
  cuda::TransportStep step{SpecOf({{kNumel, kK}}, {kNumel}), 0, 0, &transport};

  explicit OwnStep(bool corrects_momentum = false) {
    for (std::int64_t i = 0; i < kNumel; ++i) {
      gradient.push_back(static_cast<float>(i % 83) - 41);
      if (corrects_momentum) velocity.push_back(static_cast<float>(i % 7));
    }
  }

  void Select() {
    Launch launch;
    launch.gradients = {{gradient.data(), kNumel, DType::kFloat32}};
    launch.residual = residual;
    if (!velocity.empty()) launch.velocity = velocity;
    launch.momentum = 0.5f;
    launch.states = states;
    launch.ks = {kK};
    launch.decays = {1.0f};
    step.Select(launch);
  }

  /// Returns the calls made to give a whole step, from its selection on.
  EmulatedCalls Enqueue() {
    emulated_calls = {};
    Select();
    step.Exchange();
    return emulated_calls;
  }
};

TEST(TransportStepCalls, AStepIsGivenWithoutAWaitAndCopiesWhatHasChanged) {
  OwnStep own;
  own.Enqueue();
  ASSERT_TRUE(own.step.Arrived(1));
  const std::vector<SelectionState> learned = own.states;
  EXPECT_GT(learned[0].threshold, 0.0f);

  constexpr int kFetched = 3;  // two headers and the thresholds
  EmulatedCalls calls = own.Enqueue();
  EXPECT_EQ(calls.waits, 0);
  EXPECT_EQ(calls.allocations, 0);
  EXPECT_EQ(calls.copies, kFetched);
  EXPECT_EQ(std::memcmp(own.states.data(), learned.data(), sizeof(SelectionState)), 0);
  ASSERT_TRUE(own.step.Arrived(1));

  own.states[0] = {};  // the framework has loaded a checkpoint
  calls = own.Enqueue();
  EXPECT_EQ(calls.waits, 0);
  EXPECT_EQ(calls.copies, kFetched + 1);
  ASSERT_TRUE(own.step.Arrived(1));
  EXPECT_EQ(own.step.report().selected, kK);
  EXPECT_EQ(own.states[0].own, 0.0f);  // has started afresh
}

TEST(TransportStepCalls, WhatAStepTookReturnsAtAnyTime) {
  OwnStep own;
  own.step.PutBack();  // of a step that was never given
  EXPECT_EQ(own.residual, std::vector<float>(kNumel));
  const std::vector<float> given = own.gradient;
  own.Enqueue();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_NE(own.residual, given);
  own.step.PutBack();
  EXPECT_EQ(own.residual, given);
  own.step.PutBack();
  EXPECT_EQ(own.residual, given);
}

/// The step is destroyed without a wait for the device.
TEST(TransportStepCalls, AStepUnderWayEndsWhenTheDeviceIsDoneWithItsMemory) {
  for (const bool is_exchanged : {false, true}) {
    OwnStep own;
    is_exchanged ? (void)own.Enqueue() : own.Select();
  }
}

TEST(TransportStepCalls, SoDoesWhatItMasked) {
  OwnStep own(/*corrects_momentum=*/true);
  std::vector<float> joined = own.gradient;
  for (std::int64_t i = 0; i < kNumel; ++i) joined[i] += 0.5f * own.velocity[i];
  own.Enqueue();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  std::int64_t masked = 0;
  for (std::int64_t i = 0; i < kNumel; ++i) {
    masked += own.velocity[i] != joined[i] ? 1 : 0;
    EXPECT_TRUE(own.velocity[i] == joined[i] || own.velocity[i] == 0);
  }
  EXPECT_EQ(masked, kK);
  for (int times = 0; times < 2; ++times) {
    own.step.PutBack();
    EXPECT_EQ(own.residual, joined);
    EXPECT_EQ(own.velocity, joined);
  }
}

}  // namespace
}  // namespace hvd_sparse
