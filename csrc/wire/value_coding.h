/// Values in a narrow number type, and what rounding takes from them.

#ifndef HVD_SPARSE_WIRE_VALUE_CODING_H_
#define HVD_SPARSE_WIRE_VALUE_CODING_H_

#include <cstdint>

#include "csrc/base/types.h"

namespace hvd_sparse {

/// Rounds values to the numbers of `dtype` (float32, float16 or bfloat16), in place: to nearest,
/// ties to even. What was lost is written to `errors` where that is not null:
///
///     rounded value + error = value, exactly
///
/// Finite values stay finite. One beyond the largest number becomes that number; beyond 2^29 the
/// largest one whose error is exact. Zeros become +0.0. What is not finite stays so, with an error
/// of zero.
void RoundValues(DType dtype, float* values, std::int64_t count, float* errors);

/// Writes count * SizeOf(dtype) bytes. Returns whether every value is a number of `dtype`, so that
/// nothing was lost.
bool EncodeValues(DType dtype, const float* values, std::int64_t count, std::uint8_t* code);

/// Reads what EncodeValues wrote.
void DecodeValues(DType dtype, const std::uint8_t* code, std::int64_t count, float* values);

/// Whether no value is NaN or infinite.
bool AreFinite(const float* values, std::int64_t count);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_VALUE_CODING_H_
