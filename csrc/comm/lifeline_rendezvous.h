/// Sets up the connections of a lifeline.
///
/// Rank 0 listens; the others try its addresses in turn. Both ends prove that they are ranks of
/// this exchange (handshake.h). No rank starts before all have connected, so if one is missing, or
/// dies meanwhile, all others report it.

#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "csrc/comm/lifeline_wire.h"
#include "csrc/comm/listen_address.h"
#include "csrc/comm/socket.h"

namespace hvd_sparse {

/// The peer at the other end of a lifeline's connection.
struct LifelinePeer {
  LifelineConnection connection;
  std::string host_and_pid;  ///< "host h, pid n"
  std::int64_t steps = 0;    ///< steps that it has committed, as far as it has told
  bool is_leaving = false;   ///< true once it has sent its goodbye
};

/// The connected peers, by rank.
using LifelinePeers = std::map<int, LifelinePeer>;

constexpr int kMostConnections = 16;

/// What the ranks know once all have connected.
struct LifelineStart {
  LifelinePeers peers;
  int connections = 1;  ///< of each two ranks over TCP, in [1, kMostConnections]
};

/// On rank 0: waits for ranks 1 to size - 1. Then decides on `connections`: `asked`, or, if that is
/// 0, eight where a round trip to some rank takes 5 ms or more, but fewer if a rank would have more
/// than 512 in all, and else one. On such a network TCP takes many round trips to reach the rate of
/// the link, anew after each pause, and several connections take fewer.
///
/// Throws PeerLost after `seconds`, naming the missing ranks, or at once, naming a connected rank
/// that died. The connected ranks throw, too.
LifelineStart AwaitPeers(Listener listener, const ListenAddress& address, int size,
                         const std::string& name, double seconds, int asked);

/// On the others: connects to rank 0 and waits until all ranks have.
///
/// Throws PeerLost after `seconds`, naming the addresses tried, or at once if rank 0 has died.
LifelineStart JoinPeers(const ListenAddress& address, int rank, int size, const std::string& name,
                        double seconds);

}  // namespace hvd_sparse
