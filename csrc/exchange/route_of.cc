#include "csrc/exchange/route_of.h"

namespace hvd_sparse {

Route RouteOf(std::string_view collective, Values values, bool connected) {
  const bool has_rounds = collective == "gtopk" && values == Values::kFloat32;
  return connected && has_rounds ? Route::kRounds : Route::kCalls;
}

}  // namespace hvd_sparse
