/// What a lifeline has learned, and what follows from it: which failure to report, and when.

#ifndef HVD_SPARSE_COMM_LIFELINE_VERDICT_H_
#define HVD_SPARSE_COMM_LIFELINE_VERDICT_H_

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

/// Seconds that the last messages of a rank that leaves may be under way, over a slow link.
inline constexpr double kLastMessagesSeconds = 60;

/// Thread-safe.
class LifelineVerdict {
 public:
  LifelineVerdict(int size, std::string name) : size_(size), name_(std::move(name)) {}

  /// Rank `rank` is lost; `how` is e.g. "has died (host h, pid n)".
  void Lost(int rank, const std::string& how);

  /// Rank `rank` has left after so many steps.
  void Left(int rank, std::int64_t steps);

  /// See Lifeline::Committed. Returns Any(): of this and the noting of an event, which are in one
  /// order for all threads, the later one sees the other.
  bool Committed(std::int64_t steps) {
    steps_ = steps;
    return Any();
  }

  /// This rank's steps.
  std::int64_t steps() const { return steps_; }

  /// Whether a rank was lost, has left or has ended the exchange.
  bool Any() const { return any_; }

  /// Rank `rank` has ended the exchange after so many steps. False if that is no news: another had
  /// done so before, after no more steps.
  bool Failed(int rank, ErrorKind kind, const std::string& reason, std::int64_t steps);

  /// Whether ranks may still come through with so many steps, as far as is known: nobody is lost,
  /// or has ended the exchange before.
  bool CanCome(std::int64_t steps) const;

  /// See Lifeline::CurrentFailure. Cheap while there is none.
  ///
  /// Once a rank has ended the exchange nobody waits for anything in the step that it was in, or
  /// later: no grace. A death known before is then its cause and reported instead. A rank that left
  /// is reported for lack of anything else.
  std::optional<Lifeline::Failure> Current(double grace_seconds) const;

  /// See Lifeline::FailureAtEnd.
  std::optional<Lifeline::Failure> AtEnd() const;

  /// See Lifeline::Acknowledge. Without effect while there is nothing to acknowledge.
  void Acknowledge();

  struct Event {
    Clock::time_point time;
    Lifeline::Failure failure;
  };

  /// The death of a rank that nobody has acknowledged: neither here, nor, since this lifeline is
  /// there, that of a rank of another exchange of this process.
  std::optional<Event> UnacknowledgedDeath() const;

 private:
  // Of these, the caller holds the mutex.
  bool EndsStep() const;
  std::optional<Lifeline::Failure> LostOrFailed() const;
  Event Note(ErrorKind kind, std::string message);

  const int size_;
  const std::string name_;
  const Clock::time_point born_ = Clock::now();
  std::atomic<std::int64_t> steps_{0};
  std::atomic<bool> any_{false};  // one of the events below has happened

  mutable std::mutex mutex_;
  std::optional<Event> lost_, failed_;  // the first, and that after the fewest steps
  std::int64_t failed_steps_ = 0;
  struct Leaving {
    Event event;
    std::int64_t steps;
  };
  std::vector<Leaving> left_;  // every rank that has
  bool acknowledged_ = false;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_LIFELINE_VERDICT_H_
