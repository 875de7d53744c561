/// Ranks as processes connected by TCP: where there is no MPI, as when Horovod runs over Gloo.
///
/// One connection for each pair of ranks that has ever exchanged a message (tcp_rendezvous.h), for
/// both directions. Sending and receiving take turns on it, so that a swap has the link's full rate
/// both ways. A waiting thread looks a hundred times, yielding, then sleeps in poll() and is woken
/// by what arrives: it costs next to nothing, and is late by little.
///
/// A connection that breaks ends the wait; why it did, the lifeline says. On these connections no
/// time limit breaks one on which nothing moves: a peer may compute for as long as it likes.

#ifndef HVD_SPARSE_COMM_TCP_COMMUNICATOR_H_
#define HVD_SPARSE_COMM_TCP_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "csrc/comm/communicator.h"
#include "csrc/comm/lifeline.h"
#include "csrc/comm/listen_address.h"
#include "csrc/comm/patience.h"
#include "csrc/comm/socket.h"

namespace hvd_sparse {

/// Where a rank waits for the connections of others; made before any of them connects.
class TcpPort {
 public:
  /// Listens where listen_address.h says; throws what Listen throws.
  TcpPort();

  /// For the other ranks.
  std::string Address() const { return address_.Text(); }

  /// The port itself, once; throws InvalidArgument later.
  Listener Take();

 private:
  Listener listener_;
  ListenAddress address_;
};

struct TcpOptions {
  int rank = 0;
  std::vector<std::string> addresses;  ///< of the ranks' ports, in order
  WaitLimits limits;
};

/// Not collective: connections are made when they are needed. Where there is a lifeline, waits end
/// when it reports that the exchange has.
std::unique_ptr<Communicator> MakeTcpCommunicator(const TcpOptions& options, TcpPort* port,
                                                  std::shared_ptr<Lifeline> lifeline);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_TCP_COMMUNICATOR_H_
