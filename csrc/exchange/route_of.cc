#include "csrc/exchange/route_of.h"

namespace hvd_sparse {

Route RouteOf(const BucketSpec& spec, const Launch& launch, bool connected) {
  const bool has_rounds = spec.collective == "gtopk" && spec.wire.values == DType::kFloat32;
  if (!connected || !has_rounds) return Route::kCalls;
  const bool has_step = !spec.device.IsCpu() && spec.sparsifier == "gaussian" && spec.Numel() > 0 &&
                        launch.output_scale > 0;
  return has_step ? Route::kStep : Route::kRounds;
}

}  // namespace hvd_sparse
