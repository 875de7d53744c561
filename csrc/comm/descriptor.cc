/// File descriptors that are closed in forked children; see the header.

#include "csrc/comm/descriptor.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>
#include <utility>

namespace hvd_sparse {
namespace {

std::atomic<int> fork_count{0};

/// The descriptors of this process that a forked child must close. A fork waits for the mutex, so
/// the child finds the set complete.
struct Registry {
  std::mutex mutex;
  std::set<int> open;
};

/// Never destroyed: a fork may happen while the process ends.
Registry& GetRegistry() {
  static Registry* const registry = [] {
    auto* created = new Registry;
    pthread_atfork([] { GetRegistry().mutex.lock(); }, [] { GetRegistry().mutex.unlock(); },
                   [] {
                     Registry& inherited = GetRegistry();
                     ++fork_count;
                     for (int fd : inherited.open) ::close(fd);
                     inherited.open.clear();
                     inherited.mutex.unlock();
                   });
    return created;
  }();
  return *registry;
}

}  // namespace

int ForkCount() { return fork_count.load(std::memory_order_relaxed); }

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this == &other) return *this;
  Close();
  fd_ = std::exchange(other.fd_, -1);
  fork_count_ = other.fork_count_;
  return *this;
}

Descriptor Descriptor::Open(const std::function<int()>& open) {
  Registry& registry = GetRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  Descriptor descriptor;
  descriptor.fork_count_ = ForkCount();
  descriptor.fd_ = open();
  if (descriptor.fd_ >= 0) registry.open.insert(descriptor.fd_);
  return descriptor;
}

void Descriptor::Close() {
  if (const int fd = get(); fd >= 0) {
    Registry& registry = GetRegistry();
    std::lock_guard<std::mutex> lock(registry.mutex);
    registry.open.erase(fd);
    ::close(fd);
  }
  fd_ = -1;
}

}  // namespace hvd_sparse
