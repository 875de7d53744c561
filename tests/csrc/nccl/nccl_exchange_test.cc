/// Whole steps of an exchange over NCCL, or its stand-in: the bits of the same steps on the CPU,
/// and ranks that want different connections.

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/devices/devices_for.h"
#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/cuda/exchange_steps.h"
#include "tests/csrc/meeting.h"
#include "tests/csrc/nccl/with_fake_nccl.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

class NcclExchange : public WithFakeNccl {};

TEST_F(NcclExchange, StepsHaveTheBitsOfTheCpuForAnyNumberOfRanks) {
  for (const int size : {2, 3, 4, 5}) {
    for (const double slack : {1.0, 2.0}) {
      SCOPED_TRACE(Concat(size, " ranks, slack ", slack));
      BucketSpec spec = SpecOf({}, "sidco", "gtopk", {});
      spec.collective_options.slack = slack;
      const auto of_cpu = RunRanks<float>(size, spec);
      spec.device = kGpu;
      const auto over_nccl = RunRanks<float>(size, spec);
      ExpectSameBits(of_cpu, over_nccl);
      for (const StepBits& seen : of_cpu) EXPECT_EQ(seen.Over("NCCL"), 0);
      for (const StepBits& seen : over_nccl) EXPECT_EQ(seen.Over("NCCL"), kSteps);
    }
  }
}

TEST_F(NcclExchange, IsUsedUnlessTheUserSwitchesItOff) {
  ::setenv("HVD_SPARSE_NCCL", "0", 1);
  const auto off = RunRanks<float>(3, SpecOf(kGpu, "top_k", "gtopk", {}));
  for (const StepBits& seen : off) EXPECT_EQ(seen.Over("NCCL"), 0);
  for (const char* wish : {"", "auto", "1"}) {
    ::setenv("HVD_SPARSE_NCCL", wish, 1);
    const auto on = RunRanks<float>(3, SpecOf(kGpu, "top_k", "gtopk", {}));
    for (const StepBits& seen : on) EXPECT_EQ(seen.Over("NCCL"), kSteps);
    ExpectSameBits(off, on);
  }
}

TEST_F(NcclExchange, ComesBeforeMpiWhichIsUsedWhereNcclCannotBe) {
  ::setenv("HVD_SPARSE_CUDA_AWARE_MPI", "auto", 1);
  for (const StepBits& seen : RunRanks<float>(2, SpecOf(kGpu, "top_k", "gtopk", {}))) {
    EXPECT_EQ(seen.Over("NCCL"), kSteps);
    EXPECT_EQ(seen.Over("MPI"), 0);
  }
  ::unsetenv(nccl::kSharing);  // and all ranks share a device
  for (const StepBits& seen : RunRanks<float>(2, SpecOf(kGpu, "top_k", "gtopk", {}))) {
    EXPECT_EQ(seen.Over("NCCL"), 0);
    EXPECT_EQ(seen.Over("MPI"), kSteps);
  }
}

TEST_F(NcclExchange, IsNotUsedByDefaultWhereMpiIsAskedFor) {
  ::unsetenv("HVD_SPARSE_NCCL");
  ::setenv("HVD_SPARSE_CUDA_AWARE_MPI", "1", 1);
  for (const StepBits& seen : RunRanks<float>(2, SpecOf(kGpu, "top_k", "gtopk", {}))) {
    EXPECT_EQ(seen.Over("MPI"), kSteps);
  }
}

TEST_F(NcclExchange, WhoAskedForNcclIsToldThatItIsMpi) {
  ::setenv("HVD_SPARSE_CUDA_AWARE_MPI", "auto", 1);
  ::unsetenv(nccl::kSharing);
  OnRanks<DeviceLoopback>(2, [](Communicator& comm) {
    const DeviceConnection made = ConnectDevices(&comm, kGpu);
    EXPECT_NE(made.collectives, nullptr);
    const std::string begin =
        "blocks of GPUs go over CUDA-aware MPI, since NCCL is not used: ranks 0 and 1 share";
    EXPECT_EQ(made.warning.substr(0, begin.size()), begin);
  });
}

