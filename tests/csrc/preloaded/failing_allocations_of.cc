/// A preloaded library that makes an allocation within another library fail, in a program that
/// could not continue if its own allocations failed.

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

constexpr int kNone = -1;
std::atomic<int> left_until_failure{kNone};
std::atomic<bool> failed{false};
std::atomic<const char*> library{""};

bool IsOfLibrary(const void* caller) {
  Dl_info found;
  if (dladdr(caller, &found) == 0 || found.dli_fname == nullptr) return false;
  const std::size_t length = std::strlen(found.dli_fname), wanted = std::strlen(library);
  return length >= wanted && std::strcmp(found.dli_fname + length - wanted, library) == 0;
}

bool FailsNow(const void* caller) {
  if (left_until_failure == kNone || !IsOfLibrary(caller)) return false;
  if (left_until_failure-- > 0) return false;
  left_until_failure = kNone;
  failed = true;
  return true;
}

void* Allocate(std::size_t bytes, const void* caller) {
  void* const memory = FailsNow(caller) ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return Allocate(bytes, __builtin_return_address(0)); }
void* operator new[](std::size_t bytes) { return Allocate(bytes, __builtin_return_address(0)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

extern "C" {

/// Makes the `number`-th allocation from now on (0: the next one) fail, once, on any thread; only
/// allocations of a library whose path ends in `path` count.
void fail_allocation(const char* path, int number) {
  library = path;
  failed = false;
  left_until_failure = number;
}

/// Stops failing allocations; returns true if one has failed.
int stop_failing_allocations() {
  left_until_failure = kNone;
  return failed ? 1 : 0;
}

}  // extern "C"
