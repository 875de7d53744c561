/// Sleeps of some microseconds that end on time.

#ifndef HVD_SPARSE_BASE_SHORT_SLEEPS_H_
#define HVD_SPARSE_BASE_SHORT_SLEEPS_H_

#ifdef __linux__
#include <sys/prctl.h>
#endif

namespace hvd_sparse {

/// While an instance lives, sleeps of this thread end on time. By default Linux lets every sleep
/// last up to 50 us longer, which is as long as a whole round of a small block.
class ShortSleeps {
 public:
#ifdef __linux__
  ShortSleeps() : before_(prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL)) { Set(1000); }
  ~ShortSleeps() {
    if (before_ > 0) Set(before_);
  }
#else
  ShortSleeps() = default;
#endif
  ShortSleeps(const ShortSleeps&) = delete;
  ShortSleeps& operator=(const ShortSleeps&) = delete;

#ifdef __linux__
 private:
  static void Set(long nanoseconds) {  // NOLINT(google-runtime-int): prctl takes a long
    prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(nanoseconds),  // NOLINT
          0UL, 0UL, 0UL);
  }

  const int before_;
#endif
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_BASE_SHORT_SLEEPS_H_
