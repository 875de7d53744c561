/// The choice of the route of a bucket's step, made only here.
///
/// All ranks must choose the same route: before devices wait for each other, the ranks compare
/// their routes (CollectiveContext::AgreeBeforehand).

#pragma once

#include <string_view>

#include "csrc/base/types.h"
#include "csrc/wire/values.h"

namespace hvd_sparse {

/// Returns the route of a bucket's steps; `connected` says whether a network connects the devices
/// of all ranks. Blocks of any sparsifier take it, wherever the gradients lie.
Route RouteOf(std::string_view collective, Values values, bool connected);

}  // namespace hvd_sparse
