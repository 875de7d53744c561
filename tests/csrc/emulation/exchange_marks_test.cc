/// Gradients of a failed bucket are returned to the framework only after the device is done with
/// them, in the order of CUDA's events.

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/comm/loopback_communicator.h"
#include "csrc/exchange/exchange.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/meeting.h"

namespace hvd_sparse {
namespace {

constexpr int kRanks = 3, kGuest = 2;  // gtopk sends it the result verbatim
constexpr std::int64_t kNumel = 100;
constexpr StreamHandle kStreams = 0x70;  // the ranks' streams; none of the exchanges' own

/// A communicator whose received blocks never report a non-finite gradient.
class Forgetful final : public LoopbackCommunicator {
 public:
  using LoopbackCommunicator::LoopbackCommunicator;

  void Transfer(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) override {
    LoopbackCommunicator::Transfer(out, in, what);
    if (what.find("check") != std::string::npos) return;  // holds no block
    const Verdict finite;
    for (const Incoming& message : in) {
      if (message.bytes < static_cast<std::int64_t>(sizeof(BlockHeader))) continue;
      std::memcpy(static_cast<std::uint8_t*>(message.data) + offsetof(BlockHeader, verdict),
                  &finite, sizeof(finite));
    }
  }
};

/// The number of times the guest's stream was made to wait.
std::atomic<int> waits{0};

/// Runs a step of one bucket; returns the error that ended the exchange.
std::string ErrorOf(const std::shared_ptr<LoopbackWorld>& world, int rank, Meeting* ended) {
  std::vector<float> values(kNumel, 1.0f);
  if (rank == kGuest) values[3] = std::numeric_limits<float>::quiet_NaN();
  DeviceArray<float> gradient(values), residual(std::vector<float>(kNumel, 0.0f));
  SelectionState state;
  std::unique_ptr<Communicator> comm;
  if (rank == kGuest) comm = std::make_unique<Forgetful>(world, rank);
  if (rank != kGuest) comm = std::make_unique<LoopbackCommunicator>(world, rank);
  Exchange exchange(std::move(comm), SelectOn::kCaller);
  BucketSpec spec{"fc", {kNumel}, {kNumel}, {10}, "top_k", {}, "gtopk"};
  spec.device = {DeviceType::kCuda, 0};
  const int bucket = exchange.AddBucket(spec);
  Launch launch;
  launch.gradients = {{gradient.data(), kNumel, DType::kFloat32}};
  launch.residual = residual.span();
  launch.states = {&state, 1};
  launch.ks = {10};
  launch.decays = {1};
  launch.stream = kStreams + static_cast<StreamHandle>(rank);
  exchange.Start(bucket, std::move(launch));
  std::string said;
  try {
    while (!exchange.Wait(bucket, 1.0, kStreams + static_cast<StreamHandle>(rank))) {
    }
  } catch (const Error& error) {
    said = error.what();
  }
  ended->Attend();  // closing during a step would end it for all
  return said;
}

/// The device is told to write the result before its error is noticed.
TEST(ExchangeMarks, TheFrameworksStreamFollowsABucketThatFailedBehindItsWriting) {
  waits = 0;
  emulation::at_event = [](cudaStream_t stream, cudaEvent_t, bool is_wait) {
    const bool of_guest = stream == reinterpret_cast<cudaStream_t>(kStreams + kGuest);  // NOLINT
    if (of_guest && is_wait) ++waits;
  };
  auto world = std::make_shared<LoopbackWorld>(kRanks);
  Meeting ended(kRanks);
  std::string error;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const std::string said = ErrorOf(world, rank, &ended);
      if (rank == kGuest) error = said;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  emulation::at_event = nullptr;
  EXPECT_NE(error.find("knows of no NaN or Inf"), std::string::npos) << error;
  EXPECT_EQ(waits, 1);
}

}  // namespace
}  // namespace hvd_sparse
