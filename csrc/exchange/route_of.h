/// The choice of the route of a bucket's step, made only here.
///
/// All ranks must choose the same route: before devices wait for each other, the ranks compare
/// their routes (CollectiveContext::AgreeBeforehand).

#ifndef HVD_SPARSE_EXCHANGE_ROUTE_OF_H_
#define HVD_SPARSE_EXCHANGE_ROUTE_OF_H_

#include "csrc/base/route.h"
#include "csrc/exchange/bucket_spec.h"

namespace hvd_sparse {

/// Returns the route. `connected`: true if a network connects the devices of all ranks.
///
/// kStep is for steps that csrc/cuda/ can do without the CPU: selection by `gaussian`, of gradients
/// that lie on a device. kRounds takes blocks of any sparsifier.
Route RouteOf(const BucketSpec& spec, const Launch& launch, bool connected);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_ROUTE_OF_H_
