/// How a rank waits: a short spin, then sleep, with a warning, a deadline and an eye on the peers.
///
/// A thread inside a blocking MPI call spins at full speed and takes a core from the model's
/// computation; one that tests and sleeps costs next to nothing.

#ifndef HVD_SPARSE_COMM_PATIENCE_H_
#define HVD_SPARSE_COMM_PATIENCE_H_

#include <chrono>
#include <functional>
#include <string>

namespace hvd_sparse {

/// Seconds after which whoever is woken by what he waits for looks whether it can still come.
constexpr double kWaitSlice = 1.0;

/// Seconds to wait for a peer that is alive.
struct WaitLimits {
  double warn_seconds = 60;    ///< then say so, and go on waiting; 0: never
  double fail_seconds = 1800;  ///< then give up; 0: never

  /// HVD_SPARSE_STALL_SECONDS and HVD_SPARSE_TIMEOUT, where they are set.
  static WaitLimits FromEnvironment();

  /// That `what` was waited for until the deadline, as errors of all waits say it.
  std::string GaveUp(const std::string& what) const;
};

class Patience {
 public:
  /// `whom` names the peers that are still waited for; `what` says for whose sake.
  Patience(const WaitLimits& limits, int rank, const std::string& what,
           std::function<std::string()> whom);

  /// Call after every fruitless look: returns after a while, longer each time.
  ///
  /// Throws Timeout once the deadline has passed.
  void Pause();

  using Sleep = std::function<void(std::chrono::microseconds)>;

  /// The same for those whom an arrival wakes: `sleep` is given the longest time to sleep, and
  /// returns as soon as there is something to look at. Not longer than `longest`: for those who
  /// also wait for something that wakes nobody.
  void PauseUntilWoken(const Sleep& sleep, std::chrono::microseconds longest);

  /// Call when something has arrived, but not all: the rest is likely to come soon.
  void Progress() { progress_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;

  /// Yields instead of sleeping, and says so, in the first looks: `most` of them at most.
  bool Spins(int most);

  /// Warns, or throws Timeout, when it is time to; returns the seconds waited so far.
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

#endif  // HVD_SPARSE_COMM_PATIENCE_H_
