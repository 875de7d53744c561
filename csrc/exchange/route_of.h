/// The choice of the route of a bucket's step, made only here.
///
/// All ranks must choose the same route: before devices wait for each other, the ranks compare
/// their routes (CollectiveContext::AgreeBeforehand).

#pragma once

#include <string_view>

#include "csrc/base/types.h"
#include "csrc/collectives/bucket_spec.h"
#include "csrc/wire/values.h"

namespace hvd_sparse {

/// The facts that decide a route.
///
/// kStep is for steps that csrc/cuda/ can do without the CPU: selection by `gaussian`, of gradients
/// that lie on a device. kRounds takes blocks of any sparsifier.
struct RouteFacts {
  std::string_view collective, sparsifier;
  Values values = Values::kFloat32;
  bool on_device = false;  ///< true if the gradients lie on a device
  bool connected = false;  ///< true if a network connects the devices of all ranks
};

/// Returns the route of a step that has entries, and writes its result.
Route RouteOf(const RouteFacts& facts);

/// Returns the route of a launch where a network connects the devices of all ranks; elsewhere it is
/// kCalls.
Route RouteOf(const BucketSpec& spec, const Launch& launch);

}  // namespace hvd_sparse
