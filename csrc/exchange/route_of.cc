#include "csrc/exchange/route_of.h"

namespace hvd_sparse {

Route RouteOf(const Collective& collective, const WireFormat& wire, bool connected) {
  const bool can = collective.has_device_rounds && wire.IsPlain();
  return connected && can ? Route::kRounds : Route::kCalls;
}

}  // namespace hvd_sparse
