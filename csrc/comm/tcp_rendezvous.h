/// Sets up the connections of a TCP communicator, each when its two ranks first need it.
///
/// Both ranks know when that is. The lower rank connects and the higher one accepts, so no pair
/// connects twice. A rank keeps connections with its partners alone: log2 P if distances double,
/// and never P for a collective with few partners.
///
/// A host has several addresses, and one may lead to a stranger, or nowhere. The lower rank tries
/// them one after the other and keeps earlier attempts open: the higher rank may be computing, and
/// answers only when it waits for messages itself. Both prove that they are ranks of this exchange
/// (handshake.h). If no address can be reached, the link may come back, so they are tried again for
/// a minute. The same happens if the higher rank closed a connection that had not proved itself, as
/// it does when many strangers connect (admission.h).

#pragma once

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

/// The rendezvous of one rank. Never waits; used by one thread at a time.
class TcpRendezvous {
 public:
  /// `addresses` are the addresses of all ranks, `listener` is this rank's; each two ranks make
  /// `connections`. `persists`: retry unreachable ranks, because a lifeline reports those that are
  /// gone.
  TcpRendezvous(int rank, std::vector<ListenAddress> addresses, Listener listener, int connections,
                bool persists);

  /// Requests the connections with a peer; call it once for each.
  void Request(int peer);

  /// True while Advance has work: a connection is needed that is not made yet, or a guest has yet
  /// to prove itself or be dropped.
  bool busy() const { return !calls_.empty() || !awaited_.empty() || admission_.has_guests(); }

  /// Returns why a peer could not be reached so far; empty if there is no obstacle.
  std::string Obstacle(int peer) const;

  struct Arrival {
    int peer;
    int connection;  ///< which one with that peer, from 0
    Descriptor socket;
    std::string problem;  ///< why there is no socket and will be none; else empty
  };

  /// Advances all connections as far as possible; returns those made or given up since the last
  /// call. They include ranks that connect before Request was called.
  std::vector<Arrival> Advance();

  /// Adds the events after which Advance has work to do.
  void AddTo(std::vector<pollfd>* polled) const;

 private:
  /// The attempts to reach one peer.
  struct Call {
    std::vector<std::string> ips;
    std::list<CallerHandshake> attempts;
    std::size_t tried = 0;        // number of addresses tried
    Clock::time_point next_time;  // to try the next address, though none has failed, or all again
    std::string problem;          // the last problem
    bool may_pass = false;        // true if one of the failed addresses may work later
    std::optional<Clock::time_point> give_up;  // set once all addresses have been tried
  };

  /// Connection `index` of a rank is one of its ends. Calls and handshakes are told apart by them.
  int EndOf(int rank, int index) const { return rank * connections_ + index; }
  Arrival ArrivalAt(int end) const { return {end / connections_, end % connections_, {}, {}}; }

  std::string CannotConnect(int peer, const Call& call) const;
  bool AdvanceCall(Call* call, Arrival* arrival);
  void TryNextAddress(const Arrival& arrival, Call* call);

  const int rank_, connections_;
  const std::vector<ListenAddress> addresses_;
  const bool persists_;
  std::map<int, Call> calls_;  // calls to higher ranks, by end
  std::set<int> awaited_;      // ends of lower ranks
  std::set<int> arrived_;      // ends of lower ranks
  Admission admission_;        // admits lower ranks
};

}  // namespace hvd_sparse
