/// The route of a bucket's step; tests/unit/test_device_costs.py tests the same for plans.

#include "csrc/exchange/route_of.h"

#include <gtest/gtest.h>

namespace hvd_sparse {
namespace {

TEST(RouteOf, IsTheDevicesWhereTheyCanDoIt) {
  EXPECT_EQ(RouteOf("gtopk", Values::kFloat32, true), Route::kRounds);
  EXPECT_EQ(RouteOf("gtopk", Values::kFloat32, false), Route::kCalls);
  EXPECT_EQ(RouteOf("gtopk", Values::kBFloat16, true), Route::kCalls);
  EXPECT_EQ(RouteOf("allgather", Values::kFloat32, true), Route::kCalls);
  EXPECT_EQ(RouteOf("shard_topk", Values::kFloat32, true), Route::kCalls);
  EXPECT_EQ(RouteOf("shard_sum", Values::kFloat32, true), Route::kCalls);
}

}  // namespace
}  // namespace hvd_sparse
