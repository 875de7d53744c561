/// The choice of the route of a bucket's step, made only here.
///
/// All ranks must choose the same route: before devices wait for each other, the ranks compare
/// their routes (CollectiveContext::AgreeBeforehand).

#pragma once

#include "csrc/base/types.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/wire/wire_format.h"

namespace hvd_sparse {

/// Returns the route of a bucket's steps; `connected` says whether a network connects the devices
/// of all ranks. Blocks of any sparsifier take it, wherever the gradients lie.
Route RouteOf(const Collective& collective, const WireFormat& wire, bool connected);

}  // namespace hvd_sparse
