/// Integers of 8 or 4 bits, in blocks of 64 with a common scale that is a power of two.
///
///     block: exponent e, 1 byte | codes, as in fields.h         value = q * 2^e
///
/// A code is q + 128 for int8 and q + 8 for int4, with |q| at most 127 or 7; zero is no code.
///
/// 2^e is the smallest scale with which the codes reach all values of the block. Then the largest
/// one rounds to at least 64 (4 for int4) times 2^e, which no smaller scale reaches: the decoded
/// block has the same scale, and coding it again gives the same code.
///
/// The error of a value u, u - q * 2^e, is exact in float32. A value that rounds to q = 0 is its
/// own error. Any other has |u| >= 2^e / 2, so that u and q * 2^e, and hence their difference, are
/// multiples of 2^(e - 24), or of the smallest float32. The difference is at most 2^e / 2, or below
/// 2^e and a multiple of 2^104 where the range of e ends: it takes no more than 24 bits.

#ifndef HVD_SPARSE_WIRE_SCALED_CODING_H_
#define HVD_SPARSE_WIRE_SCALED_CODING_H_

#include <cstdint>

#include "csrc/base/types.h"

namespace hvd_sparse {

/// Writes the code of finite values, ValueBytes of them, and replaces each value by its error.
void TakeInt8(Span<float> values, std::uint8_t* code);
void TakeInt4(Span<float> values, std::uint8_t* code);

/// Sets `out` to the values of a code of ValueBytes. Returns false if it is none that is written.
bool DecodeInt8(const std::uint8_t* code, Span<float> out);
bool DecodeInt4(const std::uint8_t* code, Span<float> out);

/// Like DecodeInt8 and DecodeInt4, but adds the values to `sum`.
bool AddInt8(const std::uint8_t* code, Span<float> sum);
bool AddInt4(const std::uint8_t* code, Span<float> sum);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_SCALED_CODING_H_
