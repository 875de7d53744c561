/// Memory that a call has used is reused, or freed, once the device is done with it.

#include "csrc/cuda/base/work.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "tests/csrc/cuda/device_array.h"

namespace hvd_sparse::cuda {
namespace {

/// Gives the device a copy of `number` to `to`, by way of `bytes` of pinned memory.
void GiveCopy(Work* work, int number, int* to, std::int64_t bytes = sizeof(int)) {
  int* const staged = work->Staged<int>(bytes / static_cast<std::int64_t>(sizeof(int)));
  *staged = number;
  const int* const uploaded = work->Upload(staged, 1);
  Check(cudaMemcpyAsync(to, uploaded, sizeof(int), cudaMemcpyDefault, work->stream()), "copy");
}

class CudaWork : public CudaTest {
 protected:
  static constexpr int kCalls = 6;

  /// Expects the numbers of all calls in `seen`.
  static void ExpectAll(DeviceArray<int>* seen) {
    std::vector<int> expected(kCalls);
    for (int call = 0; call < kCalls; ++call) expected[call] = call;
    EXPECT_EQ(seen->Values(), expected);
  }
};

TEST_F(CudaWork, ACallThatFailsHalfWayLeavesNothingUnderWay) {
  DeviceArray<int> seen(std::vector<int>(kCalls, -1));
  for (int call = 0; call < kCalls; ++call) {
    const auto fail = [&] {
      Work work(0);
      GiveCopy(&work, call, seen.data() + call);
      Throw(ErrorKind::kOutOfMemory, "no memory");
    };
    EXPECT_THROW(fail(), Error);
  }
  ExpectAll(&seen);
}

TEST_F(CudaWork, WhatCallsLeaveUnderWayIsNotWrittenOver) {
  constexpr std::int64_t kBytes = std::int64_t{22} << 20;  // 64 MB may be in flight
  DeviceArray<int> seen(std::vector<int>(kCalls, -1));
  for (int call = 0; call < kCalls; ++call) {
    Work work(0);
    GiveCopy(&work, call, seen.data() + call, kBytes);
    work.Leave();
  }
  ExpectAll(&seen);
}

TEST_F(CudaWork, NorFreedWhereTheThreadEnds) {
  DeviceArray<int> seen(std::vector<int>(kCalls, -1));
  for (int call = 0; call < kCalls; ++call) {
    std::thread([&] {
      Work work(0);
      GiveCopy(&work, call, seen.data() + call);
      work.Leave();
    }).join();
  }
  ExpectAll(&seen);
}

}  // namespace
}  // namespace hvd_sparse::cuda
