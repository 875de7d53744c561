/// Integers of 8 or 4 bits, in blocks of 64 with a common scale that is a power of two.
///
///     block: exponent e, 1 byte | codes, as in fields.h         value = q 2^e
///
/// A code is q + 128 for int8 and q + 8 for int4, with |q| at most 127 or 7. A code of zero stands
/// for a value that is not finite; dense messages have none.
///
/// 2^e is the smallest scale with which the codes reach all values of the block. Then the largest
/// one rounds to at least 64 (4 for int4) times 2^e, which no smaller scale reaches: the decoded
/// block has the same scale, and coding it again gives the same code.
///
/// The error of a value u, u - q * 2^e, is exact in float32. A value that rounds to q = 0 is its
/// own error. Any other has |u| >= 2^e / 2, so that u and q * 2^e, and hence their difference, are
/// multiples of 2^(e - 24), or of the smallest float32. The difference is at most 2^e / 2, or below
/// 2^e and a multiple of 2^104 where the range of e ends: it takes no more than 24 bits.

#ifndef HVD_SPARSE_WIRE_SCALED_BLOCKS_H_
#define HVD_SPARSE_WIRE_SCALED_BLOCKS_H_

#include <algorithm>
#include <cstdint>

#include "csrc/kernels/half.h"
#include "csrc/wire/fields.h"
#include "csrc/wire/magnitudes.h"
#include "csrc/wire/scaled_integers.h"
#include "csrc/wire/words.h"

namespace hvd_sparse {

/// Takes the values of a whole block. `kClamps`: q may lie beyond the largest code.
template <typename T, bool kClamps>
HVD_SPARSE_INLINE void TakeWords(int exponent, float* __restrict values,
                                 std::uint8_t* __restrict code) {
  const float scale = PowerOfTwo(exponent), inverse = PowerOfTwo(-exponent);
  std::uint32_t others = 0;  // the bits beside the codes, in the sum of all fields
  for (int f = 0; f < T::kFields; ++f) others += kRounded << (T::kBits * f);
  for (std::int64_t j = 0; j < T::kWords; ++j) {
    std::uint32_t word = 0u - others;
#pragma GCC unroll 8
    for (int f = 0; f < T::kFields; ++f) {
      float* const at = values + j + f * T::kWords;
      const float value = *at;
      float q = value * inverse;
      if constexpr (kClamps) q = std::clamp(q, 1.0f - T::kZero, T::kZero - 1.0f);
      const float coded = q + T::kRounder;
      word += FloatBits(coded) << (T::kBits * f);
      *at = value - (coded - T::kRounder) * scale;
    }
    Store<std::uint32_t>(word, code + 4 * j);
  }
}

/// Writes the code of a whole block of finite values, and replaces each value by its error.
template <typename T>
HVD_SPARSE_INLINE void TakeBlock(int exponent, float* values, std::uint8_t* code) {
  *code = static_cast<std::uint8_t>(exponent);
  exponent == T::kMostExponent ? TakeWords<T, true>(exponent, values, code + 1)
                               : TakeWords<T, false>(exponent, values, code + 1);
}

/// The bit of DecodeBlock's result for an exponent out of range; its other bits tell of codes of
/// zero.
constexpr std::uint32_t kWrongExponent = 1;

/// Decodes a whole block. Returns zero if all of it was a code of finite values.
template <typename T, bool kAdds>
HVD_SPARSE_INLINE std::uint32_t DecodeBlock(const std::uint8_t* __restrict code,
                                            float* __restrict out) {
  const int exponent = static_cast<std::int8_t>(*code++);
  const float scale = PowerOfTwo(exponent);
  std::uint32_t bad = 0;
  for (std::int64_t j = 0; j < T::kWords; ++j) {
    const std::uint32_t word = Load<std::uint32_t>(code + 4 * j);
    bad |= (word - T::kOnes) & ~word;  // has the first bit of a field that is zero
#pragma GCC unroll 8
    for (int f = 0; f < T::kFields; ++f) {
      const std::uint32_t field = word >> (T::kBits * f) & ((1u << T::kBits) - 1);
      const float value = (BitsFloat(kRounded | field) - T::kRounder) * scale;
      float* const at = out + j + f * T::kWords;
      *at = kAdds ? *at + value : value;
    }
  }
  const bool in_range = T::kLeastExponent <= exponent && exponent <= T::kMostExponent;
  return (bad & T::kOnes << (T::kBits - 1)) | (in_range ? 0 : kWrongExponent);
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_SCALED_BLOCKS_H_
