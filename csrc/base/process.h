/// The clock of all times that the core reports, and what concerns a thread or the process as a
/// whole.

#pragma once

#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <chrono>
#include <thread>

namespace hvd_sparse {

/// The time of std::chrono::steady_clock in seconds. On Linux it is CLOCK_MONOTONIC, like Python's
/// time.perf_counter.
inline double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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

/// Threads started while an instance lives receive no signals, which are left to the user's
/// threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

/// Ends this process with status 1 after `seconds` unless it has ended by then: for processes whose
/// shutdown may hang.
inline void ExitWithin(double seconds) {
  const SignalsBlocked blocked;
  std::thread([seconds] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    ::_exit(1);
  }).detach();
}

}  // namespace hvd_sparse
