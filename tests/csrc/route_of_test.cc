/// The route of a bucket's step; tests/unit/test_device_costs.py tests the same for plans.

#include "csrc/exchange/route_of.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace hvd_sparse {
namespace {

TEST(RouteOf, IsTheDevicesWhereTheyAreConnectedAndHaveRounds) {
  const std::set<std::string> with_rounds = {"allgather", "gtopk", "shard_topk"};
  for (const Collective& one : AllCollectives()) {
    const bool has_rounds = with_rounds.count(one.name) > 0;
    EXPECT_EQ(RouteOf(one, {}, true), has_rounds ? Route::kRounds : Route::kCalls) << one.name;
    EXPECT_EQ(RouteOf(one, {}, false), Route::kCalls);
    EXPECT_EQ(RouteOf(one, {false, Values::kBFloat16}, true), Route::kCalls);
    EXPECT_EQ(RouteOf(one, {true, Values::kFloat32}, true), Route::kCalls);
  }
}

}  // namespace
}  // namespace hvd_sparse
