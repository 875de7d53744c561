/// Messages over one TCP connection, in both directions at once.
///
/// On the wire: the length of a message (8 bytes, in the machines' own order, as in blocks), then
/// the message. Bytes go from and to the caller's memory. Nothing beyond the messages that are
/// expected is read: what the peer sends ahead stays in the kernel, and once that is full the peer
/// waits.

#ifndef HVD_SPARSE_COMM_TCP_STREAM_H_
#define HVD_SPARSE_COMM_TCP_STREAM_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/comm/communicator.h"
#include "csrc/comm/descriptor.h"

namespace hvd_sparse {

/// Used by one thread at a time.
class TcpStream {
 public:
  /// What arrives within this is not worth waiting for.
  static constexpr std::chrono::microseconds kSoon{500};

  /// Between this rank and a peer; rank numbers appear in messages only.
  TcpStream(int rank, int peer) : rank_(rank), peer_(peer) {}

  int peer() const { return peer_; }

  /// Until it has a connection, messages wait.
  void Open(Descriptor socket) { socket_ = static_cast<Descriptor&&>(socket); }
  bool open() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.get(); }

  /// Messages to move, in this order. Their memory must stay until they are forgotten.
  void Send(const Outgoing& message) { sending_.push_back({message.bytes, message.data}); }
  void Receive(Incoming* message) { receiving_.push_back(message); }

  bool sends() const { return !sending_.empty(); }                      ///< a message, done or not
  bool idle() const { return sending_.empty() && receiving_.empty(); }  ///< no message to move

  /// Forgets all messages, once they are done; in the middle of one the stream is of no more use.
  void Forget();

  /// Sends and receives what can be without waiting; returns whether any byte has moved. While
  /// `held`, nothing is sent.
  ///
  /// Throws Disagreement naming `what` if a message is longer than the room for it.
  bool Move(const std::string& what, bool held);

  /// The events to poll for.
  short events(bool held) const;

  bool done() const { return sent_ == sending_.size() && received_ == receiving_.size(); }

  /// Bytes that were sent and have not reached the peer's machine, if they are more than arrive
  /// within kSoon, or than the last segments, which a machine may be slow to acknowledge; 0 also
  /// once nothing will reach it any more.
  std::int64_t under_way() const;

  /// Why nothing will come or go any more; empty while it may.
  const std::string& lost() const { return lost_; }
  void Lose(const std::string& reason) { lost_ = reason; }

 private:
  struct Sending {
    std::int64_t length;
    const void* data;
  };

  bool SendSome(int socket);
  bool ReceiveSome(int socket, const std::string& what);
  void RequireRoom(const Incoming& message, const std::string& what) const;

  const int rank_, peer_;
  Descriptor socket_;
  std::string lost_;

  std::vector<Sending> sending_;
  std::size_t sent_ = 0;         // messages
  std::int64_t sent_bytes_ = 0;  // of the next one, its length included

  std::vector<Incoming*> receiving_;
  std::size_t received_ = 0;
  std::int64_t received_bytes_ = 0;
  std::int64_t length_ = 0;  // of the message that is being received
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_TCP_STREAM_H_
