/// gTop-k is given to a device as a whole: no call waits or allocates, and the number of launches
/// follows from the number of merges.

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/stream.h"
#include "csrc/cuda/kernels/launches.h"
#include "csrc/cuda/transport/device_gtopk.h"

namespace hvd_sparse {
namespace {

/// A transport of messages that never come, and take no call of the device's.
class Silent final : public cuda::DeviceTransport {
 public:
  explicit Silent(int size) : size_(size) {}
  int Rank() const override { return 0; }
  int Size() const override { return size_; }
  void Move(Span<const cuda::DeviceOut>, Span<const cuda::DeviceIn>, cudaStream_t) override {
    ++moves;
  }

  int moves = 0;

 private:
  const int size_;
};

TEST(DeviceLaunches, RoundsWaitForNothingAndAllocateNothing) {
  struct Case {
    int ranks, merges, messages;
  };
  for (const Case one : {Case{1, 0, 0}, {2, 1, 1}, {3, 2, 3}, {8, 3, 3}}) {
    Silent transport(one.ranks);
    cuda::DeviceGTopK rounds(1000, 10, {}, &transport);
    rounds.ClearBlocks(nullptr);
    emulated_calls = {};
    rounds.Run(nullptr);
    const EmulatedCalls calls = emulated_calls;
    EXPECT_EQ(calls.waits, 0);
    EXPECT_EQ(calls.allocations, 0);
    EXPECT_EQ(calls.copies, 0);
    EXPECT_EQ(calls.clears, 1);
    EXPECT_EQ(calls.launches, 4 * one.merges);
    EXPECT_EQ(transport.moves, one.messages);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
}

TEST(DeviceLaunches, AnEventThatHasNotPassedIsNotTheErrorOfTheNextLaunch) {
  cuda::Event event;
  event.Record(nullptr);
  emulation::device_is_idle = [] { return false; };
  EXPECT_FALSE(event.Passed());
  emulation::device_is_idle = nullptr;
  cuda::CheckLaunch("launch a kernel");
}

}  // namespace
}  // namespace hvd_sparse
