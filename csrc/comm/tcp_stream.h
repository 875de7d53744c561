/// Messages, or parts of them, over one TCP connection, in both directions at once.
///
/// On the wire: the length of a message (8 bytes, in the machines' byte order, like blocks), then
/// the message. If two ranks have several connections, a long message is divided among them, in
/// equal parts, each after the length of the whole; a short one goes over the first, and the others
/// carry its length alone. Bytes go directly from and to the caller's memory. Only expected
/// messages are read: data that the peer sends ahead stays in the kernel, and once its buffers are
/// full the peer waits.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/comm/communicator.h"
#include "csrc/comm/descriptor.h"

namespace hvd_sparse {

/// The stream of messages over one of the connections with a peer. Used by one thread at a time.
class TcpStream {
 public:
  /// Messages that have left the link within this time are not worth waiting for.
  static constexpr std::chrono::microseconds kSoon{500};

  /// Makes the stream over connection `index` of `connections` between this rank and a peer; rank
  /// numbers appear in errors only.
  TcpStream(int rank, int peer, int index = 0, int connections = 1)
      : rank_(rank), peer_(peer), index_(index), connections_(connections) {}

  int peer() const { return peer_; }

  /// Sets the connection; messages wait until there is one.
  void Open(Descriptor socket) { socket_ = static_cast<Descriptor&&>(socket); }
  bool open() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.get(); }

  /// Add a message to send or receive, in this order. Its memory must stay valid until Forget().
  void Send(const Outgoing& message);
  void Receive(Incoming* message) { receiving_.push_back(message); }

  bool sends() const { return !sending_.empty(); }  ///< has a message to send, done or not
  bool idle() const { return sending_.empty() && receiving_.empty(); }  ///< has no message

  /// Forgets all messages once they are done; in the middle of one this makes the stream unusable.
  void Forget();

  /// Sends and receives without waiting; returns true if any byte has moved. Sends nothing if
  /// `held`.
  ///
  /// Throws Disagreement naming `what` if a message is longer than its capacity.
  bool Move(const std::string& what, bool held);

  /// The events to poll for.
  short events(bool held) const;

  bool done() const { return done(queued()); }

  /// A place in the queues of messages: how many were added to each.
  struct Place {
    std::size_t sends, receives;
  };
  Place queued() const { return {sending_.size(), receiving_.size()}; }

  /// True if all messages before that place are done.
  bool done(Place place) const { return place.sends <= sent_ && place.receives <= received_; }

  /// Returns the bytes sent that the peer's machine has not acknowledged; 0 if they are so few that
  /// they leave the link within kSoon, since what is acknowledged lags behind by a round trip, or
  /// are the last segments, whose acknowledgement may be delayed, or if the connection is broken.
  std::int64_t under_way() const;

  /// Why the connection is unusable; empty while it is not.
  const std::string& lost() const { return lost_; }
  void Lose(const std::string& reason) { lost_ = reason; }

 private:
  /// The bytes of a message that this connection carries.
  struct Part {
    std::int64_t begin, bytes;
  };
  struct Sending {
    std::int64_t length;  ///< of the whole message
    const std::uint8_t* data;
    std::int64_t bytes;
  };

  Part PartOf(std::int64_t length) const;

  bool SendSome(int socket);
  bool ReceiveSome(int socket, const std::string& what);
  void RequireRoom(const Incoming& message, const std::string& what) const;

  const int rank_, peer_, index_, connections_;
  Descriptor socket_;
  std::string lost_;

  std::vector<Sending> sending_;
  std::size_t sent_ = 0;         // messages sent
  std::int64_t sent_bytes_ = 0;  // bytes sent of the next message, its length included

  std::vector<Incoming*> receiving_;
  std::size_t received_ = 0;
  std::int64_t received_bytes_ = 0;
  std::int64_t length_ = 0;  // length of the message being received
  Part part_{0, 0};          // this connection's part of it
};

}  // namespace hvd_sparse
