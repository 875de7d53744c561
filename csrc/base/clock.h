/// The clock of all times that the core reports.

#ifndef HVD_SPARSE_BASE_CLOCK_H_
#define HVD_SPARSE_BASE_CLOCK_H_

#include <chrono>

namespace hvd_sparse {

/// The time of std::chrono::steady_clock in seconds. On Linux it is CLOCK_MONOTONIC, like Python's
/// time.perf_counter.
inline double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_BASE_CLOCK_H_
