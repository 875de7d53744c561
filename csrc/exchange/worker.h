/// A thread that runs tasks one after the other.

#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace hvd_sparse {

class Worker {
 public:
  /// Work for the thread, and its place in the queue: made in advance, so that posting allocates no
  /// memory. The caller owns it and keeps it at least until the thread has begun with it.
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
    bool waits_ = false;    // it is in the queue
  };

  Worker();
  ~Worker();  ///< runs all posted tasks, then ends the thread
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Runs a task after those that were posted before; a task that is in the queue already keeps its
  /// place. Does not fail.
  void Post(Task* task) noexcept;

  /// True if called from a task, which cannot wait for the end of its own thread.
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
