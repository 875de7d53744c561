/// A block: entries of a bucket that are sent together, in memory as on the wire.
///
///     header | indices[count] | values[count]
///
/// Indices ascend. While a block is being written, its values start after room for `capacity`
/// indices; Finish() moves them down, so that the bytes of a finished block are one message.

#pragma once

#include <cstdint>

#include "csrc/base/buffer.h"
#include "csrc/base/types.h"
#include "csrc/base/verdict.h"

namespace hvd_sparse {

/// Precedes every block on the wire and lets the receiver detect that the ranks disagree.
struct BlockHeader {
  std::uint32_t magic = 0;
  std::int32_t count = 0;
  std::uint32_t bucket = 0;  ///< number of the bucket, counted from 0
  Verdict verdict;           ///< the worst that the sender knows of
  std::uint32_t step = 0;    ///< number of earlier exchanges of the bucket
  std::uint32_t asked = 0;   ///< entries asked of the rank
  std::uint32_t kept = 0;    ///< entries kept by a round, if the collective drops any
  std::uint8_t format = 0;   ///< WireFormat::Id() of the bucket's messages
  std::uint8_t indices = 0;  ///< coding of this message's indices, see wire_format.cc
  std::uint8_t values = 0;   ///< type of this message's values, see wire/values.h
  Route route = Route::kCalls;
};
static_assert(sizeof(BlockHeader) == 32);

/// Bit of an index, set if this rank's own value is part of the entry's sum. It is local state of
/// gTop-k (see collectives/gtopk.cc); partners ignore it in received blocks.
constexpr std::uint32_t kSurvivedBit = 0x80000000u;

inline Index Position(Index marked) {
  return static_cast<Index>(static_cast<std::uint32_t>(marked) & ~kSurvivedBit);
}
inline bool Survived(Index marked) {
  return (static_cast<std::uint32_t>(marked) & kSurvivedBit) != 0;
}
inline Index Marked(Index position, bool survived) {
  return static_cast<Index>(static_cast<std::uint32_t>(position) | (survived ? kSurvivedBit : 0));
}

class SparseBlock {
 public:
  /// Bytes of a finished block of `count` entries.
  static std::int64_t MessageBytes(std::int64_t count) {
    return static_cast<std::int64_t>(sizeof(BlockHeader)) + 8 * count;
  }

  /// Empties the block and makes room for `capacity` entries; memory only ever grows.
  void Reset(std::int64_t capacity);

  /// Ends the writing; the first `count` places of indices() and values() hold the entries.
  void Finish(std::int64_t count);

  /// Turns this into a finished block with that header, whose entries are still to be written.
  ///
  /// Throws ExchangeFailed if the header announces more entries than capacity().
  void Shape(const BlockHeader& header);

  /// Returns the header of a message of `bytes` bytes; throws ExchangeFailed if it is no block's.
  static BlockHeader ReadHeader(const void* message, std::int64_t bytes);

  /// Copies a finished block of at most capacity() entries from a message of `bytes` bytes.
  ///
  /// Throws ExchangeFailed if the message is no block or holds more entries than that.
  void Parse(const void* message, std::int64_t bytes);

  /// Like Parse, but for a message that was received directly into message().
  void ParseInPlace(std::int64_t bytes);

  void CopyFrom(const SparseBlock& other);

  /// Returns which entries of a finished block lie in a range of positions.
  Range EntriesIn(Range positions) const;

  BlockHeader& header() { return *reinterpret_cast<BlockHeader*>(buffer_.data()); }
  const BlockHeader& header() const {
    return *reinterpret_cast<const BlockHeader*>(buffer_.data());
  }
  std::int64_t count() const { return header().count; }
  std::int64_t capacity() const { return capacity_; }

  Index* indices() { return reinterpret_cast<Index*>(buffer_.data() + sizeof(BlockHeader)); }
  float* values() { return reinterpret_cast<float*>(indices() + stride_); }
  const Index* indices() const { return const_cast<SparseBlock*>(this)->indices(); }
  const float* values() const { return const_cast<SparseBlock*>(this)->values(); }

  /// The block as it is sent. Valid after Finish.
  std::uint8_t* message() { return buffer_.data(); }
  const std::uint8_t* message() const { return buffer_.data(); }
  std::int64_t message_bytes() const { return MessageBytes(count()); }
  std::int64_t max_message_bytes() const { return MessageBytes(capacity_); }

 private:
  Buffer buffer_;
  std::int64_t capacity_ = 0;
  std::int64_t stride_ = 0;  // distance from the first index to the first value, in entries
};

}  // namespace hvd_sparse
