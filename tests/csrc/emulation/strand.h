/// Strands, which ThreadSanitizer takes for threads, and their ordering; empty without
/// ThreadSanitizer.
///
/// Sources that use it are compiled without instrumentation: a function that was entered by one
/// strand must not be left by another one.

#ifndef HVD_SPARSE_TESTS_CSRC_EMULATION_STRAND_H_
#define HVD_SPARSE_TESTS_CSRC_EMULATION_STRAND_H_

#ifdef HVD_SPARSE_ORDER_IS_CHECKED
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
}
#endif

#include <cstdio>

namespace hvd_sparse::emulation {

#ifdef HVD_SPARSE_ORDER_IS_CHECKED

inline void* ThisStrand() { return __tsan_get_current_fiber(); }
inline void Become(void* strand) { __tsan_switch_to_fiber(strand, __tsan_switch_to_fiber_no_sync); }
inline void* MakeStrand() { return __tsan_create_fiber(0); }
inline void EndStrand(void* strand) { __tsan_destroy_fiber(strand); }

/// Sets the name shown in reports.
template <typename... Numbers>
void NameStrand(void* strand, const char* format, Numbers... numbers) {
  char name[64];
  std::snprintf(name, sizeof(name), format, numbers...);
  __tsan_set_fiber_name(strand, name);
}

/// Hides this strand's memory accesses while it lives; allocations, too.
class Unseen {
 public:
  Unseen() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~Unseen() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

/// Makes this strand's locks order nothing while it lives.
class UnseenLocks {
 public:
  UnseenLocks() { AnnotateIgnoreSyncBegin(__FILE__, __LINE__); }
  ~UnseenLocks() { AnnotateIgnoreSyncEnd(__FILE__, __LINE__); }
};

/// A happens-before edge: a strand that calls Take follows everything before PassOn.
class Order {
 public:
  Order() {
    const Unseen unseen;
    place_ = new char;
  }
  ~Order() {
    const Unseen unseen;
    delete place_;  // freeing it discards its history
  }
  Order(const Order&) = delete;
  Order& operator=(const Order&) = delete;

  void PassOn() { __tsan_release(place_); }
  void Take() const { __tsan_acquire(place_); }
  void Forget() {
    const Unseen unseen;
    delete place_;
    place_ = new char;
  }

 private:
  char* place_;
};

#else

inline void* ThisStrand() { return nullptr; }
inline void Become(void*) {}
inline void* MakeStrand() { return nullptr; }
inline void EndStrand(void*) {}
template <typename... Numbers>
void NameStrand(void*, const char*, Numbers...) {}

class Unseen {
 public:
  Unseen() {}
  ~Unseen() {}
};
using UnseenLocks = Unseen;

class Order {
 public:
  void PassOn() {}
  void Take() const {}
  void Forget() {}
};

#endif

}  // namespace hvd_sparse::emulation

#endif  // HVD_SPARSE_TESTS_CSRC_EMULATION_STRAND_H_
