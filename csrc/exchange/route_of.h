/// Which route a bucket's step takes: the one place that decides.
///
/// What decides is the same on all ranks, or it is an error: before devices wait for each other,
/// the ranks compare their routes (CollectiveContext::AgreeBeforehand).

#ifndef HVD_SPARSE_EXCHANGE_ROUTE_OF_H_
#define HVD_SPARSE_EXCHANGE_ROUTE_OF_H_

#include "csrc/base/route.h"
#include "csrc/exchange/bucket_spec.h"

namespace hvd_sparse {

/// `connected`: whether a network connects the devices of all ranks.
///
/// A whole step is what csrc/cuda/ can do without the CPU: selection by `gaussian`, of gradients
/// that lie on a device. Rounds alone take blocks of any sparsifier.
Route RouteOf(const BucketSpec& spec, const Launch& launch, bool connected);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_ROUTE_OF_H_
