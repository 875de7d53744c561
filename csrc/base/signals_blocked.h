/// Threads of the core receive no signals.

#ifndef HVD_SPARSE_BASE_SIGNALS_BLOCKED_H_
#define HVD_SPARSE_BASE_SIGNALS_BLOCKED_H_

#include <pthread.h>
#include <signal.h>

namespace hvd_sparse {

/// Threads started while an instance lives receive no signals, which are left to the user's
/// threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_BASE_SIGNALS_BLOCKED_H_
