/// The route of a bucket's step; tests/unit/test_device_costs.py tests the same for plans.

#include "csrc/exchange/route_of.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace hvd_sparse {
namespace {

struct Case {
  std::string collective, sparsifier;
  Values values;
  bool on_device, corrects_momentum, connected;
  Route route;
};

TEST(RouteOf, IsTheDevicesWhereItCanDoIt) {
  const std::vector<Case> cases = {
      {"gtopk", "gaussian", Values::kFloat32, true, false, true, Route::kStep},
      {"gtopk", "top_k", Values::kFloat32, true, false, true, Route::kRounds},
      {"gtopk", "gaussian", Values::kFloat32, true, true, true, Route::kStep},
      {"gtopk", "gaussian", Values::kFloat32, false, false, true, Route::kRounds},
      {"gtopk", "gaussian", Values::kBFloat16, true, false, true, Route::kCalls},
      {"gtopk", "gaussian", Values::kFloat32, true, false, false, Route::kCalls},
      {"allgather", "gaussian", Values::kFloat32, true, false, true, Route::kCalls},
      {"allgather", "one_sign", Values::kBinary, true, false, true, Route::kCalls},
      {"shard_topk", "gaussian", Values::kFloat32, true, false, true, Route::kCalls},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(testing::Message() << one.collective << ", " << one.sparsifier);
    BucketSpec spec{"a bucket", {100}, {100}, {10}, one.sparsifier, {}, one.collective};
    spec.wire.values = one.values;
    if (one.on_device) spec.device = {DeviceType::kCuda, 0};
    std::vector<float> velocity(100);
    Launch launch;
    launch.output_scale = 1;
    if (one.corrects_momentum) launch.velocity = velocity;
    EXPECT_EQ(RouteOf({one.collective, one.sparsifier, one.values, one.on_device, one.connected}),
              one.route);
    if (!one.connected) continue;
    EXPECT_EQ(RouteOf(spec, launch), one.route);
  }
}

}  // namespace
}  // namespace hvd_sparse
