/// Messages in flight: sent by this rank but not yet received. Later messages to other peers wait
/// for them.
///
/// A transfer ends for its sender once the kernel has taken the bytes, long before they are on the
/// link. A rank that goes on to its next round then has messages of two rounds in flight, which
/// share its link evenly: the older one, for which a peer waits, is delayed by one that nobody can
/// use yet. Ranks that are slightly out of step get further out of step, and links idle while their
/// ranks wait for each other: rounds have been seen to take several times as long as their bytes
/// need.

#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "csrc/comm/tcp_stream.h"

namespace hvd_sparse {

class InFlightMessages {
 public:
  /// Notes that the stream, which must outlive this object, has sent a message.
  void Add(const TcpStream* stream);

  /// True if messages to any peer but `own` (-1: none) are in flight.
  ///
  /// Messages that make no progress do not count, since they take no share of the link; so nobody
  /// waits for a peer that does not read, or is gone.
  bool Moving(int own);

 private:
  using Clock = std::chrono::steady_clock;

  std::vector<const TcpStream*> streams_;
  std::int64_t left_ = -1;  // bytes in flight at the last call; -1: a message was added since
  Clock::time_point progress_;
};

}  // namespace hvd_sparse
