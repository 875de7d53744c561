/// Records over one TCP connection; see the header.

#include "csrc/comm/lifeline_wire.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <type_traits>

namespace hvd_sparse {
namespace {

/// Offsets of a header's fields, in bytes.
constexpr std::size_t kKindAt = 0, kErrorAt = 1, kRankAt = 2, kStepsAt = 6, kLengthAt = 14;
static_assert(kLengthAt + sizeof(std::uint32_t) == LifelineConnection::kHeaderBytes);

bool IsKind(unsigned char kind) {
  return kind >= static_cast<unsigned char>(RecordKind::kHello) &&
         kind <= static_cast<unsigned char>(RecordKind::kCommitted);
}

bool IsErrorKind(unsigned char kind) { return kind <= static_cast<unsigned char>(kLastErrorKind); }

}  // namespace

short LifelineConnection::events() const {
  return static_cast<short>(unsent_.empty() ? POLLIN : POLLIN | POLLOUT);
}

void LifelineConnection::Post(const Record& record) {
  const std::string text = record.text.substr(0, kMaxText);
  unsent_.push_back(static_cast<char>(record.kind));
  unsent_.push_back(static_cast<char>(record.error));
  Append(static_cast<std::uint32_t>(record.rank), &unsent_);
  Append(static_cast<std::uint64_t>(record.steps), &unsent_);
  Append(static_cast<std::uint32_t>(text.size()), &unsent_);
  unsent_ += text;
  Flush();
}

void LifelineConnection::Flush() {
  const int socket = fd();
  if (socket < 0) return;
  while (!unsent_.empty() && broken_ == 0) {
    const ssize_t sent = ::send(socket, unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      unsent_.erase(0, static_cast<std::size_t>(sent));
    } else if (!MeansLater(errno)) {
      send_error_ = errno;  // the peer's last records can still be read
      unsent_.clear();
    } else if (errno != EINTR) {
      return;
    }
  }
}

void LifelineConnection::Receive() {
  char bytes[4096];
  const int socket = fd();
  if (socket < 0) broken_ = EBADF;
  while (broken_ == 0) {
    const ssize_t received = ::recv(socket, bytes, sizeof(bytes), 0);
    if (received > 0) {
      unread_.append(bytes, static_cast<std::size_t>(received));
      if (unread_.size() > 16 * kMaxText) return;  // the caller takes some records first
    } else if (received == 0) {
      broken_ = send_error_ != 0 ? send_error_ : -1;
    } else if (!MeansLater(errno)) {
      broken_ = errno;
    } else if (errno != EINTR) {
      return;
    }
  }
}

std::optional<Record> LifelineConnection::Next() {
  if (unread_.size() < kHeaderBytes) return std::nullopt;
  const auto kind = static_cast<unsigned char>(unread_[kKindAt]);
  const auto error = static_cast<unsigned char>(unread_[kErrorAt]);
  const std::size_t length = NumberAt<std::uint32_t>(unread_, kLengthAt);
  if (!IsKind(kind) || !IsErrorKind(error) || length > kMaxText) {
    broken_ = EPROTO;
    unread_.clear();
    return std::nullopt;
  }
  if (unread_.size() < kHeaderBytes + length) return std::nullopt;
  Record record{static_cast<RecordKind>(kind),
                static_cast<int>(NumberAt<std::uint32_t>(unread_, kRankAt)),
                unread_.substr(kHeaderBytes, length), static_cast<ErrorKind>(error),
                static_cast<std::int64_t>(NumberAt<std::uint64_t>(unread_, kStepsAt))};
  unread_.erase(0, kHeaderBytes + length);
  return record;
}

std::optional<Record> LifelineConnection::WaitForNext(Clock::time_point deadline) {
  while (true) {
    if (auto record = Next()) return record;
    if (broken_ != 0 || !WaitFor(fd(), events(), deadline)) return std::nullopt;
    Flush();
    Receive();
  }
}

}  // namespace hvd_sparse
