/// A communicator whose ranks are processes connected by TCP.
///
/// Each pair of ranks that has ever exchanged a message (tcp_rendezvous.h) shares one connection
/// for both directions, or several where the network is slow to answer (lifeline_rendezvous.h).
/// Sending and receiving alternate, so that a swap uses the link's full rate both ways. A waiting
/// thread looks a hundred times, yielding, then sleeps in poll() until data arrives: it costs next
/// to nothing and adds little latency.
///
/// A connection that breaks ends the wait, and the lifeline reports why. An idle connection is
/// never broken by a time limit: a peer may compute for as long as it likes.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "csrc/comm/communicator.h"
#include "csrc/comm/lifeline.h"
#include "csrc/comm/listen_address.h"
#include "csrc/comm/patience.h"
#include "csrc/comm/socket.h"

namespace hvd_sparse {

/// The port at which a rank accepts connections of others; created before any of them connects.
class TcpPort {
 public:
  /// Listens as Listen() of listen_address.h does; throws what that throws.
  TcpPort();

  /// The port's address, for the other ranks.
  std::string Address() const { return address_.Text(); }

  /// Returns the listener; throws InvalidArgument if called again.
  Listener Take();

 private:
  Listener listener_;
  ListenAddress address_;
};

struct TcpOptions {
  int rank = 0;
  std::vector<std::string> addresses;  ///< addresses of the ranks' ports, in order
  WaitLimits limits;
};

/// Makes a communicator. Not collective: connections are made when they are needed. If there is a
/// lifeline, waits end when it reports that the exchange has ended.
std::unique_ptr<Communicator> MakeTcpCommunicator(const TcpOptions& options, TcpPort* port,
                                                  std::shared_ptr<Lifeline> lifeline);

}  // namespace hvd_sparse
