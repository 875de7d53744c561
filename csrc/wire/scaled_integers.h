/// The integers of scaled_blocks.h and their scales, on the CPU and on GPUs.

#ifndef HVD_SPARSE_WIRE_SCALED_INTEGERS_H_
#define HVD_SPARSE_WIRE_SCALED_INTEGERS_H_

#include <cstdint>

#include "csrc/kernels/half.h"
#include "csrc/wire/values.h"

namespace hvd_sparse {

/// A type of integers, and the layout of a whole block of them.
template <int kCodeBits>
struct Integer {
  static constexpr int kBits = kCodeBits;
  static constexpr int kFields = 32 / kBits;                         ///< codes in a word
  static constexpr int kWords = kScaledBlock / kFields;              ///< of a whole block
  static constexpr int kZero = 1 << (kBits - 1);                     ///< the code of q = 0
  static constexpr std::uint32_t kOnes = ~0u / ((1u << kBits) - 1);  ///< 1 in each field
  static constexpr int kLeastExponent = -126;        ///< of the smallest normal float32
  static constexpr int kMostExponent = 129 - kBits;  ///< the largest value is finite
  /// Adding this to q rounds it to an integer, to nearest, ties to even, with its code in the last
  /// bits of the sum.
  static constexpr float kRounder = 0x1p23f + kZero;

  static constexpr int kPerByte = 8 / kBits;
  static constexpr HVD_SPARSE_INLINE std::int64_t FieldOf(std::int64_t byte, std::int64_t part) {
    return kPerByte * byte + part;
  }
};

using Int8 = Integer<8>;
using Int4 = Integer<4>;

/// The bits of 2^23, which precede a code after rounding.
constexpr std::uint32_t kRounded = 0x4b000000u;

/// Returns 2^exponent.
HVD_SPARSE_INLINE float PowerOfTwo(int exponent) {
  return BitsFloat(static_cast<std::uint32_t>(exponent + 127) << 23);
}

/// Returns the exponent of a block's scale, given the bits of its largest magnitude: the smallest e
/// with magnitude <= (kZero - 1) * 2^e, if that is in the range.
template <typename T>
HVD_SPARSE_INLINE int ExponentOf(std::uint32_t magnitude) {
  // kZero - 1 = 1.1...1b * 2^(kBits - 2), so a larger mantissa carries into the exponent.
  constexpr std::uint32_t kCarry = (1u << (25 - T::kBits)) - 1;
  const int e = static_cast<int>((magnitude + kCarry) >> 23) - (127 + T::kBits - 2);
  constexpr int kLeast = T::kLeastExponent, kMost = T::kMostExponent;
  return Smaller(Larger(e, kLeast), kMost);
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_SCALED_INTEGERS_H_
