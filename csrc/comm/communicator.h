/// How blocks travel between the ranks of one exchange.
///
/// An exchange owns its communicator, so two exchanges never see each other's messages. Between a
/// pair of ranks messages arrive in the order in which they were sent.

#ifndef HVD_SPARSE_COMM_COMMUNICATOR_H_
#define HVD_SPARSE_COMM_COMMUNICATOR_H_

#include <cstdint>
#include <optional>
#include <string>

#include "csrc/base/error.h"
#include "csrc/base/types.h"

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

/// Throws Disagreement: what rank `peer` has sent to `rank`, this one, is longer than `capacity`
/// bytes, for which there is room. `bytes`: how long, where that is known.
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

  /// What a rank of this communicator is called in the exchange: for errors.
  virtual int RankInExchange(int rank) const { return rank; }

  /// Sends and receives all at once; returns when everything has been sent and received.
  ///
  /// Throws PeerLost, Timeout or what the exchange was ended with when that can no longer happen,
  /// and Disagreement where a message is longer than the room given for it.
  /// `what` says for whose sake this rank waits ("bucket 3 (fc.weight), gtopk, round 1") and is
  /// part of every warning and error.
  virtual void Transfer(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) = 0;

  /// Why Transfer cannot be given memory of a GPU; empty if it can.
  virtual std::string DeviceMemoryProblem() const {
    return "the ranks are not connected by MPI, and nothing else takes memory of GPUs";
  }

  /// Ends the exchange on every rank: all waits, there and here, throw `reason`, as an error of the
  /// kind KindOnOthers(kind); but for those in steps that this rank is through with (Committed),
  /// for which it has sent all. Where it throws, for want of memory, nothing has happened.
  virtual void Fail(ErrorKind kind, const std::string& reason) = 0;

  /// Throws if the exchange has been ended, by this rank or another.
  virtual void Check() = 0;

  /// Like Check, for a rank that waits for nobody any more: others may have left.
  virtual void CheckAtEnd() { Check(); }

  /// This rank is through with so many steps: it needs nobody for them any more, while others may
  /// still wait for what it has sent.
  virtual void Committed(std::int64_t /*steps*/) {}

  /// The user has been told that the exchange failed.
  virtual void Acknowledge() {}
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_COMMUNICATOR_H_
