/// Where a bucket's step happens; see RouteOf (csrc/exchange/route_of.h), which decides.

#ifndef HVD_SPARSE_BASE_ROUTE_H_
#define HVD_SPARSE_BASE_ROUTE_H_

#include <cstdint>

namespace hvd_sparse {

/// The same on all ranks, which compare it before any of them waits for another's device.
enum class Route : std::uint8_t {
  kCalls,   ///< call by call: blocks lie in memory of the CPU, and so travel
  kRounds,  ///< the same, but a collective's rounds go from device to device
  kStep,    ///< the whole step is given to a device at once
};

/// As users read it.
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
