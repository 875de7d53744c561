/// Ascending positions in about log2(1 / density) + 2 bits each, instead of 32.
///
/// Elias-Fano coding. A position, counted from the first one, is cut into `low_bits` low bits and
/// a high part. The low bits of all positions lie one behind the other. The high parts ascend, and
/// are a bit vector: the i-th position sets bit (high part + i), so that a position whose high part
/// equals the last one's costs one bit, and each step of the high part one more.
///
///     low bits, filled up to 8 bytes | bit vector of the high parts, filled up to 8 bytes
///
/// With low_bits = floor(log2(span / count)) a position takes at most log2(span / count) + 2 bits,
/// wherever the positions lie; the size follows from the shape alone.
///
/// Elias, "Efficient storage and retrieval by content and address of static files", JACM 1974;
/// Fano, "On the number of bits required to implement an associative memory", MIT 1971.

#ifndef HVD_SPARSE_WIRE_INDEX_CODING_H_
#define HVD_SPARSE_WIRE_INDEX_CODING_H_

#include <cstdint>

#include "csrc/base/types.h"

namespace hvd_sparse {

/// What both sides must know of a code: all else follows from it.
struct IndexShape {
  std::int64_t count = 0;  ///< positions, at least 1
  Index first = 0;         ///< the least of them
  Index last = 0;          ///< the largest

  /// The number of places from the first position to the last.
  std::int64_t Span() const { return std::int64_t{last} - first + 1; }
  /// Whether so many positions have room between the first and the last.
  bool IsPossible() const { return first >= 0 && first <= last && count <= Span(); }

  int LowBits() const;
  std::int64_t LowBytes() const { return (count * LowBits() + 63) / 64 * 8; }
  std::int64_t HighBytes() const { return (count + ((Span() - 1) >> LowBits()) + 63) / 64 * 8; }
  /// Bytes of the code, a multiple of 8.
  std::int64_t Bytes() const { return LowBytes() + HighBytes(); }
};

/// Writes shape.Bytes() bytes. The positions ascend strictly, from shape.first to shape.last; their
/// survived bits are left out.
void EncodeIndices(const Index* indices, const IndexShape& shape, std::uint8_t* code);

/// Reads the positions from shape.Bytes() bytes; `readable` >= that many may be read at `code`,
/// more let more of it be vectorised. Returns false, and has written nothing but places of
/// `indices`, if these bytes are no code of that shape: else the positions ascend strictly, from
/// shape.first to shape.last.
bool DecodeIndices(const std::uint8_t* code, std::int64_t readable, const IndexShape& shape,
                   Index* indices);

/// Whether positions ascend strictly and lie below `end`; survived bits apart.
bool Ascend(const Index* indices, std::int64_t count, std::int64_t end);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_INDEX_CODING_H_
