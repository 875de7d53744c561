/// Tells the ranks of an exchange what has become of each other.
///
/// Messages alone cannot tell a slow peer from a dead one. So every rank keeps one TCP connection
/// to rank 0 of its exchange: a process that dies, by whatever signal, closes its connection, and
/// rank 0 tells the others at once. The same connections carry a rank's decision to end the
/// exchange. A stopped or slow process keeps its connection and is waited for. Keep-alive probes
/// find a host that is gone, within about 30 s. Costs one sleeping thread per rank and no traffic.
///
/// Whoever leaves may take away from the others what they still need: where a rank shuts Horovod
/// down, MPI ends on all. So it waits until they are through with its last step.
///
/// After rank 0 has left nobody relays any more; that rank 0 left is then all that is known.
/// Children that a rank forks hold no connection open; in them a lifeline does nothing.

#ifndef HVD_SPARSE_COMM_LIFELINE_H_
#define HVD_SPARSE_COMM_LIFELINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "csrc/base/error.h"

namespace hvd_sparse {

class Lifeline {
 public:
  /// What ended an exchange.
  struct Failure {
    ErrorKind kind;       ///< kPeerLost (died) or kPeerLeft, or what a rank called Fail with
    std::string message;  ///< names the rank
  };

  /// No connection is made yet; a lifeline of size 1 never needs one. `name` (the exchange) and
  /// rank numbers appear in messages only.
  Lifeline(int rank, int size, const std::string& name);

  /// Says goodbye and closes; the peers learn that this rank left, and after how many steps, which
  /// fails only those that still wait for it. Waits until each of them is through with as many
  /// steps or leaves, too: a minute at most, or half a second where this rank took none; and not at
  /// all once a rank has died, or has ended the exchange in one of those steps. Warns of a death
  /// that has not been acknowledged.
  ~Lifeline();

  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  /// On rank 0: opens the listening socket; returns the address to hand to the other ranks, as
  /// ListenAddress::Text has it.
  std::string Listen();

  /// On rank 0 (address empty): waits until all others have connected. On the others: connects to
  /// rank 0 at `address`, as Listen() returned it there. Then starts the watching thread.
  ///
  /// Throws PeerLost naming the missing ranks, or the addresses tried, after `seconds`; on all
  /// ranks if one of them is missing. A rank that dies once it has connected, or rank 0 whenever it
  /// dies, is named within seconds.
  void Connect(const std::string& address, double seconds);

  /// Ends the exchange on every rank with `reason`, as a failure of the kind KindOnOthers(kind). A
  /// rank in a step that this one is through with comes through with it first, so that all of them
  /// apply it or none: all that it waits for has been sent. The first reason stays, unless a rank
  /// gives one in an earlier step.
  void Fail(ErrorKind kind, const std::string& reason);

  /// This rank is through with so many steps. Tells the others only where one of them has left or
  /// failed.
  void Committed(std::int64_t steps);

  /// Why the exchange has ended; nothing while it goes on. A rank that left or died counts at once
  /// for those who call with `grace_seconds` = 0, else only that much later: its last messages may
  /// still be under way. One that left or failed after the step in which this rank is has sent all
  /// that it will wait for, and counts a minute later. Cheap enough for a polling loop.
  std::optional<Failure> CurrentFailure(double grace_seconds = 2.0) const;

  /// The same for a rank that waits for nobody: without grace, and others may have left, or failed
  /// after the step in which this rank is.
  std::optional<Failure> FailureAtEnd() const;

  /// The user has been told of a failure: no need to end the process. Without effect before there
  /// is one. Unless somebody calls this within HVD_SPARSE_ABORT_SECONDS (45; 0: never) after a rank
  /// died, the lifeline prints the failure and ends the process with status 1, since it may hang in
  /// a collective that is not ours. Of a death, this holds for all lifelines that this process has
  /// now: whoever was told of it by one exchange may save before asking the others.
  void Acknowledge();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_LIFELINE_H_
