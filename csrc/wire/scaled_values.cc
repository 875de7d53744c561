#include "csrc/wire/scaled_values.h"

#include <algorithm>

#include "csrc/wire/narrow_floats.h"
#include "csrc/wire/scaled_blocks.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kMostBytes = 1 + kScaledBlock;  // of a block's code

bool IsFinite(float value) { return (FloatBits(value) & kInfinity) != kInfinity; }

/// Like TakeBlock, for values of which some are not finite; they have no error.
template <typename T>
void TakeSpecialBlock(float* values, std::uint8_t* code) {
  bool is_special[kScaledBlock];
  for (std::int64_t i = 0; i < kScaledBlock; ++i) {
    is_special[i] = !IsFinite(values[i]);
    if (is_special[i]) values[i] = 0;
  }
  TakeBlock<T>(ExponentOf<T>(LargestMagnitude(values, kScaledBlock)), values, code);
  for (std::int64_t i = 0; i < kScaledBlock; ++i) {
    if (!is_special[i]) continue;
    std::uint8_t* const at = code + 1 + 4 * (i % T::kWords);
    const auto shift = static_cast<int>(T::kBits * (i / T::kWords));
    Store<std::uint32_t>(Load<std::uint32_t>(at) & ~(((1u << T::kBits) - 1) << shift), at);
  }
}

/// Sets the values to NaN whose codes in a whole block are zero.
template <typename T>
void MarkSpecial(const std::uint8_t* code, float* values) {
  for (std::int64_t i = 0; i < kScaledBlock; ++i) {
    const std::uint32_t word = Load<std::uint32_t>(code + 1 + 4 * (i % T::kWords));
    const std::uint32_t field = word >> (T::kBits * (i / T::kWords)) & ((1u << T::kBits) - 1);
    if (field == 0) values[i] = BitsFloat(kNaN);
  }
}

/// Writes the code of a whole block, and replaces each value by its error.
template <typename T>
HVD_SPARSE_INLINE void CodeBlock(float* values, std::uint8_t* code) {
  const std::uint32_t largest = LargestMagnitude(values, kScaledBlock);
  if (largest >= kInfinity) return TakeSpecialBlock<T>(values, code);
  TakeBlock<T>(ExponentOf<T>(largest), values, code);
}

/// Decodes a whole block; returns false if it is none.
template <typename T>
HVD_SPARSE_INLINE bool ReadBlock(const std::uint8_t* code, float* values) {
  const std::uint32_t wrong = DecodeBlock<T, false>(code, values);
  if ((wrong & kWrongExponent) != 0) return false;
  if (wrong != 0) MarkSpecial<T>(code, values);
  return true;
}

template <typename T>
HVD_SPARSE_INLINE void Round(float* values, std::int64_t count, float* errors) {
  for (std::int64_t begin = 0; begin < count; begin += kScaledBlock) {
    const std::int64_t size = std::min(kScaledBlock, count - begin);
    float rest[kScaledBlock] = {}, rounded[kScaledBlock];
    std::uint8_t code[kMostBytes];
    std::copy_n(values + begin, size, rest);
    CodeBlock<T>(rest, code);
    ReadBlock<T>(code, rounded);
    std::copy_n(rounded, size, values + begin);
    if (errors != nullptr) std::copy_n(rest, size, errors + begin);
  }
}

/// Writes a whole block; returns true if its values are those that are decoded.
template <typename T>
HVD_SPARSE_INLINE bool EncodeBlock(const float* values, std::uint8_t* code) {
  float rest[kScaledBlock], decoded[kScaledBlock];
  std::copy_n(values, kScaledBlock, rest);
  CodeBlock<T>(rest, code);
  ReadBlock<T>(code, decoded);
  std::uint32_t lost = 0;
  for (std::int64_t i = 0; i < kScaledBlock; ++i) {
    lost |= FloatBits(values[i]) ^ FloatBits(decoded[i]);
  }
  return lost == 0;
}

template <typename T>
HVD_SPARSE_INLINE bool Encode(const float* values, std::int64_t count, std::uint8_t* code) {
  bool all = true;
  for (; count >= kScaledBlock; count -= kScaledBlock) {
    all &= EncodeBlock<T>(values, code);
    values += kScaledBlock;
    code += 1 + 4 * T::kWords;
  }
  if (count == 0) return all;
  LastBlock<T> last(count);
  last.CopyFrom(values);
  std::uint8_t padded[kMostBytes];
  all &= EncodeBlock<T>(last.values, padded);
  std::copy_n(padded, 1 + last.bytes, code);
  return all;
}

template <typename T>
HVD_SPARSE_INLINE bool Decode(const std::uint8_t* code, std::int64_t count, float* values) {
  bool all = true;
  for (; count >= kScaledBlock; count -= kScaledBlock) {
    all &= ReadBlock<T>(code, values);
    values += kScaledBlock;
    code += 1 + 4 * T::kWords;
  }
  if (count == 0) return all;
  LastBlock<T> last(count);
  std::uint8_t padded[kMostBytes];
  std::fill_n(padded, sizeof(padded), std::uint8_t{0xff});  // is a code
  std::copy_n(code, 1 + last.bytes, padded);
  all &= ReadBlock<T>(padded, last.values);
  last.CopyTo(values);
  return all;
}

}  // namespace

HVD_SPARSE_CLONES void RoundToInt8(float* values, std::int64_t count, float* errors) {
  Round<Int8>(values, count, errors);
}
HVD_SPARSE_CLONES void RoundToInt4(float* values, std::int64_t count, float* errors) {
  Round<Int4>(values, count, errors);
}
HVD_SPARSE_CLONES bool EncodeInt8(const float* values, std::int64_t count, std::uint8_t* code) {
  return Encode<Int8>(values, count, code);
}
HVD_SPARSE_CLONES bool EncodeInt4(const float* values, std::int64_t count, std::uint8_t* code) {
  return Encode<Int4>(values, count, code);
}
HVD_SPARSE_CLONES bool DecodeInt8Values(const std::uint8_t* code, std::int64_t count,
                                        float* values) {
  return Decode<Int8>(code, count, values);
}
HVD_SPARSE_CLONES bool DecodeInt4Values(const std::uint8_t* code, std::int64_t count,
                                        float* values) {
  return Decode<Int4>(code, count, values);
}

}  // namespace hvd_sparse
