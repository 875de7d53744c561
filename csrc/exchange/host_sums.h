/// The sums of a step that the host forms: whether all have arrived and are finite, and the
/// wait for them.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/comm/patience.h"

namespace hvd_sparse {

class HostSums {
 public:
  /// `check` is called repeatedly by the thread that waits; an error that it throws ends the wait.
  /// The deadline is that of all waits (WaitLimits::FromEnvironment).
  explicit HostSums(std::function<void()> check);

  /// Begins a step. `dense_ops`: number of ops whose sums are reported one by one. `others`: true
  /// if one more report covers all other sums. `check_finite`: true if sums are checked for NaN and
  /// Inf, on all ranks alike; else they are not read.
  void Begin(std::size_t dense_ops, bool others, bool check_finite);

  /// Notes that one of these ops was handed over. Returns true if it was the last one of the
  /// step.
  bool HandedOver();

  /// Notes sums that have arrived, and checks them if `check_finite`. Callable from any thread.
  void Add(const std::vector<GradView>& sums);

  /// Like Add, for sums that the caller has checked.
  void AddChecked(bool finite);

  /// Waits until all sums have arrived, or until Interrupt or the next Begin. After the deadline,
  /// counted from the last arrival, warns and throws Timeout: an op that waits for a missing sum
  /// elsewhere may never report the error.
  void Await();

  /// The number of sums that have yet to arrive.
  std::size_t missing() const;

  /// Ends the wait for this step's sums.
  void Interrupt();

  /// True if no sum that was checked holds NaN or Inf. These are sums over all ranks, so all ranks
  /// agree.
  bool finite() const;

  /// Returns why no rank may apply the step; empty if all sums are finite.
  std::string Problem() const;

 private:
  /// Waits at most `seconds`; returns true if the wait for `step` is over.
  bool Wait(std::int64_t step, double seconds);

  const std::function<void()> check_;
  const WaitLimits limits_ = WaitLimits::FromEnvironment();

  mutable std::mutex mutex_;
  std::condition_variable came_;
  std::int64_t step_ = 0;         // counts calls of Begin
  std::size_t expected_ops_ = 0;  // ops that have yet to be handed over
  std::size_t missing_ = 0;       // sums that have yet to arrive
  bool interrupted_ = false;
  bool check_finite_ = false;
  bool finite_ = true;
};

}  // namespace hvd_sparse
