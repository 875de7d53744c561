/// A running sum with a value for every position; a sum of many blocks becomes one.
///
/// A message: header | values[numel]. Positions that no block had hold -0.0, the neutral element
/// of addition: x + -0.0 has the bits of x for every x, +0.0 and -0.0 included. So a sum has the
/// same bits whether it was added up in this form or in blocks.

#pragma once

#include <cstdint>

#include "csrc/base/buffer.h"
#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"
#include "csrc/wire/wire_format.h"

namespace hvd_sparse {

class DenseBlock {
 public:
  static std::int64_t MessageBytes(std::int64_t numel) {
    return static_cast<std::int64_t>(sizeof(BlockHeader)) +
           static_cast<std::int64_t>(sizeof(float)) * numel;
  }

  /// Makes room for `numel` values; memory only ever grows. The values are undefined.
  void Reset(std::int64_t numel);

  /// Marks every position as absent.
  void Clear();

  /// Adds a block. Returns true if all sums at its positions are finite. Throws ExchangeFailed if a
  /// position lies beyond the end.
  bool Add(const SparseBlock& block);

  /// Adds another sum of the same numel. Commutes, bit for bit. Returns true if all values are
  /// finite.
  bool Add(const DenseBlock& other);

  /// Parses the message of `bytes` bytes that was received into message(). Throws ExchangeFailed if
  /// it is not a dense sum of this numel.
  void ParseInPlace(std::int64_t bytes);

  /// Checks the received values, see wire_format.h.
  void CheckValues() const { hvd_sparse::CheckValues(header(), values(), numel_); }

  /// Writes the sum as a block, without positions that hold -0.0: adding that changes nothing. The
  /// block keeps its header.
  void ToBlock(SparseBlock* block) const;

  /// The header, with the identity and verdict of the sum; its count is the numel.
  BlockHeader& header() { return *reinterpret_cast<BlockHeader*>(buffer_.data()); }
  const BlockHeader& header() const {
    return *reinterpret_cast<const BlockHeader*>(buffer_.data());
  }

  /// Copies `identity` into the header, except for magic and count.
  void Identify(const BlockHeader& identity);

  /// The values, to write and to read; only for sums without absent positions.
  Span<float> view() { return {values(), numel_}; }

  std::uint8_t* message() { return buffer_.data(); }
  std::int64_t message_bytes() const { return MessageBytes(numel_); }

 private:
  float* values() { return reinterpret_cast<float*>(buffer_.data() + sizeof(BlockHeader)); }
  const float* values() const { return const_cast<DenseBlock*>(this)->values(); }

  Buffer buffer_;
  std::int64_t numel_ = 0;
};

}  // namespace hvd_sparse
