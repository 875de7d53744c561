/// Sharing a pass over a large array between OpenMP threads, which PyTorch uses, too.
///
/// A pool of our own would compete with PyTorch's threads, which spin for a while after each
/// operation. On the thread that runs PyTorch's operations, OpenMP reuses those very threads.

#pragma once

#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <cstdint>

namespace hvd_sparse {

/// Returns the number of threads that a pass called on this thread may use, this thread included.
int KernelThreads();

/// Sets KernelThreads() for the whole process. It is 1 at first, and in a forked child, which does
/// not inherit threads. Throws InvalidArgument if threads < 1, and Unavailable if threads > 1 and
/// the core was built without OpenMP.
void SetKernelThreads(int threads);

/// While an instance lives, passes called on this thread use no other thread.
class AloneInThread {
 public:
  AloneInThread();
  ~AloneInThread();
  AloneInThread(const AloneInThread&) = delete;
  AloneInThread& operator=(const AloneInThread&) = delete;

 private:
  const bool before_;
};

/// Calls work(part, thread) once for each part in [0, parts), with thread in [0, most_threads).
/// Threads claim parts one by one, so that a late or interrupted thread delays no other. `work`
/// must not throw.
template <typename Work>
void RunParts(std::int64_t parts, int most_threads, Work work) {
  const int threads = static_cast<int>(std::min<std::int64_t>(parts, most_threads));
  if (threads <= 1) {
    for (std::int64_t part = 0; part < parts; ++part) work(part, 0);
    return;
  }
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
#pragma omp for schedule(monotonic : dynamic) nowait
    for (std::int64_t part = 0; part < parts; ++part) work(part, thread);
  }
#endif
}

template <typename Work>
void RunParts(std::int64_t parts, Work work) {
  RunParts(parts, KernelThreads(), work);
}

}  // namespace hvd_sparse
