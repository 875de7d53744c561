/// A step that runs entirely on the device makes the number of launches that it reports, and
/// nothing waits.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/stream.h"
#include "csrc/cuda/step/bucket_tables.h"
#include "csrc/cuda/step/device_exchange.h"
#include "csrc/cuda/step/launches.h"
#include "tests/csrc/cuda/bucket_specs.h"
#include "tests/csrc/cuda/loopback_transport.h"

namespace hvd_sparse {
namespace {

/// A transport whose own device calls are excluded from the counts.
class Uncounted final : public cuda::DeviceTransport {
 public:
  explicit Uncounted(LoopbackTransport* transport) : transport_(*transport) {}
  int Rank() const override { return transport_.Rank(); }
  int Size() const override { return transport_.Size(); }
  void Exchange(int peer, const void* send, void* recv, std::int64_t bytes,
                cudaStream_t stream) override {
    const EmulatedCalls before = emulated_calls;
    transport_.Exchange(peer, send, recv, bytes, stream);
    emulated_calls = before;
  }

 private:
  LoopbackTransport& transport_;
};

/// Runs two steps of a bucket of `layers` layers; returns the calls of a rank in each.
std::vector<EmulatedCalls> CallsOf(int layers, int ranks, int rank,
                                   bool corrects_momentum = false) {
  std::vector<EmulatedCalls> seen;
  OnDeviceRanks(ranks, [&](LoopbackTransport& loopback) {
    Uncounted transport(&loopback);
    const std::int64_t numel = 40;
    const auto count = static_cast<std::size_t>(layers);
    const BucketSpec spec = SpecOf(std::vector<SegmentPlan>(count, {numel, 3}),
                                   std::vector<std::int64_t>(count, numel));
    cuda::DeviceExchange exchange(spec, 0, &transport);
    std::vector<float> residual(numel * layers, 1.0f), velocity(residual), memory(residual);
    std::vector<SelectionState> states(static_cast<std::size_t>(layers));
    cuda::DeviceLaunch launch;
    launch.residual = residual;
    if (corrects_momentum) launch.velocity = velocity;
    for (int layer = 0; layer < layers; ++layer) {
      launch.gradients.push_back({memory.data() + layer * numel, numel, DType::kFloat32});
    }
    launch.outputs = launch.gradients;
    launch.decays.assign(static_cast<std::size_t>(layers), 1.0f);
    launch.ks.assign(static_cast<std::size_t>(layers), 3);
    launch.states = states;
    for (int step = 0; step < 2; ++step) {
      emulated_calls = {};
      exchange.Run(launch, nullptr);
      const EmulatedCalls calls = emulated_calls;
      EXPECT_EQ(calls.launches + calls.clears, exchange.launches());
      if (loopback.Rank() == rank) seen.push_back(calls);
    }
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    if (ranks == 8) {
      EXPECT_LE(exchange.launches(), 14 + 1 + 3 * 4 + 4);  // select, clear, three rounds, finish
      EXPECT_EQ(loopback.exchanges(), 2 * 3);
    }
  });
  return seen;
}

TEST(DeviceLaunches, AStepWaitsForNothingAndAllocatesNothing) {
  for (const int ranks : {1, 2, 3, 8}) {
    for (const int rank : {0, ranks - 1}) {
      const std::vector<EmulatedCalls> steps = CallsOf(3, ranks, rank);
      for (const EmulatedCalls& calls : steps) {
        EXPECT_EQ(calls.waits, 0);
        EXPECT_EQ(calls.allocations, 0);
      }
      EXPECT_EQ(steps[0].copies, 1);  // the step's parameters
      EXPECT_EQ(steps[1].copies, 0);  // unchanged parameters
    }
  }
}

TEST(DeviceLaunches, AStepThatCorrectsMomentumTakesNoMore) {
  for (const int layers : {1, 160}) {
    const EmulatedCalls calls = CallsOf(layers, 3, 0, /*corrects_momentum=*/true)[1];
    const EmulatedCalls without = CallsOf(layers, 3, 0)[1];
    EXPECT_LE(calls.launches, without.launches);
    EXPECT_LE(calls.clears, without.clears);
    EXPECT_EQ(calls.copies, 0);
    EXPECT_EQ(calls.waits, 0);
    EXPECT_EQ(calls.allocations, 0);
  }
}

TEST(DeviceLaunches, ManyLayersTakeAsManyAsOne) {
  const EmulatedCalls one = CallsOf(1, 1, 0)[1], many = CallsOf(160, 1, 0)[1];
  EXPECT_LE(many.launches + many.clears, one.launches + one.clears);
  EXPECT_LE(many.launches + many.clears, 20);
}

/// Returns how often six changes of k in a row wait for a stream.
int WaitsForSixChanges() {
  cuda::BucketTables tables(cuda::BucketLayout(SpecOf({{50, 9}}, {50})));
  std::vector<float> memory(50);
  cuda::DeviceLaunch launch;
  launch.gradients = launch.outputs = {{memory.data(), 50, DType::kFloat32}};
  launch.decays = {1};
  emulated_calls = {};
  for (std::int64_t k = 1; k <= 6; ++k) {
    launch.ks = {k};
    tables.Update(launch, nullptr);
    tables.Update(launch, nullptr);  // no change
  }
  EXPECT_EQ(emulated_calls.copies, 6);
  const int waits = emulated_calls.waits;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // frees nothing in flight
  return waits;
}

TEST(DeviceLaunches, OnlyAStreamThatIsFarBehindIsWaitedFor) {
  EXPECT_EQ(WaitsForSixChanges(), 0);
  emulation::device_is_idle = [] { return false; };
  EXPECT_EQ(WaitsForSixChanges(), 2);  // four may be in flight
  emulation::device_is_idle = nullptr;
}

TEST(DeviceLaunches, AnEventThatHasNotPassedIsNotTheErrorOfTheNextLaunch) {
  cuda::Event event;
  event.Record(nullptr);
  emulation::device_is_idle = [] { return false; };
  EXPECT_FALSE(event.Passed());
  emulation::device_is_idle = nullptr;
  cuda::CheckLaunch("launch a kernel");
}

TEST(DeviceLaunches, AGridWithoutBlocksIsAnError) {
  const cuda::DeviceBlock none;
  EXPECT_THROW(cuda::LaunchPutBack(none, {}, nullptr), Error);
  cuda::CheckLaunch("launch a kernel");  // each error is reported once
}

/// A caller that changes parameters more often than there is memory for blocks until the device has
/// read the first change.
TEST(DeviceLaunches, TheFifthChangeUnderWayWaitsForTheFirst) {
  cuda::BucketTables tables{cuda::BucketLayout(SpecOf({{40, 3}}, {40}))};
  cuda::DeviceLaunch launch;
  launch.gradients = launch.outputs = {{nullptr, 40, DType::kFloat32}};
  launch.ks = {3};
  emulation::device_is_idle = [] { return false; };
  emulated_calls = {};
  for (int change = 1; change <= 6; ++change) {
    launch.decays = {static_cast<float>(change)};
    for (int times = 0; times < 2; ++times) tables.Update(launch, nullptr);
    EXPECT_EQ(emulated_calls.copies, change);
    EXPECT_EQ(emulated_calls.waits, std::max(change - 4, 0));
  }
  emulation::device_is_idle = nullptr;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace hvd_sparse
