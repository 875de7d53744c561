/// Threads that wait for one another.

#ifndef HVD_SPARSE_TESTS_CSRC_MEETING_H_
#define HVD_SPARSE_TESTS_CSRC_MEETING_H_

#include <condition_variable>
#include <mutex>

namespace hvd_sparse {

/// A reusable barrier for a fixed number of threads.
class Meeting {
 public:
  explicit Meeting(int threads) : threads_(threads) {}

  /// Returns when all threads have called it.
  void Attend() {
    std::unique_lock lock(mutex_);
    const int before = meetings_;
    if (++here_ == threads_) {
      here_ = 0;
      ++meetings_;
      all_came_.notify_all();
    }
    all_came_.wait(lock, [&] { return meetings_ != before; });
  }

 private:
  const int threads_;
  std::mutex mutex_;
  std::condition_variable all_came_;
  int here_ = 0, meetings_ = 0;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_MEETING_H_
