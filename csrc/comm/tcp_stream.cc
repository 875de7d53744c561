#include "csrc/comm/tcp_stream.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "csrc/base/error.h"
#include "csrc/comm/socket.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kLengthBytes = sizeof(std::int64_t);
// The most bytes that one call of Move moves in one direction, so that the other gets its turn.
constexpr std::int64_t kTurn = std::int64_t{512} * 1024;
// The most pieces of memory in one sendmsg() call: eight messages with their lengths.
constexpr std::size_t kPieces = 16;
// A receiver acknowledges every other segment at once, but may delay the acknowledgement of the
// last.
constexpr int kLastSegments = 2;
// The longest message that is not divided.
constexpr std::int64_t kUndivided = std::int64_t{32} * 1024;

/// The pieces of memory that one sendmsg() call sends, at most kTurn bytes.
class Gathered {
 public:
  bool full() const { return count_ == kPieces || room_ == 0; }

  /// Adds `bytes` bytes at `data` less the first `*skipped`, which decreases by the bytes skipped.
  void Add(const void* data, std::int64_t bytes, std::int64_t* skipped) {
    const std::int64_t skip = std::min(*skipped, bytes);
    *skipped -= skip;
    const std::int64_t taken = std::min(room_, bytes - skip);
    if (taken == 0 || full()) return;
    auto* first = static_cast<std::uint8_t*>(const_cast<void*>(data)) + skip;
    pieces_[count_++] = {first, static_cast<std::size_t>(taken)};
    room_ -= taken;
  }

  ssize_t Send(int socket) {
    msghdr message{};
    message.msg_iov = pieces_.data();
    message.msg_iovlen = count_;
    return ::sendmsg(socket, &message, MSG_NOSIGNAL);
  }

 private:
  std::array<iovec, kPieces> pieces_;
  std::size_t count_ = 0;
  std::int64_t room_ = kTurn;
};

}  // namespace

TcpStream::Part TcpStream::PartOf(std::int64_t length) const {
  if (length <= kUndivided) return {0, index_ == 0 ? length : 0};
  const std::int64_t most = (length + connections_ - 1) / connections_;
  const std::int64_t begin = std::min(index_ * most, length);
  return {begin, std::min(most, length - begin)};
}

void TcpStream::Send(const Outgoing& message) {
  const Part part = PartOf(message.bytes);
  const auto* data = static_cast<const std::uint8_t*>(message.data);
  sending_.push_back({message.bytes, data + part.begin, part.bytes});
}

void TcpStream::Forget() {
  sending_.clear();
  receiving_.clear();
  sent_ = received_ = 0;
}

bool TcpStream::Move(const std::string& what, bool held) {
  const int socket = fd();
  if (socket < 0 || !lost_.empty()) return false;
  const bool sent = !held && SendSome(socket);
  const bool received = lost_.empty() && ReceiveSome(socket, what);
  return sent || received;
}

short TcpStream::events(bool held) const {
  if (!lost_.empty()) return 0;
  const int events = (!held && sent_ < sending_.size() ? POLLOUT : 0) |
                     (received_ < receiving_.size() ? POLLIN : 0);
  return static_cast<short>(events);
}

std::int64_t TcpStream::under_way() const {
  const int socket = fd();
  if (socket < 0 || !lost_.empty()) return 0;
  int unacknowledged = 0;
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (::ioctl(socket, SIOCOUTQ, &unacknowledged) != 0) return 0;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
  const double soon = std::chrono::duration<double>(kSoon).count() + RoundTripSeconds(socket_);
  const double few = std::max(static_cast<double>(kLastSegments) * info.tcpi_snd_mss,
                              soon * static_cast<double>(info.tcpi_delivery_rate));
  if (unacknowledged <= few) return 0;
  pollfd broken{socket, 0, 0};
  return ::poll(&broken, 1, 0) == 0 ? unacknowledged : 0;
}

bool TcpStream::SendSome(int socket) {
  if (sent_ == sending_.size()) return false;
  Gathered gathered;
  std::int64_t skipped = sent_bytes_;
  for (std::size_t i = sent_; i < sending_.size() && !gathered.full(); ++i) {
    gathered.Add(&sending_[i].length, kLengthBytes, &skipped);
    gathered.Add(sending_[i].data, sending_[i].bytes, &skipped);
  }
  const ssize_t sent = gathered.Send(socket);
  if (sent < 0) {
    if (!MeansLater(errno)) Lose(std::strerror(errno));
    return false;
  }
  sent_bytes_ += sent;
  while (sent_ < sending_.size() && sent_bytes_ >= kLengthBytes + sending_[sent_].bytes) {
    sent_bytes_ -= kLengthBytes + sending_[sent_].bytes;
    ++sent_;
  }
  return sent > 0;
}

bool TcpStream::ReceiveSome(int socket, const std::string& what) {
  std::int64_t turn = kTurn;
  bool moved = false;
  while (received_ < receiving_.size() && turn > 0) {
    Incoming& message = *receiving_[received_];
    const bool in_length = received_bytes_ < kLengthBytes;
    std::uint8_t* const to = in_length ? reinterpret_cast<std::uint8_t*>(&length_) + received_bytes_
                                       : static_cast<std::uint8_t*>(message.data) + part_.begin +
                                             (received_bytes_ - kLengthBytes);
    const std::int64_t end = in_length ? kLengthBytes : kLengthBytes + part_.bytes;
    const std::int64_t wanted = std::min(turn, end - received_bytes_);
    const ssize_t got = ::recv(socket, to, static_cast<std::size_t>(wanted), 0);
    if (got == 0) Lose("it has closed the connection");
    if (got < 0 && !MeansLater(errno)) Lose(std::strerror(errno));
    if (got <= 0) return moved;
    moved = true;
    turn -= got;
    received_bytes_ += got;
    if (in_length && received_bytes_ == kLengthBytes) {
      RequireRoom(message, what);
      part_ = PartOf(length_);
    }
    if (received_bytes_ >= kLengthBytes && received_bytes_ == kLengthBytes + part_.bytes) {
      message.bytes = length_;
      ++received_;
      received_bytes_ = 0;
    }
    if (got < wanted) return moved;  // no more bytes have arrived
  }
  return moved;
}

void TcpStream::RequireRoom(const Incoming& message, const std::string& what) const {
  if (length_ >= 0 && length_ <= message.capacity) return;
  RefuseLength(peer_, rank_, length_, message.capacity, what);
}

}  // namespace hvd_sparse
