/// The chunks in which a message is sent to a receiver that does not know its length.
///
/// A message shorter than a chunk is sent as it is. A longer one is sent as its first chunk, the
/// number of bytes that follow, and these bytes in further chunks, several of which may be in
/// flight at once. So a receiver never waits for a chunk that is not sent, and short messages cost
/// nothing extra.

#pragma once

#include <cstdint>

namespace hvd_sparse {

/// One direction of a message. The object must be neither moved nor destroyed while chunks are in
/// flight.
class MessageChunks {
 public:
  enum class Direction { kOut, kIn };

  struct Chunk {
    void* data;
    std::int64_t bytes;  ///< bytes to send, or capacity to receive
  };

  /// `bytes` is the number of bytes to send, or the capacity to receive; `limit` is the longest
  /// chunk in bytes, equal on both sides and at least 1.
  MessageChunks(Direction direction, void* data, std::int64_t bytes, std::int64_t limit);

  /// True if a chunk may be posted now, whatever is still in flight.
  bool CanPost() const { return next_ != Part::kNothing; }

  /// Returns the next chunk. Chunks must be sent and received in this order.
  Chunk Post();

  /// Notes that a posted chunk of `bytes` bytes has been sent or received. Chunks that are in
  /// flight together may be reported in any order.
  ///
  /// Throws Disagreement if the message exceeds the capacity, or is not as long as announced.
  void Arrived(std::int64_t bytes);

  /// True if no chunk will be posted any more: the next message to or from the peer may follow.
  bool all_posted() const {
    return next_ == Part::kNothing &&
           (direction_ == Direction::kOut || awaited_ == Part::kRest || awaited_ == Part::kNothing);
  }

  bool done() const { return next_ == Part::kNothing && on_their_way_ == 0; }
  std::int64_t moved() const { return moved_; }  ///< bytes of the message moved so far

 private:
  enum class Part { kFirst, kLength, kRest, kNothing };

  void Received(std::int64_t bytes);

  Direction direction_;
  std::uint8_t* data_;
  std::int64_t bytes_, limit_;
  Part next_ = Part::kFirst;
  Part awaited_ = Part::kFirst;  // the part that a receiver waits for
  int on_their_way_ = 0;
  std::int64_t following_ = 0;  // bytes after the first chunk, as announced
  std::int64_t posted_ = 0;     // bytes of the message
  std::int64_t moved_ = 0;
};

}  // namespace hvd_sparse
