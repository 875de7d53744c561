/// How the connections of a lifeline come about.
///
/// Rank 0 listens; the others try its addresses in turn. Both ends prove that they are ranks of
/// this exchange (handshake.h). Nobody starts before all have come, so a rank that stays away, or
/// dies meanwhile, is reported by all the others.

#ifndef HVD_SPARSE_COMM_LIFELINE_RENDEZVOUS_H_
#define HVD_SPARSE_COMM_LIFELINE_RENDEZVOUS_H_

#include <cstdint>
#include <map>
#include <string>

#include "csrc/comm/lifeline_wire.h"
#include "csrc/comm/listen_address.h"
#include "csrc/comm/socket.h"

namespace hvd_sparse {

/// The other end of a connection.
struct LifelinePeer {
  LifelineConnection connection;
  std::string who;         ///< "host h, pid n"
  std::int64_t steps = 0;  ///< that it is through with, as far as it has said
  bool leaves = false;     ///< it has said goodbye
};

/// By rank.
using LifelinePeers = std::map<int, LifelinePeer>;

/// On rank 0: waits for ranks 1 to size - 1.
///
/// Throws PeerLost naming the missing ranks after `seconds`, or at once a rank that has come and
/// died; on the ranks that did come as well.
LifelinePeers AwaitPeers(Listener listener, const ListenAddress& address, int size,
                         const std::string& name, double seconds);

/// On the others: connects to rank 0 and waits for all to have done so.
///
/// Throws PeerLost naming the addresses tried after `seconds`, or at once if rank 0 has died.
LifelinePeers JoinPeers(const ListenAddress& address, int rank, int size, const std::string& name,
                        double seconds);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_LIFELINE_RENDEZVOUS_H_
