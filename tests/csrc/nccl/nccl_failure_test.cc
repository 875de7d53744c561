/// Ranks that wait in NCCL for a peer that never comes; needs no GPU.
///
/// The library that stands in for NCCL waits like NCCL: for ever, until it is told to abort.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/cuda/transport/nccl_transport.h"
#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/cuda/nccl_ranks.h"
#include "tests/csrc/meeting.h"
#include "tests/csrc/nccl/with_fake_nccl.h"
#include "tests/csrc/tcp_ranks.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse::cuda {
namespace {

constexpr std::int64_t kBytes = 64;

class NcclFailure : public WaitingInNccl {};

std::unique_ptr<NcclTransport> Connect(Communicator* comm) {
  NcclConnection made = ConnectNccl(comm, 0);
  EXPECT_EQ(made.problem, "");
  return std::move(made.transport);
}

/// Sends and receives a message and waits for it. A failed one may still be in flight on the
/// device; freeing its memory waits for it.
Error Swap(NcclTransport* transport, int peer) {
  const std::vector<std::uint8_t> zeros(kBytes);
  DeviceArray<std::uint8_t> sent(zeros), received(zeros);
  const Error error = Thrown([&] {
    transport->Exchange(peer, sent.data(), received.data(), kBytes, nullptr);
    transport->Await(nullptr, "bucket 'b', gtopk, round 1");
  });
  return error;
}

TEST_P(NcclFailure, ALostRankIsNamedToThoseThatWaitForIt) {
  TcpRanks ranks(3);
  std::vector<std::unique_ptr<NcclTransport>> transports(3);
  ranks.Run([&](Communicator& comm) {
    transports[static_cast<std::size_t>(comm.Rank())] = Connect(&comm);
  });
  transports[2].reset();
  ranks.Leave(2);
  std::vector<std::thread> threads;
  for (const int rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      const Error error = Swap(transports[static_cast<std::size_t>(rank)].get(), 2);
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLeft) << error.what();
      EXPECT_TRUE(Says(error, "rank 2")) << error.what();
      EXPECT_TRUE(Says(error, Concat("rank ", rank, " was waiting in"))) << error.what();
    });
  }
  for (auto& thread : threads) thread.join();
}

class NcclFailureOnTheDevice : public NcclFailure {};

TEST_P(NcclFailureOnTheDevice, IsFreedThoughNobodyWaitsForIt) {
  OnRanks(2, [](Communicator& comm) {
    const auto transport = Connect(&comm);
    const std::vector<std::uint8_t> zeros(kBytes);
    DeviceArray<std::uint8_t> sent(zeros), received(zeros);
    if (comm.Rank() == 0) {
      transport->Exchange(1, sent.data(), received.data(), kBytes, nullptr);
      EXPECT_FALSE(FakeNcclIsIdle());
    }
    WaitForOthers(comm, 1);
    if (comm.Rank() == 1) comm.Fail(ErrorKind::kExchangeFailed, "rank 1 has had enough");
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!FakeNcclIsIdle() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(FakeNcclIsIdle());
  });
}

