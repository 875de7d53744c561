/// A thread that runs tasks one after the other.

#ifndef HVD_SPARSE_EXCHANGE_WORKER_H_
#define HVD_SPARSE_EXCHANGE_WORKER_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace hvd_sparse {

class Worker {
 public:
  Worker();
  ~Worker();  ///< runs what was posted, then ends the thread
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Tasks run in the order in which they were posted; they must not throw.
  void Post(std::function<void()> task);

  /// Whether a task asks, which cannot wait for the end of its own thread.
  bool IsCurrent() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> tasks_;
  bool closing_ = false;
  std::thread thread_;  // last: the others must exist before it runs
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_WORKER_H_
