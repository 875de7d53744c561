/// Sharing a pass over a large array between threads: OpenMP's, which PyTorch uses, too.
///
/// A pool of our own would compete with PyTorch's threads, which spin for a while after each
/// operation. Called on the thread that runs the framework's operations, OpenMP takes those very
/// threads.

#ifndef HVD_SPARSE_KERNELS_PARALLEL_H_
#define HVD_SPARSE_KERNELS_PARALLEL_H_

#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <cstdint>

namespace hvd_sparse {

/// How many threads a pass may use that is called on this thread, which is one of them.
int KernelThreads();

/// Sets that for the whole process; 1 at first, and in a forked child, which does not inherit
/// threads. Throws InvalidArgument for threads < 1, and Unavailable for more than one where the
/// core was built without OpenMP.
void SetKernelThreads(int threads);

/// While one lives, passes that are called on this thread use no other one.
class AloneInThread {
 public:
  AloneInThread();
  ~AloneInThread();
  AloneInThread(const AloneInThread&) = delete;
  AloneInThread& operator=(const AloneInThread&) = delete;

 private:
  const bool before_;
};

/// Calls work(part, thread) once for each part in [0, parts), thread in [0, most_threads). Parts
/// are claimed one by one, so that a thread that is late or interrupted holds nobody up. They must
/// not throw.
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

#endif  // HVD_SPARSE_KERNELS_PARALLEL_H_
