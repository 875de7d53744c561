/// Records of a lifeline: short messages over one TCP connection.
///
/// On the wire: kind (1 byte), kind of error (1 byte), rank (4 bytes), steps (8 bytes), length of
/// the text (4 bytes), text; little-endian.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/comm/descriptor.h"
#include "csrc/comm/socket.h"

namespace hvd_sparse {

enum class RecordKind : unsigned char {
  kHello = 1,      ///< to rank 0, the first record (text: host and pid of the caller)
  kWelcome = 2,    ///< from rank 0, the answer (text: its host and pid)
  kStart = 3,      ///< from rank 0: all have connected (steps: connections of each two ranks)
  kGoodbye = 4,    ///< the sender leaves after `steps`
  kFail = 5,       ///< rank `rank` ends the exchange after `steps` (error: its kind; text: reason)
  kLost = 6,       ///< from rank 0: rank `rank` is lost (text: how)
  kLeft = 7,       ///< from rank 0: rank `rank` has left after `steps`
  kCommitted = 8,  ///< to rank 0, once a rank has left or failed: the sender's steps so far
};

struct Record {
  RecordKind kind;
  int rank = 0;
  std::string text = {};
  ErrorKind error = ErrorKind::kExchangeFailed;
  std::int64_t steps = 0;  ///< number of steps that the rank has committed
};

/// Sends and receives records without ever blocking. Used by one thread at a time.
class LifelineConnection {
 public:
  /// Bytes of a record before its text: kind, kind of error, rank, steps and the length of the
  /// text.
  static constexpr std::size_t kHeaderBytes = 18;

  /// The longest text. Post truncates longer ones; receiving one (from a stranger) breaks the
  /// connection.
  static constexpr std::size_t kMaxText = 4096;

  explicit LifelineConnection(Descriptor socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }

  double RoundTripSeconds() const { return hvd_sparse::RoundTripSeconds(socket_); }

  /// 0 while the connection is open, else the errno that broke it, or -1 if the peer closed it.
  int broken() const { return broken_; }

  /// The events to poll for.
  short events() const;

  /// Sends the record; keeps the part that does not fit now for Flush.
  void Post(const Record& record);

  /// Sends the rest of the posted records; call it when poll() reports POLLOUT.
  void Flush();

  /// Reads the bytes that have arrived, without waiting.
  void Receive();

  /// Takes the oldest received record, if there is one.
  std::optional<Record> Next();

  /// Like Next, but waits for a record until `deadline`; returns nothing then, or if the connection
  /// broke.
  std::optional<Record> WaitForNext(Clock::time_point deadline);

 private:
  Descriptor socket_;
  std::string unsent_;
  std::string unread_;
  int send_error_ = 0;
  int broken_ = 0;
};

}  // namespace hvd_sparse
