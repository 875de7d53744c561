/// The values of sparse blocks as int8 or int4 numbers with scales: scaled_blocks.h.
///
/// Values share a scale by their place in the sparse block, so they have to be rounded again once
/// entries before them are gone or new.

#ifndef HVD_SPARSE_WIRE_SCALED_VALUES_H_
#define HVD_SPARSE_WIRE_SCALED_VALUES_H_

#include <cstdint>

namespace hvd_sparse {

/// Round like RoundValues; a value that is not finite becomes NaN.
void RoundToInt8(float* values, std::int64_t count, float* errors);
void RoundToInt4(float* values, std::int64_t count, float* errors);

/// Encode like EncodeValues.
bool EncodeInt8(const float* values, std::int64_t count, std::uint8_t* code);
bool EncodeInt4(const float* values, std::int64_t count, std::uint8_t* code);

/// Decode like DecodeValues.
bool DecodeInt8Values(const std::uint8_t* code, std::int64_t count, float* values);
bool DecodeInt4Values(const std::uint8_t* code, std::int64_t count, float* values);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_SCALED_VALUES_H_
