/// The numbers of float16 and bfloat16 to which values on the wire round, as bits of float32 and as
/// 16 bits. half.h has the rounding of gradients, which may overflow.

#ifndef HVD_SPARSE_WIRE_NARROW_FLOATS_H_
#define HVD_SPARSE_WIRE_NARROW_FLOATS_H_

#include <cstdint>

#include "csrc/kernels/half.h"

namespace hvd_sparse {

constexpr std::uint32_t kSign = 0x80000000u, kInfinity = 0x7f800000u, kNaN = 0x7fc00000u;

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
/// numbers as 16 bits.
template <typename T>
std::uint32_t RoundedBits(std::uint32_t bits);

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

/// Returns the 16 bits of a number that type T can represent.
template <typename T>
std::uint32_t PackedBits(std::uint32_t bits);

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

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_NARROW_FLOATS_H_
