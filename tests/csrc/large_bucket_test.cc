/// A bucket of more than 2^31 bytes: no size or offset may be computed in 32 bits.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "csrc/comm/loopback_communicator.h"
#include "csrc/exchange/exchange.h"

namespace hvd_sparse {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
template <typename T>
using Zeros = std::unique_ptr<T[], Free>;

/// Returns memory that the system clears and that takes no pages until it is written.
template <typename T>
Zeros<T> MakeZeros(std::int64_t size) {
  return Zeros<T>(static_cast<T*>(std::calloc(static_cast<std::size_t>(size), sizeof(T))));
}

TEST(LargeBucket, EntriesBeyondTwoToThe31BytesAreExchanged) {
  constexpr std::int64_t kNumel = (std::int64_t{1} << 29) + 12345;  // a residual of more than 2 GiB
  const std::vector<std::int64_t> positions = {0, 1 << 20, (1 << 29) - 1, 1 << 29, kNumel - 1};
  constexpr std::uint16_t kOne = 0x3c00;  // 1.0 as float16
  auto gradient = MakeZeros<std::uint16_t>(kNumel);
  auto residual = MakeZeros<float>(kNumel);
  if (gradient == nullptr || residual == nullptr) GTEST_SKIP() << "needs 3.2 GiB of memory";
  for (std::int64_t position : positions) gradient[position] = kOne;

  Exchange exchange(std::make_unique<LoopbackCommunicator>(std::make_shared<LoopbackWorld>(1), 0),
                    SelectOn::kCaller);
  exchange.AddBucket({"large", {kNumel}, {kNumel}, {8}, "top_k", {}, "gtopk"});
  SelectionState state;
  Launch launch;
  launch.gradients = {{gradient.get(), kNumel, DType::kFloat16}};
  launch.residual = {residual.get(), kNumel};
  launch.states = {&state, 1};
  launch.ks = {8};
  launch.decays = {1.0f};
  launch.output_scale = 2.0f;
  exchange.Start(0, launch);
  while (!exchange.Wait(0, 1.0)) {
  }
  exchange.Commit("");

  EXPECT_EQ(exchange.Stats(0).selected, static_cast<std::int64_t>(positions.size()));
  for (std::int64_t position : positions) {
    EXPECT_EQ(gradient[position], 0x4000) << position;  // 2.0
    EXPECT_EQ(residual[position], 0.0f) << position;
  }
}

TEST(LargeBucket, MoreEntriesThanAnIndexCountsAreRefused) {
  Exchange exchange(std::make_unique<LoopbackCommunicator>(std::make_shared<LoopbackWorld>(1), 0),
                    SelectOn::kCaller);
  const std::int64_t numel = kMaxBucketNumel + 1;
  EXPECT_THROW(exchange.AddBucket({"too large", {numel}, {numel}, {1}, "top_k", {}, "gtopk"}),
               Error);
}

}  // namespace
}  // namespace hvd_sparse
