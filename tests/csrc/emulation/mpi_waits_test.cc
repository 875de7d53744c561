/// Messages over MPI that wait for a device: how the wait ends, how a slow device affects a step,
/// and what happens to memory that MPI may still use.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/cuda/transport/device_gtopk.h"
#include "csrc/cuda/transport/mpi_transport.h"
#include "tests/csrc/cuda/own_ranks.h"
#include "tests/csrc/meeting.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

std::atomic<bool> device_is_done{true};
std::atomic<int> headers{0};     // that ranks have begun to compare
std::atomic<int> looks_left{0};  // after the exchange has ended, until the device is done
std::shared_ptr<LoopbackWorld> world_of_ranks;
thread_local bool is_exchanging = false;  // others select meanwhile, for which the device is done

/// Returns true if the device is done: when a test says so, or long after the exchange has ended;
/// it waits for nobody else.
bool DeviceIsDone() {
  if (device_is_done || !is_exchanging) return true;
  try {
    world_of_ranks->Check(0);
  } catch (const Error&) {
    return --looks_left < 0;
  }
  return false;
}

class MpiWait : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("HVD_SPARSE_CUDA_AWARE_MPI", "1", 1);
    headers = 0;
    looks_left = 1000;
    emulation::device_is_idle = &DeviceIsDone;
  }
  void TearDown() override {
    emulation::device_is_idle = nullptr;
    emulation::streams_capture = false;
    device_is_done = true;
    world_of_ranks = nullptr;
    ::unsetenv("HVD_SPARSE_CUDA_AWARE_MPI");
    ::unsetenv("HVD_SPARSE_TIMEOUT_SECONDS");
  }

  /// The device falls behind when all ranks have selected from their first bucket.
  static Conditions InAWorldThatTheDeviceSees() {
    Conditions conditions;
    world_of_ranks = conditions.world;
    conditions.before_transfer = [](Communicator&, const std::string& what) {
      is_exchanging = true;
      if (what.find("headers 1") != std::string::npos && ++headers == kRanks)
        device_is_done = false;
    };
    return conditions;
  }
};

TEST_F(MpiWait, ABucketWhoseDeviceIsBehindIsWaitedForAndThenCounts) {
  Meeting waited(kRanks);
  OnOwnRanks(
      2, End::kCounts,
      [&waited](int, OwnRank& own) {
        own.StartAll();
        while (headers < kRanks) std::this_thread::yield();  // until the device is behind
        for (const int bucket : {0, 1}) EXPECT_FALSE(own.exchange->Wait(bucket, 0.05));
        waited.Attend();
        device_is_done = true;
        own.WaitForAll();
        EXPECT_EQ(own.exchange->Stats(1).route, Route::kRounds);
        EXPECT_EQ(own.exchange->Stats(1).rounds[2].name, "gtopk, over MPI");
        own.exchange->Commit("");
      },
      InAWorldThatTheDeviceSees());
}

TEST_F(MpiWait, EndsWithALostRankAndNothingIsLost) {
  ExpectALostRankToEndTheWait(InAWorldThatTheDeviceSees());
}

TEST_F(MpiWait, EndsAtTheLimitOfTimeAndNothingIsLost) {
  ExpectTheLimitToEndTheWait(
      "'s own device after 0.3 s (HVD_SPARSE_TIMEOUT_SECONDS) in bucket '0', gtopk, over MPI, "
      "between "
      "ranks",
      InAWorldThatTheDeviceSees());
}

TEST_F(MpiWait, IsRefusedForAStreamThatIsBeingCaptured) {
  const auto world = std::make_shared<LoopbackWorld>(2);
  DeviceLoopback comm(world, 0);
  cuda::MpiTransport transport(&comm, 0);
  emulation::streams_capture = true;
  std::vector<char> memory(8);
  const Error refused =
      Thrown([&] { transport.Exchange(1, memory.data(), memory.data(), 8, nullptr); });
  EXPECT_EQ(refused.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(Says(refused, "captured into a CUDA graph, which cannot hold messages over MPI"));
  EXPECT_FALSE(transport.HoldsMemory());
}

/// The memory holds blocks of gTop-k, and is either freed or leaked.
TEST_F(MpiWait, MemoryThatMpiMayStillUseIsNeverFreed) {
  for (const bool fails : {false, true}) {
    DeviceLoopback comm(std::make_shared<LoopbackWorld>(2), 0, [](Communicator&, const auto&) {
      Throw(ErrorKind::kPeerLost, "rank 1 was lost");
    });
    cuda::MpiTransport transport(&comm, 0);
    emulated_calls = {};
    {
      cuda::DeviceGTopK rounds(1000, 10, {}, &transport);
      if (fails) {
        EXPECT_EQ(Thrown([&] { rounds.Run(nullptr); }).kind(), ErrorKind::kPeerLost);
      }
    }
    EXPECT_EQ(emulated_calls.allocations - emulated_calls.frees, fails ? 1 : 0);
  }
}

}  // namespace
}  // namespace hvd_sparse
