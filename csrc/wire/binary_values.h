/// The values of sparse blocks as one number: that of sparse binary compression.
///
/// Sattler et al., "Sparse binary compression", IJCNN 2019, https://arxiv.org/abs/1805.08768.

#ifndef HVD_SPARSE_WIRE_BINARY_VALUES_H_
#define HVD_SPARSE_WIRE_BINARY_VALUES_H_

#include <cstdint>

namespace hvd_sparse {

/// Rounds like RoundValues: all values become one number, with their sign. Its magnitude is their
/// mean, but at most twice the least, rounded down to a multiple of the last place of the largest.
/// Values of both signs, or of which one is not finite, stay as they are, with errors of zero.
void RoundToBinary(float* values, std::int64_t count, float* errors);

/// Encodes like EncodeValues: returns true if all values are the same finite number.
bool EncodeBinary(const float* values, std::int64_t count, std::uint8_t* code);

/// Decodes like DecodeValues: returns false if the number is not finite.
bool DecodeBinary(const std::uint8_t* code, std::int64_t count, float* values);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_BINARY_VALUES_H_
