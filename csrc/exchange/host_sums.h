/// The sums of a step that the host forms: how many have yet to arrive, and the wait for them.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>

#include "csrc/comm/patience.h"

namespace hvd_sparse {

class HostSums {
 public:
  /// `check` is called repeatedly by the thread that waits; an error that it throws ends the wait.
  /// The deadline is that of all waits (WaitLimits::FromEnvironment).
  explicit HostSums(std::function<void()> check);

  /// Begins a step. `dense_ops`: number of ops whose sums are reported one by one. `others`: true
  /// if one more report covers all other sums.
  void Begin(std::size_t dense_ops, bool others);

  /// Notes that one of these ops was handed over. Returns true if it was the last one of the
  /// step.
  bool HandedOver();

  /// Notes that sums have arrived. Callable from any thread.
  void Arrived();

  /// Waits until all sums have arrived, or until Interrupt or the next Begin. After the deadline,
  /// counted from the last arrival, warns and throws Timeout: an op that waits for a missing sum
  /// elsewhere may never report the error.
  void Await();

  /// The number of sums that have yet to arrive.
  std::size_t missing() const;

  /// Ends the wait for this step's sums.
  void Interrupt();

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
};

}  // namespace hvd_sparse
