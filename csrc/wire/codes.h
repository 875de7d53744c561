/// What the values of a message become on the CPU and on GPUs: float16 and bfloat16 numbers,
/// integers with a scale, ternary digits, and how fields of words hold the latter two.
///
/// In a block of w words, value i is field i / w of word i mod w. So each step of a loop over the
/// words shifts the fields of neighbouring values by as many bits, and is vectorised without moving
/// values between lanes. The last block of a message, if it has fewer values than the others, has
/// bytes instead of words, so that no more bytes are sent than it needs.

#pragma once

#include <cfloat>
#include <cstdint>

#include "csrc/base/types.h"
#include "csrc/kernels/half.h"
#include "csrc/wire/values.h"

namespace hvd_sparse {

/// What decoded values are put into.
enum class Into {
  kBlock,  ///< a sparse block, in whose code some may not be finite
  kDense,  ///< an array; all are finite
  kSum,    ///< like kDense, but the values are added: sum[i] += value[i]
};

// ---- Floats of 16 bits: half.h has the rounding of gradients, which may overflow
// -----------------

constexpr std::uint32_t kSign = 0x80000000u, kInfinity = 0x7f800000u, kNaN = 0x7fc00000u;

HVD_SPARSE_INLINE bool IsFiniteNumber(float value) {
  return (FloatBits(value) & kInfinity) != kInfinity;
}

/// Returns a or b by arithmetic: compilers turn `?:` into branches, which keep loops from being
/// vectorised.
HVD_SPARSE_INLINE std::uint32_t Choose(bool take_a, std::uint32_t a, std::uint32_t b) {
  return b ^ ((a ^ b) & (0u - static_cast<std::uint32_t>(take_a)));
}

/// Rounds away the last `dropped` bits of a magnitude, to nearest, ties to even.
HVD_SPARSE_INLINE std::uint32_t RoundBits(std::uint32_t magnitude, int dropped) {
  const std::uint32_t half = (1u << (dropped - 1)) - 1, odd = (magnitude >> dropped) & 1u;
  return (magnitude + half + odd) >> dropped << dropped;
}

/// Applies the sign, but to zero none: -0.0 would be no entry of a dense sum
/// (collectives/dense_block.h), and an entry that is left out loses its error.
HVD_SPARSE_INLINE std::uint32_t Signed(std::uint32_t magnitude, std::uint32_t sign) {
  return magnitude | Choose(magnitude == 0, 0, sign);
}

/// Returns the number of type T to which a value rounds, as float32 bits; half.h has the same
/// numbers as 16 bits. A float32 is its own number.
template <typename T>
HVD_SPARSE_INLINE std::uint32_t RoundedBits(std::uint32_t bits) {
  return bits;
}

/// Truncates instead of rounding if a value would round beyond the largest number.
template <>
HVD_SPARSE_INLINE std::uint32_t RoundedBits<BFloat16>(std::uint32_t bits) {
  constexpr std::uint32_t kTooLarge = 0x7f7f8000u;
  const std::uint32_t magnitude = bits & ~kSign, sign = bits & kSign;
  const std::uint32_t cut = magnitude & 0xffff0000u;
  const std::uint32_t finite = Choose(magnitude >= kTooLarge, cut, RoundBits(magnitude, 16));
  return Choose(magnitude > kInfinity, kNaN, Signed(finite, sign));
}

/// Values beyond the largest number become 65504, or slightly less if that makes the error exact: a
/// difference of two float32 is exact if both are multiples of the larger one's last place.
template <>
HVD_SPARSE_INLINE std::uint32_t RoundedBits<Float16>(std::uint32_t bits) {
  constexpr std::uint32_t kLargest = 0x477fe000u, kTooLarge = 0x477ff000u;  // 65504, 65520
  constexpr std::uint32_t kExponent = kLargest >> 23, kSmallestNormal = 113u << 23;
  const std::uint32_t magnitude = bits & ~kSign, sign = bits & kSign;
  const std::uint32_t above = Larger(magnitude >> 23, kExponent) - kExponent;
  const std::uint32_t shift = Smaller(above, 23u);
  const std::uint32_t largest = Choose(above > 23, 0, kLargest >> shift << shift);
  // Around 1/2 a float32 has the same last place as a subnormal float16, so the addition rounds.
  const std::uint32_t subnormal = FloatBits((BitsFloat(magnitude) + 0.5f) - 0.5f);
  const std::uint32_t small =
      Choose(magnitude < kSmallestNormal, subnormal, RoundBits(magnitude, 13));
  const std::uint32_t finite = Choose(magnitude >= kTooLarge, largest, small);
  const std::uint32_t special = Choose(magnitude > kInfinity, kNaN, kInfinity);
  return Signed(Choose(magnitude >= kInfinity, special, finite), sign);
}

/// Returns the bits of a number that type T can represent.
template <typename T>
HVD_SPARSE_INLINE std::uint32_t PackedBits(std::uint32_t bits) {
  return bits;
}

template <>
HVD_SPARSE_INLINE std::uint32_t PackedBits<BFloat16>(std::uint32_t bits) {
  return bits >> 16;
}

template <>
HVD_SPARSE_INLINE std::uint32_t PackedBits<Float16>(std::uint32_t bits) {
  constexpr std::uint32_t kHalf = 126u << 23, kSmallestNormal = 113u << 23;
  const std::uint32_t magnitude = bits & ~kSign;
  const std::uint32_t subnormal = FloatBits(BitsFloat(magnitude) + 0.5f) - kHalf;
  const std::uint32_t normal = (magnitude - ((127u - 15u) << 23)) >> 13;
  const std::uint32_t finite = Choose(magnitude < kSmallestNormal, subnormal, normal);
  const std::uint32_t special = Choose(magnitude > kInfinity, 0x7e00u, 0x7c00u);
  return Choose(magnitude >= kInfinity, special, finite) | (bits & kSign) >> 16;
}

// ---- Integers with a scale ----------------------------------------------------------------------

/// A type of integers (integer_coder.h), and the layout of a whole block of them.
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

// ---- Ternary digits -----------------------------------------------------------------------------

/// The layout of a whole block of ternary values (ternary_coding.h).
struct Ternary {
  static constexpr int kPerByte = 5, kWords = 16;
  static constexpr HVD_SPARSE_INLINE std::int64_t FieldOf(std::int64_t byte, std::int64_t digit) {
    return 4 * digit + byte;
  }
};

/// The bytes of a message before its code.
constexpr std::int64_t kTernaryHeader = 8;

constexpr std::uint8_t kZeroByte = 121;  ///< five digits of zero

/// Returns M for values of which the largest magnitude is given. The larger the factor, in [1,
/// 2), the fewer values are sent.
HVD_SPARSE_INLINE float TernaryScale(float factor, float largest) {
  return Smaller(factor * largest, FLT_MAX);
}

/// Returns the least magnitude that is sent. Zeros are not, though half of the smallest number is
/// rounded to zero.
HVD_SPARSE_INLINE float LeastSent(float scale) { return Larger(0.5f * scale, BitsFloat(1)); }

// ---- Fields of words, and of the bytes of a last block ------------------------------------------

/// Returns the bytes of a block of `count` values.
template <typename Layout>
HVD_SPARSE_INLINE std::int64_t BytesOf(std::int64_t count) {
  return (count + Layout::kPerByte - 1) / Layout::kPerByte;
}

/// Returns the value in a whole block that is part `part` of byte `byte`. The last block of a
/// message has value part * bytes + byte there, where `bytes` are its bytes.
template <typename Layout>
HVD_SPARSE_INLINE std::int64_t PlaceOf(std::int64_t byte, std::int64_t part) {
  return Layout::FieldOf(byte % 4, part) * Layout::kWords + byte / 4;
}

/// The last block of a message, its values where a whole block has the same fields of the same
/// bytes, among zeros.
///
/// `Layout` is a whole block's: it has kWords words, kPerByte values in a byte, and FieldOf(byte,
/// part) tells which field of a word is part `part` of its byte `byte`.
template <typename Layout>
class LastBlock {
 public:
  explicit LastBlock(std::int64_t count) : bytes(BytesOf<Layout>(count)), count_(count) {}

  void CopyFrom(const float* from) {
    ForAll([&](std::int64_t i, std::int64_t place) { values[place] = from[i]; });
  }
  void CopyTo(float* to) const {
    ForAll([&](std::int64_t i, std::int64_t place) { to[i] = values[place]; });
  }

  const std::int64_t bytes;  ///< of the codes of these values
  float values[4 * Layout::kPerByte * Layout::kWords] = {};

 private:
  template <typename Move>
  void ForAll(Move move) const {
    for (std::int64_t i = 0; i < count_; ++i) {
      move(i, PlaceOf<Layout>(i % bytes, i / bytes));
    }
  }

  const std::int64_t count_;
};

}  // namespace hvd_sparse
