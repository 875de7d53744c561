/// The pieces in which a message is sent to a receiver that does not know its length.
///
/// A message shorter than a piece is sent as it is. A longer one is sent as its first piece, the
/// number of bytes that follow, and these bytes in further pieces, several of which may be in
/// flight at once. So a receiver never waits for a piece that is not sent, and short messages cost
/// nothing extra.

#ifndef HVD_SPARSE_COMM_PIECES_H_
#define HVD_SPARSE_COMM_PIECES_H_

#include <cstdint>

namespace hvd_sparse {

/// One direction of a message. The object must be neither moved nor destroyed while pieces are in
/// flight.
class Pieces {
 public:
  enum class Direction { kOut, kIn };

  struct Piece {
    void* data;
    std::int64_t bytes;  ///< bytes to send, or capacity to receive
  };

  /// `bytes` is the number of bytes to send, or the capacity to receive; `limit` is the longest
  /// piece in bytes, equal on both sides and at least 1.
  Pieces(Direction direction, void* data, std::int64_t bytes, std::int64_t limit);

  /// True if a piece may be posted now, whatever is still in flight.
  bool CanPost() const { return next_ != Part::kNothing; }

  /// Returns the next piece. Pieces must be sent and received in this order.
  Piece Post();

  /// Notes that a posted piece of `bytes` bytes has been sent or received. Pieces that are in
  /// flight together may be reported in any order.
  ///
  /// Throws Disagreement if the message exceeds the capacity, or is not as long as announced.
  void Arrived(std::int64_t bytes);

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
  std::int64_t following_ = 0;  // bytes after the first piece, as announced
  std::int64_t posted_ = 0;     // bytes of the message
  std::int64_t moved_ = 0;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_PIECES_H_
