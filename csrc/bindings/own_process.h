/// Objects whose threads belong to the process that made them.

#pragma once

#include <unistd.h>

#include <memory>

namespace hvd_sparse {

/// Deletes an object in the process that made it. In a forked child it leaks the object, whose
/// threads are the parent's: locks that they hold would never be released there, and waits for them
/// would never end.
template <typename T>
struct OwnProcessDelete {
  pid_t process = ::getpid();

  void operator()(T* object) const {
    if (process == ::getpid()) delete object;
  }
};

template <typename T>
using OwnProcessPointer = std::unique_ptr<T, OwnProcessDelete<T>>;

}  // namespace hvd_sparse
