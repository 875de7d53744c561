#include "csrc/exchange/route_of.h"

namespace hvd_sparse {

Route RouteOf(const RouteFacts& facts) {
  const bool has_rounds = facts.collective == "gtopk" && facts.values == Values::kFloat32;
  if (!facts.connected || !has_rounds) return Route::kCalls;
  return facts.on_device && facts.sparsifier == "gaussian" ? Route::kStep : Route::kRounds;
}

Route RouteOf(const BucketSpec& spec, const Launch& launch) {
  const bool has_step = spec.Numel() > 0 && launch.output_scale > 0;
  const Route route =
      RouteOf({spec.collective, spec.sparsifier, spec.wire.values, !spec.device.IsCpu(), true});
  return route == Route::kStep && !has_step ? Route::kRounds : route;
}

}  // namespace hvd_sparse
