/// Proof that both ends of a new connection are ranks of one exchange.
///
/// Every listener has its own key, which the ranks of its exchange learn from the host. The key
/// is never sent on a connection made here:
///
///     caller    its rank, a nonce
///     listener  a nonce, HMAC-SHA256(key, "listener", ranks, both nonces, the listener's address)
///     caller    HMAC-SHA256(key, "caller", ranks, both nonces, the listener's address)
///     listener  one byte: the caller is admitted
///
/// The listener proves itself first, so a caller that has reached a stranger reveals nothing
/// useful. Nonces are fresh, so a recorded proof is worthless later. Both ends take the address
/// from their own end of the connection, so a proof relayed from another address or port is
/// worthless.
///
/// Nothing here blocks: a handshake advances as far as the bytes received so far allow.

#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "csrc/comm/descriptor.h"

namespace hvd_sparse {

enum class HandshakeStatus { kUnderWay, kDone, kFailed };

/// The handshake of the end that connects; done once it is admitted.
class CallerHandshake {
 public:
  /// `socket` comes from BeginConnecting; if it is empty, errno says why. `key` is the listener's.
  CallerHandshake(Descriptor socket, std::string key, int caller, int listener);

  HandshakeStatus Advance();

  /// Returns the connection; call it once the handshake is done.
  Descriptor Take() { return std::move(socket_); }

  int fd() const { return socket_.get(); }
  short events() const;  ///< events to poll for

  /// True once connected; the other end may still be anybody.
  bool connected() const { return stage_ > Stage::kConnecting; }

  /// True once the listener has proved itself.
  bool found() const { return stage_ == Stage::kAwaitsAdmission; }

  /// The reason why the handshake failed, for messages; empty if it has not failed.
  const std::string& problem() const { return problem_; }

  /// The errno behind problem(); 0 if the other end closed the connection or failed its proof.
  int error() const { return error_; }

 private:
  enum class Stage { kConnecting, kAwaitsProof, kAwaitsAdmission };

  HandshakeStatus Fail(const std::string& problem, int error = 0);
  HandshakeStatus Lost();

  Descriptor socket_;
  const std::string key_;
  const int caller_, listener_;
  Stage stage_ = Stage::kConnecting;
  std::string nonce_, received_, problem_;
  int error_ = 0;
};

/// The handshake of the end that listens; done once the caller has proved itself and only waits to
/// be admitted.
class ListenerHandshake {
 public:
  ListenerHandshake(Descriptor socket, std::string key, int listener);

  HandshakeStatus Advance();

  /// The rank that the caller has proved to be.
  int caller() const { return caller_; }

  /// Tells the caller that it is admitted; returns the connection, or an empty descriptor if that
  /// fails.
  Descriptor Admit();

  int fd() const { return socket_.get(); }

 private:
  Descriptor socket_;
  const std::string key_;
  const int listener_;
  int caller_ = -1;
  std::string received_, expected_;  // the caller's proof, as received and as required
};

}  // namespace hvd_sparse
