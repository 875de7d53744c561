/// How the connections of a TCP communicator come about: each when its two ranks first need it.
///
/// Both know when they do. The lower rank connects, the higher one accepts, so no pair connects
/// twice. A rank keeps as many connections as it has partners: log2 P where distances double, and
/// never P of them for a collective that talks to few.
///
/// A host has several addresses, and one may lead to somebody else, or nowhere. The lower rank
/// tries them one after the other without giving up those before: the higher one may be computing,
/// and answers when it comes to wait for messages itself. Both prove that they are ranks of this
/// exchange (handshake.h). Where no address can be reached now, the link may come back: they are
/// tried again, for a minute. So they are where the higher rank closed a connection that had not
/// proved itself, as it does in a crowd of strangers (admission.h).

#ifndef HVD_SPARSE_COMM_TCP_RENDEZVOUS_H_
#define HVD_SPARSE_COMM_TCP_RENDEZVOUS_H_

#include <poll.h>

#include <cstddef>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "csrc/comm/admission.h"
#include "csrc/comm/descriptor.h"
#include "csrc/comm/handshake.h"
#include "csrc/comm/listen_address.h"
#include "csrc/comm/socket.h"

namespace hvd_sparse {

/// Never waits. Used by one thread at a time.
class TcpRendezvous {
 public:
  /// `addresses` are those of all ranks, `listener` is where this one can be found. `persists`:
  /// somebody else tells whether a rank that cannot be reached is gone.
  TcpRendezvous(int rank, std::vector<ListenAddress> addresses, Listener listener, bool persists);

  /// A connection with this other rank is needed; once for each.
  void Want(int peer);

  /// True while Advance has work: a connection is needed that is not made yet, or a guest has yet
  /// to prove itself or be dropped.
  bool busy() const { return !calls_.empty() || !awaited_.empty() || admission_.has_guests(); }

  /// Why there is no connection with this peer yet, if it could not be reached; else empty.
  std::string Obstacle(int peer) const;

  struct Arrival {
    int peer;
    Descriptor socket;
    std::string problem;  ///< why there is no socket, and will be none
  };

  /// Goes on as far as possible; returns what has come about since the last call, each once. Ranks
  /// that connect before they are wanted come, too.
  std::vector<Arrival> Advance();

  /// What to poll for, to know when Advance can go on.
  void AddTo(std::vector<pollfd>* polled) const;

 private:
  /// All attempts to reach a rank.
  struct Call {
    std::vector<std::string> ips;
    std::list<CallerHandshake> attempts;
    std::size_t tried = 0;        // addresses
    Clock::time_point next_time;  // to try another one, though none has failed; or all again
    std::string problem;          // the last one
    bool may_pass = false;        // one of the problems of these addresses
    std::optional<Clock::time_point> give_up;  // set once all have been tried
  };

  std::string CannotConnect(int peer, const Call& call) const;
  bool GoOn(int peer, Call* call, Arrival* arrival);
  void TryNextAddress(int peer, Call* call);

  const int rank_;
  const std::vector<ListenAddress> addresses_;
  const bool persists_;
  std::map<int, Call> calls_;  // to higher ranks
  std::set<int> awaited_;      // lower ranks
  std::set<int> arrived_;      // lower ranks
  Admission admission_;        // of lower ranks
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_TCP_RENDEZVOUS_H_
