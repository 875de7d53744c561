#include "csrc/exchange/worker.h"

#include "csrc/base/process.h"
#include "csrc/kernels/parallel.h"

namespace hvd_sparse {

Worker::Worker() : thread_([this] { Loop(); }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  posted_.notify_one();
  thread_.join();
}

void Worker::Post(Task* task) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (task->waits_) return;
    task->waits_ = true;
    task->next_ = nullptr;
    (first_ == nullptr ? first_ : last_->next_) = task;
    last_ = task;
  }
  posted_.notify_one();
}

void Worker::Loop() {
  const AloneInThread alone;  // the framework computes meanwhile
  const ShortSleeps punctual;
  std::unique_lock lock(mutex_);
  for (;;) {
    posted_.wait(lock, [this] { return closing_ || first_ != nullptr; });
    if (first_ == nullptr) return;
    Task* const task = first_;
    first_ = task->next_;
    task->waits_ = false;
    lock.unlock();
    task->work_();
    lock.lock();
  }
}

}  // namespace hvd_sparse
