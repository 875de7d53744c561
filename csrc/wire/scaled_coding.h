/// Dense arrays as int8 or int4 numbers with scales: scaled_blocks.h.

#ifndef HVD_SPARSE_WIRE_SCALED_CODING_H_
#define HVD_SPARSE_WIRE_SCALED_CODING_H_

#include <cstdint>

#include "csrc/base/types.h"

namespace hvd_sparse {

/// Writes the code of finite values, ValueBytes of them, and replaces each value by its error.
/// Returns true.
bool TakeInt8(Span<float> values, std::uint8_t* code);
bool TakeInt4(Span<float> values, std::uint8_t* code);

/// Sets `out` to the values of a code of ValueBytes. Returns false if it is none that is written.
bool DecodeInt8(const std::uint8_t* code, Span<float> out);
bool DecodeInt4(const std::uint8_t* code, Span<float> out);

/// Like DecodeInt8 and DecodeInt4, but adds the values to `sum`.
bool AddInt8(const std::uint8_t* code, Span<float> sum);
bool AddInt4(const std::uint8_t* code, Span<float> sum);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_SCALED_CODING_H_
