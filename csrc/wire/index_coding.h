/// Ascending positions in about log2(1 / density) + 2 bits each, instead of 32.
///
/// Elias-Fano coding. A position, counted from the first one, is split into `low_bits` low bits and
/// a high part. The low bits of all positions are stored consecutively. The high parts ascend and
/// are stored as a bit vector: the i-th position sets bit (high part + i), so that a position with
/// the same high part as its predecessor costs one bit, and each increment of the high part one
/// more.
///
///     low bits, padded to 8 bytes | bit vector of the high parts, padded to 8 bytes
///
/// With low_bits = floor(log2(span / count)) a position takes at most log2(span / count) + 2 bits,
/// wherever the positions lie; the size depends on the shape alone.
///
/// Elias, "Efficient storage and retrieval by content and address of static files", JACM 1974;
/// Fano, "On the number of bits required to implement an associative memory", MIT 1971.

#pragma once

#include <cstdint>

#include "csrc/base/types.h"

namespace hvd_sparse {

/// The shape of a code, which both sides must know: all sizes follow from it.
struct IndexShape {
  std::int64_t count = 0;  ///< number of positions, at least 1
  Index first = 0;         ///< the least position
  Index last = 0;          ///< the largest position

  /// The number of places from the first position to the last, both included.
  std::int64_t Span() const { return std::int64_t{last} - first + 1; }
  /// True if `count` positions fit between the first and the last.
  bool IsPossible() const { return first >= 0 && first <= last && count <= Span(); }

  int LowBits() const;
  std::int64_t LowBytes() const { return (count * LowBits() + 63) / 64 * 8; }
  std::int64_t HighBytes() const { return (count + ((Span() - 1) >> LowBits()) + 63) / 64 * 8; }
  /// Bytes of the code, a multiple of 8.
  std::int64_t Bytes() const { return LowBytes() + HighBytes(); }
};

/// Writes shape.Bytes() bytes. The positions must ascend strictly, from shape.first to shape.last;
/// their survived bits are not coded.
void EncodeIndices(const Index* indices, const IndexShape& shape, std::uint8_t* code);

/// Reads the positions from shape.Bytes() bytes. At least these may be read at `code`, and at most
/// `readable`; the more, the more is vectorised. Returns true if the positions ascend strictly,
/// from shape.first to shape.last; false if the bytes are no code of that shape, having written to
/// no more than the shape.count places of `indices`.
bool DecodeIndices(const std::uint8_t* code, std::int64_t readable, const IndexShape& shape,
                   Index* indices);

/// Returns true if the positions, without survived bits, ascend strictly and lie below `end`.
bool Ascend(const Index* indices, std::int64_t count, std::int64_t end);

}  // namespace hvd_sparse
