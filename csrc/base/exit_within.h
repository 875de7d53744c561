/// A way to end the process that cannot hang.

#ifndef HVD_SPARSE_BASE_EXIT_WITHIN_H_
#define HVD_SPARSE_BASE_EXIT_WITHIN_H_

#include <unistd.h>

#include <chrono>
#include <thread>

#include "csrc/base/signals_blocked.h"

namespace hvd_sparse {

/// Ends this process with status 1 after `seconds` unless it has ended by then: for processes whose
/// shutdown may hang.
inline void ExitWithin(double seconds) {
  const SignalsBlocked blocked;
  std::thread([seconds] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    ::_exit(1);
  }).detach();
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_BASE_EXIT_WITHIN_H_
