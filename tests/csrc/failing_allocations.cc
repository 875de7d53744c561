/// Replaces the program's operator new, and the aligned_alloc that buffers use.

#include "tests/csrc/failing_allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace hvd_sparse {
namespace {

constexpr int kNone = -1;
std::atomic<int> of_new_threads{kNone};
thread_local int left_until_failure = of_new_threads;  // its value at a thread's first allocation
thread_local bool failed = false;

bool FailsNow() {
  if (left_until_failure == kNone) return false;
  if (left_until_failure-- > 0) return false;
  failed = true;
  return true;
}

void* Allocate(std::size_t bytes) {
  void* const memory = FailsNow() ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void FailAllocation(int number) {
  left_until_failure = number;
  failed = false;
}

void FailAllocationOfNewThreads(int number) { of_new_threads = number < 0 ? kNone : number; }

bool StopFailingAllocations() {
  left_until_failure = kNone;
  return failed;
}

}  // namespace hvd_sparse

void* operator new(std::size_t bytes) { return hvd_sparse::Allocate(bytes); }
void* operator new[](std::size_t bytes) { return hvd_sparse::Allocate(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return hvd_sparse::FailsNow() ? nullptr : std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  void* memory = nullptr;
  if (hvd_sparse::FailsNow() || ::posix_memalign(&memory, alignment, bytes) != 0) return nullptr;
  return memory;
}
