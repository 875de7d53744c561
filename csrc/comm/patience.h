/// A rank's waiting policy: spin briefly, then sleep, with a warning and a deadline.
///
/// A thread inside a blocking MPI call spins at full speed and takes a core from the model's
/// computation; a thread that alternates between tests and sleeps costs next to nothing.

#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace hvd_sparse {

/// Seconds between checks, by a waiter that its event wakes, that the event can still happen.
constexpr double kWaitSlice = 1.0;

/// Limits on the time to wait for a peer that is alive, in seconds.
struct WaitLimits {
  double warn_seconds = 60;                           ///< then warn, and go on waiting; 0: never
  double fail_seconds = 1800;                         ///< then give up; 0: never
  const char* source = "HVD_SPARSE_TIMEOUT_SECONDS";  ///< of fail_seconds, in errors

  /// Returns limits from HVD_SPARSE_STALL_SECONDS and HVD_SPARSE_TIMEOUT_SECONDS, or the defaults
  /// if unset. `group_timeout`: the default of fail_seconds, if the ranks' group has one.
  static WaitLimits FromEnvironment(std::optional<double> group_timeout = std::nullopt);

  /// Returns the text, for the errors of all waits, that `what` was waited for until the deadline.
  std::string TimeoutMessage(const std::string& what) const;
};

class Patience {
 public:
  /// `whom` returns the peers that this rank still waits for; `what` names the operation.
  Patience(const WaitLimits& limits, int rank, const std::string& what,
           std::function<std::string()> whom);

  /// Sleeps for a while, longer each time. Call it after every look that found nothing.
  ///
  /// Throws Timeout once the deadline has passed.
  void Pause();

  using Sleep = std::function<void(std::chrono::microseconds)>;

  /// Like Pause, but for a waiter that an arrival wakes: `sleep` takes the longest time to sleep,
  /// and returns as soon as there is an arrival. That time is at most `longest`, which a waiter
  /// sets that also waits for events which do not wake it.
  void PauseUntilWoken(const Sleep& sleep, std::chrono::microseconds longest);

  /// Notes that part of the awaited data has arrived, so that the rest is likely to arrive soon.
  void Progress() { progress_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;

  /// In the first `most` looks, yields instead of sleeping and returns true.
  bool Spins(int most);

  /// Warns or throws Timeout if the limit has passed; returns the seconds waited so far.
  double CheckLimits();

  WaitLimits limits_;
  int rank_;
  const std::string& what_;
  std::function<std::string()> whom_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point progress_ = start_;
  int looks_ = 0;
  bool warned_ = false;
};

}  // namespace hvd_sparse
