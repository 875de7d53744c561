/// A lifeline tells the ranks of an exchange which of them have died, left or failed.
///
/// Messages alone cannot tell a slow peer from a dead one. So every rank keeps one TCP connection
/// to rank 0 of its exchange: a process that dies, by whatever signal, closes its connection, and
/// rank 0 tells the others at once. The same connections carry a rank's decision to end the
/// exchange. A stopped or slow process keeps its connection, so its peers keep waiting. Keep-alive
/// probes detect a lost host within about 30 s. The cost is one sleeping thread per rank and no
/// traffic.
///
/// A rank that leaves may break a step of others: when one rank shuts Horovod down, MPI ends on all
/// ranks. So it waits until they have committed its last step.
///
/// Once rank 0 has left nobody relays records, and the others learn only that rank 0 left. Forked
/// children of a rank hold no connection open; in them a lifeline does nothing.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "csrc/base/error.h"

namespace hvd_sparse {

class Lifeline {
 public:
  /// The failure that ended an exchange.
  struct Failure {
    ErrorKind kind;       ///< kPeerLost (died), kPeerLeft, or KindOnPeers of the kind given to Fail
    std::string message;  ///< names the rank
  };

  /// Makes no connection yet; a lifeline of size 1 never needs one. `name` is the exchange's; it
  /// and rank numbers appear in messages only.
  Lifeline(int rank, int size, const std::string& name);

  /// Tells the peers that this rank leaves, and after how many steps, which fails only those that
  /// still wait for it; then closes. Waits until each peer has committed as many steps or leaves,
  /// too, but for a minute at most (half a second if this rank committed none), and no longer once
  /// a rank has died or has ended the exchange in one of those steps. Warns of a death that has not
  /// been acknowledged.
  ~Lifeline();

  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  /// On rank 0: opens the listening socket and returns its address for the other ranks, in the
  /// format of ListenAddress::Text.
  std::string Listen();

  /// On rank 0 (address empty): waits until all others have connected. On the others: connects to
  /// rank 0 at `address`, which Listen() returned there. Then starts the watching thread.
  ///
  /// Throws PeerLost after `seconds`, naming the missing ranks or the addresses tried; if one rank
  /// is missing, all ranks throw. If a connected rank or rank 0 dies, throws within seconds and
  /// names it.
  void Connect(const std::string& address, double seconds);

  /// The number of connections that each two ranks make if they exchange messages over TCP, once
  /// Connect has returned: HVD_SPARSE_CONNECTIONS of rank 0, if it is set, else what suits the
  /// network's round trips.
  int connections() const;

  /// Ends the exchange on every rank with `reason`, as a failure of kind KindOnPeers(kind). A rank
  /// in a step that this one has committed still completes that step, since all messages of it have
  /// been sent; so either all ranks apply a step or none does. The first reason stays, unless a
  /// rank fails in an earlier step.
  void Fail(ErrorKind kind, const std::string& reason);

  /// Notes that this rank has committed `steps` steps. Sends that to the others only if a rank has
  /// left or failed.
  void Committed(std::int64_t steps);

  /// Returns the failure that ended the exchange, if any. A rank that left or died is reported
  /// after `grace_seconds`, since its last messages may still be in flight; 0 reports it at once. A
  /// rank that left or failed after this rank's current step has sent all messages that this rank
  /// will wait for; unless `grace_seconds` is 0, it is reported after a minute. Cheap enough for a
  /// polling loop.
  std::optional<Failure> CurrentFailure(double grace_seconds = 2.0) const;

  /// Like CurrentFailure, but for a rank that waits for no peer: without grace, and other ranks may
  /// have left, or failed after this rank's current step.
  std::optional<Failure> FailureAtEnd() const;

  /// Notes that the user has been told of the failure, so that the process need not be ended; has
  /// no effect before there is one. If nobody calls this within HVD_SPARSE_ABORT_SECONDS (45; 0:
  /// never) after a rank died, the lifeline prints the failure and ends the process with status 1,
  /// since it may hang in a collective of Horovod's. For a death, the call holds for all lifelines
  /// that this process has now: a user told of it by one exchange may save before asking the
  /// others.
  void Acknowledge();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hvd_sparse
