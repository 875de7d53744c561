#include "csrc/wire/value_coding.h"

#include <algorithm>
#include <cstring>

#include "csrc/base/error.h"
#include "csrc/kernels/half.h"

namespace hvd_sparse {
namespace {

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
  const std::uint32_t above = std::max(magnitude >> 23, kExponent) - kExponent;
  const std::uint32_t shift = std::min(above, 23u);
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

template <typename T>
HVD_SPARSE_INLINE void Round(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] = BitsFloat(RoundedBits<T>(FloatBits(values[i])));
  }
}

template <typename T>
HVD_SPARSE_INLINE void RoundWithErrors(float* __restrict values, std::int64_t count,
                                       float* __restrict errors) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = values[i], rounded = BitsFloat(RoundedBits<T>(FloatBits(value)));
    const bool is_finite = (FloatBits(value) & kInfinity) != kInfinity;
    errors[i] = BitsFloat(Choose(is_finite, FloatBits(value - rounded), 0));
    values[i] = rounded;
  }
}

template <typename T>
HVD_SPARSE_INLINE bool Encode(const float* __restrict values, std::int64_t count,
                              std::uint8_t* __restrict code) {
  std::uint32_t lost = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = FloatBits(values[i]);
    lost |= RoundedBits<T>(bits) ^ bits;
    const auto packed = static_cast<std::uint16_t>(PackedBits<T>(bits));
    std::memcpy(code + 2 * i, &packed, sizeof(packed));
  }
  return lost == 0;
}

template <typename T>
HVD_SPARSE_INLINE void Decode(const std::uint8_t* __restrict code, std::int64_t count,
                              float* __restrict values) {
  for (std::int64_t i = 0; i < count; ++i) {
    T narrow;
    std::memcpy(&narrow.bits, code + 2 * i, sizeof(narrow.bits));
    values[i] = Widen(narrow);
  }
}

HVD_SPARSE_CLONES void RoundToBFloat16(float* values, std::int64_t count) {
  Round<BFloat16>(values, count);
}
HVD_SPARSE_CLONES void RoundToFloat16(float* values, std::int64_t count) {
  Round<Float16>(values, count);
}
HVD_SPARSE_CLONES void SplitToBFloat16(float* values, std::int64_t count, float* errors) {
  RoundWithErrors<BFloat16>(values, count, errors);
}
HVD_SPARSE_CLONES void SplitToFloat16(float* values, std::int64_t count, float* errors) {
  RoundWithErrors<Float16>(values, count, errors);
}
HVD_SPARSE_CLONES bool EncodeBFloat16(const float* values, std::int64_t count, std::uint8_t* code) {
  return Encode<BFloat16>(values, count, code);
}
HVD_SPARSE_CLONES bool EncodeFloat16(const float* values, std::int64_t count, std::uint8_t* code) {
  return Encode<Float16>(values, count, code);
}
HVD_SPARSE_CLONES void DecodeBFloat16(const std::uint8_t* code, std::int64_t count, float* values) {
  Decode<BFloat16>(code, count, values);
}
HVD_SPARSE_CLONES void DecodeFloat16(const std::uint8_t* code, std::int64_t count, float* values) {
  Decode<Float16>(code, count, values);
}

/// Has no early return, which would keep the loop from being vectorised.
HVD_SPARSE_CLONES bool AllFinite(const float* values, std::int64_t count) {
  std::uint32_t special = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    special |= static_cast<std::uint32_t>((FloatBits(values[i]) & ~kSign) >= kInfinity);
  }
  return special == 0;
}

[[noreturn]] void RefuseType(Values type) {
  Throw(ErrorKind::kInvalidArgument, "no value is sent as number ",
        int{static_cast<std::uint8_t>(type)});
}

}  // namespace

void RoundValues(Values type, float* values, std::int64_t count, float* errors) {
  switch (type) {
    case Values::kFloat32:
      if (errors != nullptr) std::fill_n(errors, count, 0.0f);
      return;
    case Values::kFloat16:
      return errors == nullptr ? RoundToFloat16(values, count)
                               : SplitToFloat16(values, count, errors);
    case Values::kBFloat16:
      return errors == nullptr ? RoundToBFloat16(values, count)
                               : SplitToBFloat16(values, count, errors);
  }
  RefuseType(type);
}

bool EncodeValues(Values type, const float* values, std::int64_t count, std::uint8_t* code) {
  switch (type) {
    case Values::kFloat32:
      std::memcpy(code, values, sizeof(float) * static_cast<std::size_t>(count));
      return true;
    case Values::kFloat16:
      return EncodeFloat16(values, count, code);
    case Values::kBFloat16:
      return EncodeBFloat16(values, count, code);
  }
  RefuseType(type);
}

bool AreFinite(const float* values, std::int64_t count) { return AllFinite(values, count); }

void DecodeValues(Values type, const std::uint8_t* code, std::int64_t count, float* values) {
  switch (type) {
    case Values::kFloat32:
      std::memcpy(values, code, sizeof(float) * static_cast<std::size_t>(count));
      return;
    case Values::kFloat16:
      return DecodeFloat16(code, count, values);
    case Values::kBFloat16:
      return DecodeBFloat16(code, count, values);
  }
  RefuseType(type);
}

}  // namespace hvd_sparse
