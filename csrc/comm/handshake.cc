#include "csrc/comm/handshake.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "csrc/base/error.h"
#include "csrc/comm/listen_address.h"
#include "csrc/comm/sha256.h"
#include "csrc/comm/socket.h"

namespace hvd_sparse {
namespace {

constexpr std::size_t kNonceBytes = 32;
constexpr std::size_t kHelloBytes = sizeof(std::uint32_t) + kNonceBytes;
constexpr std::size_t kAnswerBytes = kNonceBytes + kSha256Bytes;
constexpr char kAdmitted = 'a';

std::string RankBytes(int rank) {
  std::string bytes;
  Append(static_cast<std::uint32_t>(rank), &bytes);
  return bytes;
}

/// The inputs of both proofs of a handshake.
struct Proofs {
  std::string key, ranks, nonces, address;

  std::string Of(const char* direction) const {
    return HmacSha256(key, Concat("hvd_sparse ", direction, '\n', ranks, nonces, address));
  }
};

/// Sends a few bytes, which fit into the buffer of a new connection; returns true if that worked.
bool SendAtOnce(const Descriptor& socket, const std::string& bytes) {
  const int fd = socket.get();
  if (fd < 0) return false;
  const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(bytes.size());
}

enum class Reading { kNotYet, kComplete, kBroken };

/// Reads until `*bytes` holds `size` bytes, and no more: messages may follow. If the connection has
/// broken, errno says why, and is 0 if the other end has closed it.
Reading ReadUpTo(std::size_t size, const Descriptor& socket, std::string* bytes) {
  const int fd = socket.get();
  if (fd < 0) {
    errno = EBADF;
    return Reading::kBroken;
  }
  while (bytes->size() < size) {
    char buffer[kAnswerBytes];
    const ssize_t got = ::recv(fd, buffer, size - bytes->size(), 0);
    if (got > 0) {
      bytes->append(buffer, static_cast<std::size_t>(got));
      continue;
    }
    if (got < 0 && MeansLater(errno)) return Reading::kNotYet;
    if (got == 0) errno = 0;
    return Reading::kBroken;
  }
  return Reading::kComplete;
}

}  // namespace

CallerHandshake::CallerHandshake(Descriptor socket, std::string key, int caller, int listener)
    : socket_(std::move(socket)),
      key_(std::move(key)),
      caller_(caller),
      listener_(listener),
      nonce_(RandomBytes(kNonceBytes)) {
  if (!socket_) Fail(std::strerror(errno), errno);
}

short CallerHandshake::events() const { return connected() ? POLLIN : POLLOUT; }

HandshakeStatus CallerHandshake::Fail(const std::string& problem, int error) {
  problem_ = problem;
  error_ = error;
  socket_.Close();
  return HandshakeStatus::kFailed;
}

HandshakeStatus CallerHandshake::Lost() {
  const int error = errno;
  return Fail(error == 0 ? "the connection was closed" : std::strerror(error), error);
}

HandshakeStatus CallerHandshake::Advance() {
  if (!problem_.empty()) return HandshakeStatus::kFailed;
  if (stage_ == Stage::kConnecting) {
    if (!WaitFor(socket_.get(), POLLOUT, Clock::now())) return HandshakeStatus::kUnderWay;
    if (const int error = ErrorOf(socket_); error != 0) return Fail(std::strerror(error), error);
    if (!SendAtOnce(socket_, RankBytes(caller_) + nonce_)) return Lost();
    stage_ = Stage::kAwaitsProof;
  }
  if (stage_ == Stage::kAwaitsProof) {
    const Reading reading = ReadUpTo(kAnswerBytes, socket_, &received_);
    if (reading == Reading::kNotYet) return HandshakeStatus::kUnderWay;
    if (reading == Reading::kBroken) return Lost();
    const Proofs proofs{key_, RankBytes(caller_) + RankBytes(listener_),
                        nonce_ + received_.substr(0, kNonceBytes), AddressOfPeer(socket_)};
    if (!EqualInConstantTime(received_.substr(kNonceBytes), proofs.Of("listener"))) {
      return Fail("somebody else listens there");
    }
    if (!SendAtOnce(socket_, proofs.Of("caller"))) return Lost();
    received_.clear();
    stage_ = Stage::kAwaitsAdmission;
  }
  const Reading reading = ReadUpTo(1, socket_, &received_);
  if (reading == Reading::kNotYet) return HandshakeStatus::kUnderWay;
  if (reading == Reading::kBroken) return Lost();
  if (received_[0] != kAdmitted) return Fail("somebody else listens there");
  return HandshakeStatus::kDone;
}

ListenerHandshake::ListenerHandshake(Descriptor socket, std::string key, int listener)
    : socket_(std::move(socket)), key_(std::move(key)), listener_(listener) {}

HandshakeStatus ListenerHandshake::Advance() {
  if (expected_.empty()) {
    const Reading reading = ReadUpTo(kHelloBytes, socket_, &received_);
    if (reading == Reading::kNotYet) return HandshakeStatus::kUnderWay;
    if (reading == Reading::kBroken) return HandshakeStatus::kFailed;
    caller_ = static_cast<int>(NumberAt<std::uint32_t>(received_, 0));
    const std::string nonce = RandomBytes(kNonceBytes);
    const Proofs proofs{key_, RankBytes(caller_) + RankBytes(listener_),
                        received_.substr(sizeof(std::uint32_t)) + nonce, AddressOfSelf(socket_)};
    if (!SendAtOnce(socket_, nonce + proofs.Of("listener"))) return HandshakeStatus::kFailed;
    expected_ = proofs.Of("caller");
    received_.clear();
  }
  const Reading reading = ReadUpTo(kSha256Bytes, socket_, &received_);
  if (reading == Reading::kNotYet) return HandshakeStatus::kUnderWay;
  const bool proven = reading == Reading::kComplete && EqualInConstantTime(received_, expected_);
  return proven ? HandshakeStatus::kDone : HandshakeStatus::kFailed;
}

Descriptor ListenerHandshake::Admit() {
  if (!SendAtOnce(socket_, std::string(1, kAdmitted))) socket_.Close();
  return std::move(socket_);
}

}  // namespace hvd_sparse
