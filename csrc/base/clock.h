/// The clock of all times that leave the core.

#ifndef HVD_SPARSE_BASE_CLOCK_H_
#define HVD_SPARSE_BASE_CLOCK_H_

#include <chrono>

namespace hvd_sparse {

/// Seconds of std::chrono::steady_clock: on Linux CLOCK_MONOTONIC, as Python's time.perf_counter.
inline double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_BASE_CLOCK_H_
