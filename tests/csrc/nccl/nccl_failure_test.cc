/// What becomes of ranks that wait in NCCL for a peer that does not come; needs no GPU.
///
/// The library that stands in for NCCL waits as NCCL does: for ever, until it is told to abort.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/cuda/nccl_transport.h"
#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/cuda/nccl_ranks.h"
#include "tests/csrc/nccl/fake_nccl.h"
#include "tests/csrc/tcp_ranks.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse::cuda {
namespace {

constexpr std::int64_t kBytes = 64;
const char* const kLibrary = FAKE_NCCL_FOLDER "/libfake_nccl.so";

template <typename Function>
Function* Control(const char* name) {
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);  // loaded already
  return reinterpret_cast<Function*>(::dlsym(library, name));
}
#define CONTROL(name) Control<decltype(name)>(#name)

bool DeviceIsIdle() {
  static auto* const is_idle = CONTROL(fake_nccl_is_idle);
  return is_idle() != 0;
}

/// In the second kind of run, groups are given to the device at once, and it is the device that
/// waits for peers.
class NcclFailure : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    ::setenv("HVD_SPARSE_NCCL_LIBRARY", kLibrary, 1);
    ::setenv(nccl::kSharing, "1", 1);
    ::setenv("HVD_SPARSE_NCCL", "auto", 1);
    CONTROL(fake_nccl_run_behind)(GetParam());
    emulation::device_is_idle = &DeviceIsIdle;
  }
  void TearDown() override {
    emulation::device_is_idle = nullptr;
    CONTROL(fake_nccl_run_behind)(0);
    EXPECT_EQ(CONTROL(fake_nccl_communicators)(), 0);
  }
};

std::unique_ptr<NcclTransport> Connect(Communicator* comm, const WaitLimits& limits = {}) {
  NcclConnection made = ConnectNccl(comm, 0, limits);
  EXPECT_EQ(made.problem, "");
  return std::move(made.transport);
}

/// A message to and from a peer, waited for.
Error Swap(NcclTransport* transport, int peer) {
  std::vector<std::uint8_t> sent(kBytes), received(kBytes);
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
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
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
    std::vector<std::uint8_t> sent(kBytes), received(kBytes);
    if (comm.Rank() == 0) {
      transport->Exchange(1, sent.data(), received.data(), kBytes, nullptr);
      EXPECT_FALSE(DeviceIsIdle());
    }
    WaitForOthers(comm, 1);
    if (comm.Rank() == 1) comm.Fail(ErrorKind::kExchangeFailed, "rank 1 has had enough");
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!DeviceIsIdle() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(DeviceIsIdle());
  });
}

TEST_P(NcclFailure, WhatNcclMeetsEndsTheExchangeOnAllRanks) {
  OnRanks(3, [](Communicator& comm) {
    const auto transport = Connect(&comm);
    WaitForOthers(comm, 0);
    if (comm.Rank() == 0) CONTROL(fake_nccl_break_group)(nccl::kRemoteError, 0);
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
  OnRanks(2, [](Communicator& comm) {
    WaitLimits limits;
    limits.fail_seconds = 0.2;
    const auto transport = Connect(&comm, limits);
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
    ASSERT_NE(agreed.means, nullptr) << agreed.unmet;
    WaitForOthers(comm, 1);
    if (comm.Rank() == 1) {
      comm.Fail(ErrorKind::kOutOfMemory, "rank 1 ran out of memory");
      return;
    }
    const Error error = Thrown([&] {
      const NcclTransport transport(nccl::Library::Get(), nccl::IdIn(agreed.invitation), &comm, 0,
                                    {});
    });
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    EXPECT_TRUE(Says(error, "rank 1 ran out of memory; rank ")) << error.what();
    EXPECT_TRUE(Says(error, "making NCCL's communicator")) << error.what();
  });
}

TEST_P(NcclFailure, ACaptureMeetsOnlyPeersThatWereMetBefore) {
  OnRanks(2, [](Communicator& comm) {
    const auto transport = Connect(&comm);
    const int peer = 1 - comm.Rank();
    const auto meet = [&] {  // the capture is that of all streams
      WaitForOthers(comm, 0);
      WaitForOthers(comm, 1);
    };
    meet();
    emulation::streams_capture = true;
    const Error refused = Swap(transport.get(), peer);
    EXPECT_EQ(refused.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(Says(refused, Concat("not connected to rank ", peer, " yet"))) << refused.what();
    meet();
    emulation::streams_capture = false;
    EXPECT_TRUE(Says(Swap(transport.get(), peer), "nothing was thrown"));
    meet();
    emulation::streams_capture = true;
    EXPECT_TRUE(Says(Swap(transport.get(), peer), "nothing was thrown"));
    meet();
    emulation::streams_capture = false;
  });
}

std::string NameOf(const testing::TestParamInfo<bool>& run) {
  return run.param ? "OnTheDevice" : "InTheCall";
}
INSTANTIATE_TEST_SUITE_P(Waiting, NcclFailure, testing::Bool(), NameOf);
INSTANTIATE_TEST_SUITE_P(Waiting, NcclFailureOnTheDevice, testing::Values(true), NameOf);

}  // namespace
}  // namespace hvd_sparse::cuda
