/// Admits the ranks that are expected at a port, and nobody else.
///
/// Anybody may connect. Until a connection has proved that it is an expected rank (handshake.h) it
/// is a guest. Guests are few and stay for seconds, so strangers cannot use up the descriptors of
/// this process; the port closes with the last expected rank.

#ifndef HVD_SPARSE_COMM_ADMISSION_H_
#define HVD_SPARSE_COMM_ADMISSION_H_

#include <poll.h>

#include <cstddef>
#include <list>
#include <set>
#include <string>
#include <vector>

#include "csrc/comm/handshake.h"
#include "csrc/comm/socket.h"

namespace hvd_sparse {

/// Never waits. Used by one thread at a time.
class Admission {
 public:
  static constexpr std::size_t kMostGuests = 64;

  /// Rank `rank` listens at `listener`, whose key is `key`, for each rank in [first, end) once.
  Admission(Listener listener, std::string key, int rank, int first, int end);

  struct Admitted {
    int rank;
    Descriptor socket;
  };

  /// Goes on with the guests, accepts more if `accepts`; returns the ranks admitted since the last
  /// call. Throws Unavailable if this process has no descriptor left, and none of them is a
  /// guest's.
  std::vector<Admitted> Advance(bool accepts);

  /// The events to poll for, to know when Advance can go on. A guest may also run out of time.
  void AddTo(bool accepts, std::vector<pollfd>* polled) const;

  bool has_guests() const { return !guests_.empty(); }

 private:
  struct Guest {
    ListenerHandshake handshake;
    Clock::time_point since;
  };

  bool IsExpected(int rank) const;
  bool HasRoom() const;
  void AcceptGuests();

  Listener listener_;
  const std::string key_;
  const int rank_, first_, end_;
  std::set<int> admitted_;
  std::list<Guest> guests_;  // the oldest first
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_ADMISSION_H_
