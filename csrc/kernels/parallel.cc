#include "csrc/kernels/parallel.h"

#include <pthread.h>

#include <atomic>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

std::atomic<int> kernel_threads{1};
thread_local bool alone = false;

}  // namespace

int KernelThreads() { return alone ? 1 : kernel_threads.load(std::memory_order_relaxed); }

void SetKernelThreads(int threads) {
  Require(threads >= 1, "threads must be >= 1, got ", threads);
#ifndef _OPENMP
  if (threads > 1) Throw(ErrorKind::kUnavailable, "this build has no OpenMP, and one thread");
#endif
  static const int watching = pthread_atfork(nullptr, nullptr, [] { kernel_threads = 1; });
  (void)watching;
  kernel_threads = threads;
}

AloneInThread::AloneInThread() : before_(alone) { alone = true; }
AloneInThread::~AloneInThread() { alone = before_; }

}  // namespace hvd_sparse
