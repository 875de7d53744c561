/// The route of a bucket's step: how much of it runs on a device. RouteOf
/// (csrc/exchange/route_of.h) chooses it.

#ifndef HVD_SPARSE_BASE_ROUTE_H_
#define HVD_SPARSE_BASE_ROUTE_H_

#include <cstdint>

namespace hvd_sparse {

/// The route of a step. It must be equal on all ranks: they compare it before any of them waits for
/// another's device.
enum class Route : std::uint8_t {
  kCalls,   ///< one call at a time: blocks lie in CPU memory and are sent from there
  kRounds,  ///< like kCalls, but the collective's rounds go from device to device
  kStep,    ///< the whole step is enqueued on the device at once
};

/// The route's name as shown to users.
inline const char* NameOf(Route route) {
  switch (route) {
    case Route::kCalls:
      return "calls";
    case Route::kRounds:
      return "device rounds";
    case Route::kStep:
      return "device step";
  }
  return "unknown";
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_BASE_ROUTE_H_
