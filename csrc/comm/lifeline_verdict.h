/// A lifeline's verdict: the events that it has learned of, which failure to report, and when.

#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/comm/lifeline.h"
#include "csrc/comm/socket.h"

namespace hvd_sparse {

/// Seconds that the last messages of a leaving rank may be in flight over a slow link.
inline constexpr double kLastMessagesSeconds = 60;

/// The events that a lifeline has learned of, and the failure that follows from them. Thread-safe.
class LifelineVerdict {
 public:
  LifelineVerdict(int size, std::string name) : size_(size), name_(std::move(name)) {}

  /// Notes that rank `rank` is lost; `how` is e.g. "has died (host h, pid n)".
  void Lost(int rank, const std::string& how);

  /// Notes that rank `rank` has left after `steps` steps.
  void Left(int rank, std::int64_t steps);

  /// See Lifeline::Committed. Returns Any(). This store and the noting of an event have one order
  /// for all threads, so the later one sees the other.
  bool Committed(std::int64_t steps) {
    steps_ = steps;
    return Any();
  }

  /// The number of steps that this rank has committed.
  std::int64_t steps() const { return steps_; }

  /// True if a rank was lost, has left or has ended the exchange.
  bool Any() const { return any_; }

  /// Notes that rank `rank` has ended the exchange after `steps` steps. Returns false if an earlier
  /// failure, after as many steps or fewer, takes precedence.
  bool Failed(int rank, ErrorKind kind, const std::string& reason, std::int64_t steps);

  /// True if, as far as is known, all ranks can still commit `steps` steps: none is lost or has
  /// ended the exchange after fewer.
  bool CanCommit(std::int64_t steps) const;

  /// See Lifeline::CurrentFailure. Cheap while there is none.
  ///
  /// A rank that has ended the exchange is reported without grace in its step and in later ones,
  /// since they cannot complete. A death known before is its cause, and is reported instead. A rank
  /// that left is reported only if nothing else happened.
  std::optional<Lifeline::Failure> Current(double grace_seconds) const;

  /// See Lifeline::FailureAtEnd.
  std::optional<Lifeline::Failure> AtEnd() const;

  /// See Lifeline::Acknowledge. Has no effect while there is nothing to acknowledge.
  void Acknowledge();

  struct Event {
    Clock::time_point time;
    Lifeline::Failure failure;
  };

  /// Returns the death of a rank, unless it was acknowledged here, or a death was acknowledged on
  /// any lifeline of this process since this one was created.
  std::optional<Event> UnacknowledgedDeath() const;

 private:
  // The caller of these holds the mutex.
  bool EndsStep() const;
  std::optional<Lifeline::Failure> LostOrFailed() const;
  Event Note(ErrorKind kind, std::string message);

  const int size_;
  const std::string name_;
  const Clock::time_point born_ = Clock::now();
  std::atomic<std::int64_t> steps_{0};
  std::atomic<bool> any_{false};  // true once one of the events below has happened

  mutable std::mutex mutex_;
  std::optional<Event> lost_, failed_;  // the first death, and the failure after the fewest steps
  std::int64_t failed_steps_ = 0;
  struct Leaving {
    Event event;
    std::int64_t steps;
  };
  std::vector<Leaving> left_;  // every rank that has left
  bool acknowledged_ = false;
};

}  // namespace hvd_sparse