/// As CUDA's calls do while it loads a kernel, which waits for the device.
bool HangUntilIdle() {
  while (!FakeNcclIsIdle()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return true;
}

TEST_P(NcclFailureOnTheDevice, IsEndedAtTheLimitThoughCudaAnswersNoCall) {
  ::setenv("HVD_SPARSE_TIMEOUT_SECONDS", "0.2", 1);
  emulation::device_is_idle = &HangUntilIdle;
  OnRanks(2, [](Communicator& comm) {
    const auto transport = Connect(&comm);
    WaitForOthers(comm, 0);
    transport->Begin("bucket 'b', gtopk");
    const Error error = comm.Rank() == 0 ? Swap(transport.get(), 1) : Thrown([&] {
      for (;; std::this_thread::yield()) transport->Check();
    });
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_TRUE(Says(error, "gave up waiting for CUDA after 0.2 s")) << error.what();
    EXPECT_TRUE(Says(error, "in bucket 'b', gtopk: its calls wait")) << error.what();
  });
}

TEST_P(NcclFailure, TheOthersAreToldWhenACallOfNcclsHangs) {
  ::setenv("HVD_SPARSE_TIMEOUT_SECONDS", "0.2", 1);
  static auto* const hold = OF_FAKE_NCCL(fake_nccl_hold_sends);
  OnRanks(2, [](Communicator& comm) {
    const auto transport = Connect(&comm);
    WaitForOthers(comm, 0);
    if (comm.Rank() == 0) {
      hold(true);
      transport->Begin("bucket 'b', gtopk");
    }
    const Error error = comm.Rank() == 0 ? Swap(transport.get(), 1) : Thrown([&] {
      for (;; std::this_thread::yield()) comm.Check();
    });
    if (comm.Rank() == 1) hold(false);
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_TRUE(Says(error, "rank 0 gave up waiting for CUDA after 0.2 s")) << error.what();
  });
}

TEST_P(NcclFailure, WhatNcclMeetsEndsTheExchangeOnAllRanks) {
  OnRanks(3, [](Communicator& comm) {
    const auto transport = Connect(&comm);
    WaitForOthers(comm, 0);
    if (comm.Rank() == 0) OF_FAKE_NCCL(fake_nccl_break_group)(nccl::kRemoteError, 0);
    const Error error = [&] {
      if (comm.Rank() == 0) return Swap(transport.get(), 1);
      return Thrown([&] {
        for (;; std::this_thread::yield()) transport->Check();
      });
    }();
    EXPECT_EQ(error.kind(), ErrorKind::kExchangeFailed);
    EXPECT_TRUE(Says(error, "rank 0 failed in")) << error.what();
    EXPECT_TRUE(Says(error, "remote error")) << error.what();
    EXPECT_TRUE(Says(error, "NCCL 2.32.3")) << error.what();
  });
}

TEST_P(NcclFailure, APeerThatNeverComesIsGivenUpAtTheLimit) {
  ::setenv("HVD_SPARSE_TIMEOUT_SECONDS", "0.2", 1);
  OnRanks(2, [](Communicator& comm) {
    const auto transport = Connect(&comm);
    WaitForOthers(comm, 0);
    const Error error = comm.Rank() == 0 ? Swap(transport.get(), 1) : Thrown([&] {
      for (;; std::this_thread::yield()) transport->Check();
    });
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_TRUE(Says(error, "rank 0 gave up waiting for rank 1 after 0.2 s")) << error.what();
  });
}

TEST_P(NcclFailure, ARankThatFailsInsteadOfConnectingFreesTheOthers) {
  OnRanks(3, [](Communicator& comm) {
    const DeviceAgreement agreed = AgreeOnNccl(&comm, 0);
    ASSERT_NE(agreed.option, nullptr) << agreed.unmet;
    WaitForOthers(comm, 1);
    if (comm.Rank() == 1) {
      comm.Fail(ErrorKind::kOutOfMemory, "rank 1 ran out of memory");
      return;
    }
    const Error error = Thrown([&] {
      const NcclTransport transport(nccl::Library::Get(), nccl::IdIn(agreed.invitation), &comm, 0);
    });
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    EXPECT_TRUE(Says(error, "rank 1 ran out of memory; rank ")) << error.what();
    EXPECT_TRUE(Says(error, "making NCCL's communicator")) << error.what();
  });
}

TEST_P(NcclFailure, ACaptureMeetsOnlyPeersThatWereMetBefore) {
  Meeting meeting(2);  // capturing affects all streams
  OnRanks(2, [&meeting](Communicator& comm) {
    const auto transport = Connect(&comm);
    const int peer = 1 - comm.Rank();
    meeting.Attend();
    emulation::streams_capture = true;
    const Error refused = Swap(transport.get(), peer);
    EXPECT_EQ(refused.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(Says(refused, Concat("not connected to rank ", peer, " yet"))) << refused.what();
    meeting.Attend();
    emulation::streams_capture = false;
    EXPECT_TRUE(Says(Swap(transport.get(), peer), "nothing was thrown"));
    meeting.Attend();
    emulation::streams_capture = true;
    EXPECT_TRUE(Says(Swap(transport.get(), peer), "nothing was thrown"));
    meeting.Attend();
    emulation::streams_capture = false;
  });
}

INSTANTIATE_TEST_SUITE_P(Waiting, NcclFailure, testing::Bool(), WhoWaits);
INSTANTIATE_TEST_SUITE_P(Waiting, NcclFailureOnTheDevice, testing::Values(true), WhoWaits);

}  // namespace
}  // namespace hvd_sparse::cuda
