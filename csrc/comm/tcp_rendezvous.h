/// How the connections of a TCP communicator come about: each when its two ranks first need it.
///
/// Both know when they do. The lower rank connects, the higher one accepts, so no pair connects
/// twice. A rank keeps as many connections as it has partners: log2 P where distances double, and
/// never P of them for a collective that talks to few.
///
/// A host has several addresses, and one may lead to somebody else, or nowhere. The lower rank
/// tries them one after the other without giving up those before: the higher one may be computing,
/// and answers when it comes to wait for messages itself. It shows the token of the higher rank and
/// is shown its own; whoever shows another one, a port scanner say, is dropped on either side.
/// Where no address can be reached now, the link may come back: they are tried again, for a minute.

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

#include "csrc/comm/descriptor.h"
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

  /// Whether a connection is needed that has not come about.
  bool waiting() const { return !calls_.empty() || !awaited_.empty(); }

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
  /// What is wrong with an attempt; nothing while the text is empty.
  struct Problem {
    std::string text;
    bool of_link = false;  // which may come back
  };
  /// An attempt to reach a rank at one of its addresses.
  struct Attempt {
    Descriptor socket;
    bool connected = false;  // and this rank's hello is on its way
    std::string answer;      // as much as has come
  };
  /// All attempts to reach a rank.
  struct Call {
    std::list<Attempt> attempts;
    std::size_t tried = 0;        // addresses
    Clock::time_point next_time;  // to try another one, though none has failed; or all again
    std::string problem;          // the last one
    bool link_is_down = false;    // one of the problems of these addresses
    std::optional<Clock::time_point> give_up;  // set once all have been tried
  };
  /// Somebody who has connected, but not said who it is.
  struct Guest {
    Descriptor socket;
    Clock::time_point patience;
    std::string hello;  // as much as has come
  };

  std::string CannotConnect(int peer, const Call& call) const;
  bool GoOn(int peer, Call* call, Arrival* arrival);
  Problem GoOn(int peer, Attempt* attempt);
  static void Note(const Problem& problem, Call* call);
  void TryNextAddress(int peer, Call* call);
  void AcceptGuests(std::vector<Arrival>* arrivals);
  bool Welcome(Guest* guest, std::vector<Arrival>* arrivals);

  const int rank_;
  const std::vector<ListenAddress> addresses_;
  const Listener listener_;
  const bool persists_;
  std::map<int, Call> calls_;  // to higher ranks
  std::set<int> awaited_;      // lower ranks
  std::set<int> arrived_;      // lower ranks
  std::list<Guest> guests_;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_TCP_RENDEZVOUS_H_
