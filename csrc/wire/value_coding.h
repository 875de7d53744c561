/// Values in a narrow number type, and their rounding errors.

#ifndef HVD_SPARSE_WIRE_VALUE_CODING_H_
#define HVD_SPARSE_WIRE_VALUE_CODING_H_

#include <cstdint>

#include "csrc/base/types.h"
#include "csrc/wire/values.h"

namespace hvd_sparse {

/// Rounds values in place to numbers of `type`: to nearest, ties to even. Writes the rounding
/// errors to `errors` unless that is null:
///
///     rounded value + error = value, exactly
///
/// Finite values stay finite: a value beyond the largest number becomes that number, or, beyond
/// 2^29, the largest one whose error is exact: zero beyond LargestCarried. Zeros become +0.0.
/// Values that are not finite stay so, with an error of zero. To int8 and int4 each kScaledBlock
/// values are rounded together; once rounded they do not change, as long as the same ones stand
/// together. To binary all values are rounded together: see binary_values.h.
void RoundValues(Values type, float* values, std::int64_t count, float* errors);

/// Writes ValueBytes(type, count) bytes. Returns true if every value is a number of `type`, so that
/// nothing was lost.
bool EncodeValues(Values type, const float* values, std::int64_t count, std::uint8_t* code);

/// Reads values that EncodeValues wrote. Returns false if the bytes are no code of the type; any
/// bytes are one of float32, float16 and bfloat16.
bool DecodeValues(Values type, const std::uint8_t* code, std::int64_t count, float* values);

/// Returns the number of values that exceed LargestCarried, of which a message would hold nothing.
std::int64_t CountNotCarried(Values type, Span<const float> values);

/// Returns true if no value is NaN or infinite.
bool AreFinite(const float* values, std::int64_t count);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_VALUE_CODING_H_
