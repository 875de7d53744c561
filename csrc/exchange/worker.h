/// A thread that runs tasks one after the other.

#ifndef HVD_SPARSE_EXCHANGE_WORKER_H_
#define HVD_SPARSE_EXCHANGE_WORKER_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace hvd_sparse {

class Worker {
 public:
  /// What a thread shall do, and its place in the queue: made before anybody depends on it, so that
  /// posting takes no memory. Somebody else owns it, until the thread has begun with it at least.
  class Task {
   public:
    /// `work` must not throw.
    explicit Task(std::function<void()> work) : work_(std::move(work)) {}
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;

   private:
    friend class Worker;

    const std::function<void()> work_;
    Task* next_ = nullptr;  // in the queue
    bool waits_ = false;    // there
  };

  Worker();
  ~Worker();  ///< runs what was posted, then ends the thread
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Runs a task after those that were posted before; one that waits for that already stays where
  /// it is. Does not fail.
  void Post(Task* task) noexcept;

  /// Whether a task asks, which cannot wait for the end of its own thread.
  bool IsCurrent() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable posted_;
  Task *first_ = nullptr, *last_ = nullptr;  // of the queue
  bool closing_ = false;
  std::thread thread_;  // last: the others must exist before it runs
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_WORKER_H_
