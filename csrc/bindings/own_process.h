/// Objects whose threads are those of the process that made them.

#ifndef HVD_SPARSE_BINDINGS_OWN_PROCESS_H_
#define HVD_SPARSE_BINDINGS_OWN_PROCESS_H_

#include <unistd.h>

#include <memory>

namespace hvd_sparse {

/// Deletes what was made in this process. In a forked child it stays: its threads are the parent's,
/// and what they hold or wait for is held, or waited for, for ever.
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

#endif  // HVD_SPARSE_BINDINGS_OWN_PROCESS_H_