/// Runs one step on each rank, changed by `alter`, after devices were connected and rank 0 has
/// called `once_connected`; returns the errors thrown.
template <typename Alter>
std::vector<Error> FailIn(int size, const Alter& alter,
                          const std::function<void()>& once_connected = nullptr) {
  Meeting connected(size);
  auto world = std::make_shared<LoopbackWorld>(size);
  std::vector<Error> errors(static_cast<std::size_t>(size), {ErrorKind::kInvalidArgument, ""});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<float> gradient(kNumel, 1.0f + static_cast<float>(rank)), residual(kNumel);
      std::vector<SelectionState> states(3);
      bool started = false;
      {
        Exchange exchange(std::make_unique<DeviceLoopback>(world, rank), SelectOn::kCaller);
        exchange.ConnectDevices(kGpu);
        connected.Attend();
        if (rank == 0 && once_connected) once_connected();
        connected.Attend();
        BucketSpec spec = SpecOf(kGpu, "top_k", "gtopk", {});
        Launch launch;
        launch.gradients = {{gradient.data(), kFirst, DType::kFloat32},
                            {gradient.data() + kFirst, kSecond, DType::kFloat32}};
        launch.residual = {residual.data(), kNumel};
        launch.states = states;
        launch.ks = spec.max_ks;
        launch.decays = {1.0f, 1.0f};
        launch.output_scale = 1.0f;
        alter(rank, &spec, &launch);
        const int bucket = exchange.AddBucket(spec);
        errors[static_cast<std::size_t>(rank)] = Thrown([&] {
          exchange.Start(bucket, launch);
          started = true;
          while (!exchange.Wait(bucket, 1.0)) {
          }
        });
      }
      // The step was not applied: every value is in the residual, or none if others had ended the
      // exchange before this rank began.
      const float unsent = started ? 1.0f + static_cast<float>(rank) : 0.0f;
      for (const float value : residual) ASSERT_EQ(value, unsent);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST_F(NcclExchange, RanksThatDisagreeAreToldBeforeAnyWaitsForADevice) {
  const auto errors = FailIn(3, [](int rank, BucketSpec*, Launch* launch) {
    if (rank == 1) launch->ks[0] -= 7;
  });
  for (const Error& error : errors) {
    EXPECT_EQ(error.kind(), ErrorKind::kDisagreement) << error.what();
    EXPECT_TRUE(Says(error, "entries (layout")) << error.what();
    EXPECT_TRUE(Says(error, ", k 234, gtopk")) << error.what();
  }
}

/// The others would wait for it to connect while it waits for a block.
TEST_F(NcclExchange, ARankThatWantsNoConnectionEndsTheExchange) {
  const std::vector<std::function<void(BucketSpec*)>> ways = {
      [](BucketSpec* spec) { spec->device = {}; },
      [](BucketSpec* spec) { spec->by_devices = false; },
      [](BucketSpec* spec) { spec->wire.values = Values::kBFloat16; },
      [](BucketSpec* spec) { spec->collective = "recursive_doubling"; }};
  for (const int size : {2, 3, 4, 5}) {
    for (int apart = 0; apart < size; ++apart) {
      for (const auto& alter : ways) {
        const auto errors = FailIn(size, [&](int rank, BucketSpec* spec, Launch*) {
          if (rank == apart) alter(spec);
        });
        for (const Error& error : errors) {
          EXPECT_EQ(error.kind(), ErrorKind::kDisagreement) << error.what();
          EXPECT_TRUE(Says(error, "between devices if they can be connected")) << error.what();
        }
      }
    }
  }
}

TEST_F(NcclExchange, WhatNcclMeetsEndsTheStepOnAllRanksAndNothingIsLost) {
  const auto break_group = [] { OF_FAKE_NCCL(fake_nccl_break_group)(nccl::kRemoteError, 0); };
  for (const Error& error : FailIn(4, [](int, BucketSpec*, Launch*) {}, break_group)) {
    EXPECT_EQ(error.kind(), ErrorKind::kExchangeFailed) << error.what();
    EXPECT_TRUE(Says(error, "remote error")) << error.what();
  }
}

}  // namespace
}  // namespace hvd_sparse
