/// Communicators: messages between the ranks of one exchange.
///
/// An exchange owns its communicator, so two exchanges never see each other's messages. Between a
/// pair of ranks messages arrive in the order in which they were sent.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "csrc/base/error.h"
#include "csrc/base/types.h"
#include "csrc/comm/patience.h"

namespace hvd_sparse {

struct Outgoing {
  int peer;
  const void* data;
  std::int64_t bytes;
};

struct Incoming {
  int peer;
  void* data;
  std::int64_t capacity;   ///< bytes at `data`
  std::int64_t bytes = 0;  ///< bytes received; set by Transfer
};

/// Throws Disagreement because peer `peer` sent this rank, `rank`, more than the `capacity` bytes
/// that there is room for; `bytes` is the length of the message, if known.
[[noreturn]] inline void RefuseLength(int peer, int rank, std::optional<std::int64_t> bytes,
                                      std::int64_t capacity, const std::string& what) {
  Throw(ErrorKind::kDisagreement, "the ranks disagree: rank ", peer, " sent ",
        bytes ? std::to_string(*bytes) : "more", " bytes to rank ", rank,
        ", which expected at most ", capacity, ", in ", what);
}

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int Rank() const = 0;
  virtual int Size() const = 0;

  /// Returns the number that a rank of this communicator has in the exchange, for errors.
  virtual int RankInExchange(int rank) const { return rank; }

  /// Returns how long this rank waits for peers that are alive.
  virtual WaitLimits Limits() const { return WaitLimits::FromEnvironment(); }

  /// Sends and receives all messages at once; returns when all have been sent and received.
  ///
  /// Throws PeerLost, Timeout or the error that ended the exchange if a message can no longer be
  /// sent or received, and Disagreement if one is longer than its capacity. `what` names the
  /// operation that this rank waits in ("bucket 3 (fc.weight), gtopk, round 1") and is part of
  /// every warning and error.
  virtual void Transfer(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) = 0;

  /// Begins a transfer that Wait ends, so that messages of the next transfers follow without a
  /// pause. Throws like Transfer; all memory, that of `in` included, must stay until the end. All
  /// ranks begin and end their transfers in one order. A communicator that cannot have several in
  /// flight runs each as a whole here.
  virtual void Begin(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) {
    Transfer(out, in, what);
  }

  /// Waits until the transfer that was begun first, of those in flight, has ended.
  virtual void Wait() {}

  /// Returns why Transfer cannot take GPU memory; empty if it can.
  virtual std::string DeviceMemoryProblem() const {
    return "the ranks are not connected by MPI, and nothing else takes memory of GPUs";
  }

  /// Ends the exchange on every rank: all waits, on this rank and the others, throw an error of
  /// kind KindOnPeers(kind) with `reason`. Waits in steps that this rank has committed (see
  /// Committed) go on, since it has sent all messages of them. Has no effect if it throws for want
  /// of memory.
  virtual void Fail(ErrorKind kind, const std::string& reason) = 0;

  /// Throws if the exchange has been ended, by this rank or another.
  virtual void Check() = 0;

  /// Like Check, but for a rank that no longer waits for any peer: others may have left.
  virtual void CheckAtEnd() { Check(); }

  /// Notes that this rank has committed `steps` steps: it needs no peer for them any more, though
  /// others may still wait for messages that it has sent.
  virtual void Committed(std::int64_t /*steps*/) {}

  /// Notes that the user has been told of the exchange's failure.
  virtual void Acknowledge() {}
};

}  // namespace hvd_sparse
