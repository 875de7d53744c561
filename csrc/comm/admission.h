/// Admits the expected ranks at a port, and nobody else.
///
/// Anybody may connect. A connection that has not yet proved that it is an expected rank
/// (handshake.h) is a guest. The number of guests and their time are limited, so strangers cannot
/// use up the descriptors of this process. The port closes once the last expected rank is admitted.

#pragma once

#include <poll.h>

#include <cstddef>
#include <list>
#include <set>
#include <string>
#include <vector>

#include "csrc/comm/handshake.h"
#include "csrc/comm/socket.h"

namespace hvd_sparse {

/// The admission of ranks at one port. Never waits; used by one thread at a time.
class Admission {
 public:
  static constexpr std::size_t kMostGuests = 64;

  /// Admits each rank in [first, end) once; rank `rank` listens at `listener`, whose key is `key`.
  Admission(Listener listener, std::string key, int rank, int first, int end);

  struct Admitted {
    int rank;
    Descriptor socket;
  };

  /// Advances the guests' handshakes and, if `accepts`, accepts more guests; returns the ranks
  /// admitted since the last call. Throws Unavailable if this process has no descriptor left and no
  /// guest to drop.
  std::vector<Admitted> Advance(bool accepts);

  /// Adds the events after which Advance has work to do. A guest may also run out of time.
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
