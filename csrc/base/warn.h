/// Warnings of the core: lines on stderr, unless the log level suppresses them.

#ifndef HVD_SPARSE_BASE_WARN_H_
#define HVD_SPARSE_BASE_WARN_H_

#include <atomic>
#include <iostream>

#include "csrc/base/error.h"

namespace hvd_sparse {

/// True if Warn prints; hvd_sparse/log.py sets it from the log level.
inline std::atomic<bool> warnings_are_shown{true};

template <typename... Parts>
void Warn(const Parts&... parts) {
  if (warnings_are_shown) std::cerr << Concat("hvd_sparse: warning: ", parts..., "\n");
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_BASE_WARN_H_
