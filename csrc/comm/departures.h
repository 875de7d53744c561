/// What a rank has sent and what has yet to arrive: later messages to others wait for it.
///
/// A transfer ends for its sender once the kernel has taken the bytes, long before they are on the
/// link. A rank that then goes on has messages of two rounds under way, which share its link
/// evenly: the older one, for which somebody waits, arrives late, for the sake of one that nobody
/// can use yet. Ranks that were out of step by a little so get further out of step, and links idle
/// while their ranks wait for each other: rounds have been seen to take several times as long as
/// their bytes.

#ifndef HVD_SPARSE_COMM_DEPARTURES_H_
#define HVD_SPARSE_COMM_DEPARTURES_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "csrc/comm/tcp_stream.h"

namespace hvd_sparse {

class Departures {
 public:
  /// The stream, which outlives this, has sent a message.
  void Add(const TcpStream* stream);

  /// Whether anything but messages of `own` (which may be null) is on its way to its receiver.
  ///
  /// What makes no progress is not: it takes nothing of the link. So nobody waits for a peer that
  /// does not read, or has gone.
  bool Moving(const TcpStream* own);

 private:
  using Clock = std::chrono::steady_clock;

  std::vector<const TcpStream*> streams_;
  std::int64_t left_ = -1;  // bytes, when it was last looked
  Clock::time_point progress_;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_DEPARTURES_H_
