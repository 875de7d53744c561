/// Messages between devices that arrive changed: who receives one that cannot be a block's says
/// from whom, and all ranks end their exchange.

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/exchange/exchange.h"
#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

constexpr int kSize = 3;
constexpr std::int64_t kNumel = 300, kK = 20;

/// A communicator for device memory, which here is the CPU's; it changes what rank 1 receives.
class Changing final : public LoopbackCommunicator {
 public:
  using Change = void (*)(Incoming* message);

  Changing(std::shared_ptr<LoopbackWorld> world, int rank, Change change)
      : LoopbackCommunicator(std::move(world), rank), change_(change) {}

  std::string DeviceMemoryProblem() const override { return ""; }
  void Transfer(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) override {
    LoopbackCommunicator::Transfer(out, in, what);
    if (Rank() != 1 || what.find("over MPI") == std::string::npos) return;
    for (Incoming& message : in) change_(&message);
  }

 private:
  const Change change_;
};

class CorruptDeviceMessage : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { ::setenv("HVD_SPARSE_CUDA_AWARE_MPI", "1", 1); }
  void TearDown() override { ::unsetenv("HVD_SPARSE_CUDA_AWARE_MPI"); }

  /// Returns the error of rank 1.
  static Error ErrorWhere(Changing::Change change) {
    Error found(ErrorKind::kInvalidArgument, "");
    auto world = std::make_shared<LoopbackWorld>(kSize);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kSize; ++rank) {
      threads.emplace_back([&, rank] {
        std::vector<float> values;
        for (std::int64_t i = 0; i < kNumel; ++i) values.push_back(static_cast<float>(i % 83) - 41);
        DeviceArray<float> gradient(values), residual(std::vector<float>(kNumel, 0.0f));
        SelectionState state;
        Exchange exchange(std::make_unique<Changing>(world, rank, change), SelectOn::kCaller);
        BucketSpec spec{"fc", {kNumel}, {kNumel}, {kK}, "top_k", {}, GetParam()};
        spec.device = kGpu;
        const int bucket = exchange.AddBucket(spec);
        Launch launch;
        launch.gradients = {{gradient.data(), kNumel, DType::kFloat32}};
        launch.residual = residual.span();
        launch.states = {&state, 1};
        launch.ks = {kK};
        launch.decays = {1};
        exchange.Start(bucket, std::move(launch));
        const Error error = Thrown([&] {
          while (!exchange.Wait(bucket, 1.0)) {
          }
          for (;; std::this_thread::yield()) exchange.Check();
        });
        EXPECT_EQ(error.kind(), ErrorKind::kExchangeFailed) << error.what();
        EXPECT_EQ(residual.Values(), values);  // nothing is lost
        if (rank == 1) found = error;
      });
    }
    for (std::thread& thread : threads) thread.join();
    return found;
  }
};

INSTANTIATE_TEST_SUITE_P(Of, CorruptDeviceMessage, testing::Values("allgather", "shard_topk"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(CorruptDeviceMessage, PositionsThatDoNotAscendAreRefused) {
  const Error error =
      ErrorWhere([](Incoming* message) { std::memset(message->data, 0, 2 * sizeof(Index)); });
  EXPECT_TRUE(Says(error, "from rank ")) << error.what();
}

TEST_P(CorruptDeviceMessage, ValuesThatAreNotFiniteAreRefused) {
  const Error error = ErrorWhere([](Incoming* message) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(static_cast<char*>(message->data) + message->bytes - sizeof(nan), &nan,
                sizeof(nan));
  });
  EXPECT_TRUE(Says(error, "from rank ")) << error.what();
  EXPECT_TRUE(Says(error, "the message is corrupt")) << error.what();
}

TEST_P(CorruptDeviceMessage, PositionsBeyondTheBucketAreRefused) {
  ErrorWhere([](Incoming* message) {
    const auto entries = static_cast<std::size_t>(message->bytes) / 8;
    const Index beyond = kNumel;
    std::memcpy(static_cast<char*>(message->data) + (entries - 1) * sizeof(Index), &beyond,
                sizeof(beyond));
  });
}

}  // namespace
}  // namespace hvd_sparse
