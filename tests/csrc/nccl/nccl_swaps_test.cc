/// Swaps between devices over NCCL's stand-in: timed on any number of ranks, refused if they make
/// no sense, and ended on all ranks if one does not come.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/comm/loopback_communicator.h"
#include "csrc/devices/devices_for.h"
#include "csrc/exchange/exchange.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/cuda/exchange_steps.h"
#include "tests/csrc/meeting.h"
#include "tests/csrc/nccl/with_fake_nccl.h"
#include "tests/csrc/tcp_ranks.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

class NcclSwaps : public WaitingInNccl {};

/// Runs a program on each rank, with an exchange.
void OnExchanges(int size, const std::function<void(Exchange&)>& program) {
  auto world = std::make_shared<LoopbackWorld>(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Exchange exchange(std::make_unique<LoopbackCommunicator>(world, rank), SelectOn::kCaller);
      program(exchange);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(NcclSwaps, AreTimedAtEveryDistanceOfAnyNumberOfRanks) {
  for (const int size : {2, 3, 4, 5}) {
    SCOPED_TRACE(size);
    OnExchanges(size, [size](Exchange& exchange) {
      EXPECT_EQ(exchange.BetweenDevices(), "");
      ASSERT_TRUE(exchange.ConnectDevices(kGpu));
      EXPECT_EQ(exchange.BetweenDevices(), "over NCCL");
      EXPECT_TRUE(exchange.ConnectDevices(kGpu));  // again, without another communicator
      EXPECT_LE(OF_FAKE_NCCL(fake_nccl_communicators)(), size);
      for (int distance = 1; distance < size; distance *= 2) {
        const int peer = exchange.Rank() ^ distance;
        if (peer >= size) continue;
        EXPECT_EQ(exchange.SwapBetweenDevices(peer, 1000, 3).size(), 3u);
        EXPECT_EQ(exchange.SwapBetweenDevices(peer, 1, 0).size(), 0u);
      }
      EXPECT_EQ(exchange.MergeOnDevice(100, 2).size(), 2u);
      EXPECT_EQ(exchange.CopyToDevice(100, 2).size(), 2u);
    });
  }
}

/// Tests with steps: they need messages that complete within the call.
class NcclSwapsInTheCall : public NcclSwaps {};

TEST_P(NcclSwapsInTheCall, StepsGoOnAfterThem) {
  OnExchanges(3, [](Exchange& exchange) {
    const int rank = exchange.Rank(),
              bucket = exchange.AddBucket(SpecOf(kGpu, "top_k", "gtopk", {}));
    for (int step = 0; step < 2; ++step) {
      ASSERT_TRUE(exchange.ConnectDevices(kGpu));
      if (rank < 2) exchange.SwapBetweenDevices(1 - rank, 100, 2);
      DeviceArray<float> gradient(std::vector<float>(kNumel, 1.0f));
      DeviceArray<float> residual(std::vector<float>(kNumel, 0.0f));
      std::vector<SelectionState> states(3);
      Launch launch;
      launch.gradients = {{gradient.data(), kFirst, DType::kFloat32},
                          {gradient.data() + kFirst, kSecond, DType::kFloat32}};
      launch.residual = residual.span();
      launch.states = states;
      launch.ks = {40, 1, 200};
      launch.decays = {1.0f, 1.0f};
      launch.output_scale = 1.0f;
      exchange.Start(bucket, launch);
      const Error refused = Thrown([&] { exchange.MergeOnDevice(10, 1); });
      EXPECT_TRUE(Says(refused, "a merge on a device must wait until no bucket")) << refused.what();
      while (!exchange.Wait(bucket, 1.0)) {
      }
      EXPECT_EQ(exchange.Stats(bucket).route, Route::kRounds);
      exchange.Commit("");
    }
  });
}

TEST_P(NcclSwaps, WhatMakesNoSenseIsRefusedBeforeAnythingIsSent) {
  OnExchanges(2, [](Exchange& exchange) {
    const int peer = 1 - exchange.Rank();
    const auto refuses = [](const char* says, const std::function<void()>& work) {
      const Error error = Thrown(work);
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
      EXPECT_TRUE(Says(error, says)) << error.what();
    };
    refuses("no network connects", [&] { exchange.SwapBetweenDevices(peer, 10, 1); });
    refuses("no network connects", [&] { exchange.MergeOnDevice(10, 1); });
    refuses("no network connects", [&] { exchange.CopyToDevice(10, 1); });
    refuses("device must be cuda:0 or the like, got cpu", [&] { exchange.ConnectDevices({}); });
    ASSERT_TRUE(exchange.ConnectDevices(kGpu));
    refuses("peer must be another rank", [&] { exchange.SwapBetweenDevices(2, 10, 1); });
    refuses("bytes must be positive", [&] { exchange.SwapBetweenDevices(peer, 0, 1); });
    refuses("entries must lie in", [&] { exchange.MergeOnDevice(0, 1); });
    EXPECT_EQ(exchange.SwapBetweenDevices(peer, 10, 1).size(), 1u);
  });
}

TEST_P(NcclSwaps, RanksThatAreNotToBeConnectedAreNot) {
  ::setenv("HVD_SPARSE_NCCL", "0", 1);
  OnExchanges(3, [](Exchange& exchange) {
    EXPECT_FALSE(exchange.ConnectDevices(kGpu));
    EXPECT_EQ(exchange.BetweenDevices(),
              "by way of the CPUs, since NCCL is not used: rank 0: HVD_SPARSE_NCCL is 0; "
              "CUDA-aware MPI is not used: rank 0: HVD_SPARSE_CUDA_AWARE_MPI is neither auto "
              "nor 1");
  });
  ::setenv("HVD_SPARSE_NCCL", "1", 1);
  OnExchanges(1, [](Exchange& exchange) { EXPECT_FALSE(exchange.ConnectDevices(kGpu)); });
}

TEST_P(NcclSwaps, RanksThatSwapOtherLengthsAreToldBeforeAnyWaitsForADevice) {
  for (const bool of_length : {true, false}) {
    OnExchanges(2, [of_length](Exchange& exchange) {
      ASSERT_TRUE(exchange.ConnectDevices(kGpu));
      const int rank = exchange.Rank();
      const Error error = Thrown([&] {
        exchange.SwapBetweenDevices(1 - rank, of_length ? 10 + rank : 10, of_length ? 1 : 1 + rank);
      });
      EXPECT_EQ(error.kind(), ErrorKind::kDisagreement) << error.what();
      EXPECT_TRUE(Says(error, "times between devices, rank")) << error.what();
    });
  }
}

TEST_P(NcclSwaps, WhatNcclMeetsEndsThemOnAllRanks) {
  Meeting meeting(4);
  OnExchanges(4, [&meeting](Exchange& exchange) {
    ASSERT_TRUE(exchange.ConnectDevices(kGpu));
    meeting.Attend();
    if (exchange.Rank() == 0) OF_FAKE_NCCL(fake_nccl_break_group)(nccl::kRemoteError, 2);
    meeting.Attend();
    const Error error = Thrown([&] {
      for (;;) exchange.SwapBetweenDevices(exchange.Rank() ^ 1, 1000, 3);
    });
    EXPECT_EQ(error.kind(), ErrorKind::kExchangeFailed) << error.what();
    const Error later = Thrown([&] {
      for (;; std::this_thread::yield()) exchange.Check();
    });
    EXPECT_TRUE(Says(later, "remote error")) << later.what();
  });
}

// ---- A rank that does not come ------------------------------------------------------------------

using Networks = std::vector<std::unique_ptr<GpuCollectives>>;

Networks Connected(TcpRanks* ranks, int size) {
  Networks networks(static_cast<std::size_t>(size));
  ranks->Run([&](Communicator& comm) {
    DeviceConnection made = ConnectDevices(&comm, kGpu);
    EXPECT_EQ(made.warning, "");
    networks[static_cast<std::size_t>(comm.Rank())] = std::move(made.collectives);
  });
  return networks;
}

/// Each rank waits for the next one, and so all for the last, which is gone.
TEST_P(NcclSwaps, ALostRankIsNamedToAllThatWaitForItOrForThoseThatDo) {
  for (const int size : {2, 3, 5}) {
    SCOPED_TRACE(size);
    TcpRanks ranks(size);
    Networks networks = Connected(&ranks, size);
    networks.pop_back();
    ranks.Leave(size - 1);
    std::vector<std::thread> threads;
    for (int rank = 0; rank + 1 < size; ++rank) {
      threads.emplace_back([&, rank] {
        const Error error =
            Thrown([&] { networks[static_cast<std::size_t>(rank)]->TimedSwaps(rank + 1, 64, 3); });
        EXPECT_EQ(error.kind(), ErrorKind::kPeerLeft) << error.what();
        EXPECT_TRUE(Says(error, Concat("rank ", size - 1))) << error.what();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_P(NcclSwaps, APeerThatNeverComesIsGivenUpAtTheLimit) {
  TcpRanks ranks(2, WaitLimits{60, 0.5});
  const Networks networks = Connected(&ranks, 2);
  const Error error = Thrown([&] { networks[0]->TimedSwaps(1, 64, 3); });
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
  EXPECT_TRUE(Says(error, "after 0.5 s")) << error.what();
}

INSTANTIATE_TEST_SUITE_P(Waiting, NcclSwaps, testing::Bool(), WhoWaits);
INSTANTIATE_TEST_SUITE_P(Waiting, NcclSwapsInTheCall, testing::Values(false), WhoWaits);

}  // namespace
}  // namespace hvd_sparse
