/// Dense arrays as float32, float16 or bfloat16 numbers, one after the other.
///
/// Narrow numbers are those of RoundValues.

#ifndef HVD_SPARSE_WIRE_FLOAT_CODING_H_
#define HVD_SPARSE_WIRE_FLOAT_CODING_H_

#include <cstdint>

#include "csrc/base/types.h"

namespace hvd_sparse {

/// Writes the numbers to which finite values round, and replaces each value by its error. Returns
/// false if a value exceeds LargestCarried, which only float16's do.
bool TakeFloat32(Span<float> values, std::uint8_t* code);
bool TakeFloat16(Span<float> values, std::uint8_t* code);
bool TakeBFloat16(Span<float> values, std::uint8_t* code);

/// Sets `out` to the numbers. Returns false if one of them is not finite.
bool DecodeFloat32(const std::uint8_t* code, Span<float> out);
bool DecodeFloat16(const std::uint8_t* code, Span<float> out);
bool DecodeBFloat16(const std::uint8_t* code, Span<float> out);

/// Adds the numbers to `sum`. Returns false if one of them is not finite.
bool AddFloat32(const std::uint8_t* code, Span<float> sum);
bool AddFloat16(const std::uint8_t* code, Span<float> sum);
bool AddBFloat16(const std::uint8_t* code, Span<float> sum);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_FLOAT_CODING_H_
