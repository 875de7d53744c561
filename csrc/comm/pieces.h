/// The pieces in which a message travels to a receiver who does not know how long it is.
///
/// A message shorter than a piece travels as it is. A longer one travels as its first piece, the
/// number of bytes that follow, and these, in pieces of which several may be on their way at once.
/// So nobody ever waits for a piece that does not come, and short messages cost nothing extra.

#ifndef HVD_SPARSE_COMM_PIECES_H_
#define HVD_SPARSE_COMM_PIECES_H_

#include <cstdint>

namespace hvd_sparse {

/// One direction of a message. It must not move, nor go, while pieces are on their way.
class Pieces {
 public:
  enum class Direction { kOut, kIn };

  struct Piece {
    void* data;
    std::int64_t bytes;  ///< to send, or room to receive
  };

  /// `bytes` are those to send, or the room to receive; pieces of the message are at most `limit`
  /// bytes long, the same on both sides and at least 1.
  Pieces(Direction direction, void* data, std::int64_t bytes, std::int64_t limit);

  /// Whether a piece may be sent, or received, now, whatever is still on its way.
  bool CanPost() const { return next_ != Part::kNothing; }

  /// The next piece. They are sent and received in this order.
  Piece Post();

  /// A posted piece has been sent, or received, with so many bytes. Of pieces that were on their
  /// way at the same time, any one may be reported first.
  ///
  /// Throws Disagreement if the message does not fit, or is not as long as was announced.
  void Arrived(std::int64_t bytes);

  bool done() const { return next_ == Part::kNothing && on_their_way_ == 0; }
  std::int64_t moved() const { return moved_; }  ///< bytes of the message so far

 private:
  enum class Part { kFirst, kLength, kRest, kNothing };

  void Received(std::int64_t bytes);

  Direction direction_;
  std::uint8_t* data_;
  std::int64_t bytes_, limit_;
  Part next_ = Part::kFirst;
  Part awaited_ = Part::kFirst;  // by a receiver
  int on_their_way_ = 0;
  std::int64_t following_ = 0;  // bytes after the first piece, as they are announced
  std::int64_t posted_ = 0;     // bytes of the message
  std::int64_t moved_ = 0;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_PIECES_H_
