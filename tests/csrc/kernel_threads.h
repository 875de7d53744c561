/// Kernels give the same bits whatever the number of threads.

#ifndef HVD_SPARSE_TESTS_CSRC_KERNEL_THREADS_H_
#define HVD_SPARSE_TESTS_CSRC_KERNEL_THREADS_H_

#include <gtest/gtest.h>

#include "csrc/kernels/parallel.h"

namespace hvd_sparse {

#ifdef _OPENMP
constexpr int kMostTestThreads = 3;
#else
constexpr int kMostTestThreads = 1;
#endif

/// Sets the number of kernel threads while it lives, then 1 again.
class WithKernelThreads {
 public:
  explicit WithKernelThreads(int threads) { SetKernelThreads(threads); }
  ~WithKernelThreads() { SetKernelThreads(1); }
  WithKernelThreads(const WithKernelThreads&) = delete;
  WithKernelThreads& operator=(const WithKernelThreads&) = delete;
};

/// Calls test() with 1, 2 and 3 threads; with 1 alone if the build has no OpenMP.
template <typename Test>
void WithOneToThreeThreads(Test test) {
  for (int count = 1; count <= kMostTestThreads; ++count) {
    SCOPED_TRACE(testing::Message() << count << " kernel threads");
    const WithKernelThreads threads(count);
    test();
  }
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_KERNEL_THREADS_H_
