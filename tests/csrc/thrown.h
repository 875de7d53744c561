/// Captures the error that code throws.

#ifndef HVD_SPARSE_TESTS_CSRC_THROWN_H_
#define HVD_SPARSE_TESTS_CSRC_THROWN_H_

#include <functional>
#include <string>

#include "csrc/base/error.h"

namespace hvd_sparse {

/// Returns the error that `body` throws.
inline Error Thrown(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorKind::kInvalidArgument, "nothing was thrown");
}

inline bool Says(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

/// Returns true if the error is about another rank's message.
inline bool BlamesAPeer(const Error& error) {
  return error.kind() == ErrorKind::kExchangeFailed || error.kind() == ErrorKind::kDisagreement;
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_THROWN_H_
