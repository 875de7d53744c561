/// What ThreadSanitizer takes for a thread, and how strands wait for each other; nothing without
/// it.
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

/// As reports have it.
template <typename... Numbers>
void NameStrand(void* strand, const char* format, Numbers... numbers) {
  char name[64];
  std::snprintf(name, sizeof(name), format, numbers...);
  __tsan_set_fiber_name(strand, name);
}

/// While it lives, what this strand does to memory is nobody's business; allocating, too.
class Unseen {
 public:
  Unseen() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~Unseen() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

/// While it lives, what this strand locks orders nothing.
class UnseenLocks {
 public:
  UnseenLocks() { AnnotateIgnoreSyncBegin(__FILE__, __LINE__); }
  ~UnseenLocks() { AnnotateIgnoreSyncEnd(__FILE__, __LINE__); }
};

/// Who takes it follows all that was done before it was passed on.
class Order {
 public:
  Order() {
    const Unseen unseen;
    place_ = new char;
  }
  ~Order() {
    const Unseen unseen;
    delete place_;  // freed, it is forgotten
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
