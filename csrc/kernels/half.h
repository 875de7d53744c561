/// Conversions between float32 and float16 or bfloat16 as bits, rounding to nearest, ties to even.
///
/// They have no branches, so that loops over them are vectorised. float16 is converted after F.
/// Giesen, "Float->half variants" (https://gist.github.com/rygorous/2156668): adding a magic number
/// lets the float adder round subnormal results.

#pragma once

#include <cstdint>
#include <cstring>

#include "csrc/kernels/clones.h"

namespace hvd_sparse {

HVD_SPARSE_INLINE std::uint32_t FloatBits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

HVD_SPARSE_INLINE float BitsFloat(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// Return the larger or the smaller of two numbers, on GPUs, too.
template <typename T>
HVD_SPARSE_INLINE T Larger(T a, T b) {
  return a < b ? b : a;
}
template <typename T>
HVD_SPARSE_INLINE T Smaller(T a, T b) {
  return b < a ? b : a;
}

/// IEEE 754 binary16.
struct Float16 {
  std::uint16_t bits;
};

/// The upper half of a float32.
struct BFloat16 {
  std::uint16_t bits;
};

HVD_SPARSE_INLINE float Widen(float value) { return value; }

/// Values beyond float32 become infinite.
HVD_SPARSE_INLINE float Widen(double value) { return static_cast<float>(value); }

HVD_SPARSE_INLINE float Widen(BFloat16 value) {
  return BitsFloat(static_cast<std::uint32_t>(value.bits) << 16);
}

HVD_SPARSE_INLINE float Widen(Float16 value) {
  constexpr std::uint32_t kExponent = 0x7c00u << 13;  // float16's exponent bits, shifted into place
  const std::uint32_t magnitude = (value.bits & 0x7fffu) << 13;
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = magnitude & kExponent;
  const std::uint32_t normal = magnitude + ((127u - 15u) << 23);
  const std::uint32_t special = normal + ((128u - 16u) << 23);  // infinity, NaN
  const std::uint32_t subnormal = FloatBits(BitsFloat(normal + (1u << 23)) - BitsFloat(113u << 23));
  const std::uint32_t widened =
      exponent == kExponent ? special : (exponent == 0 ? subnormal : normal);
  return BitsFloat(widened | sign);
}

template <typename T>
T Narrow(float value);

template <>
HVD_SPARSE_INLINE float Narrow<float>(float value) {
  return value;
}

template <>
HVD_SPARSE_INLINE double Narrow<double>(float value) {
  return value;
}

template <>
HVD_SPARSE_INLINE BFloat16 Narrow<BFloat16>(float value) {
  const std::uint32_t bits = FloatBits(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<std::uint16_t>(is_nan ? 0x7fc0u : rounded)};
}

template <>
HVD_SPARSE_INLINE Float16 Narrow<Float16>(float value) {
  constexpr std::uint32_t kInfinity = 255u << 23;
  constexpr std::uint32_t kOverflow = (127u + 16u) << 23;  // 65536, which becomes infinite
  constexpr std::uint32_t kSmallestNormal = 113u << 23;    // 2^-14
  constexpr std::uint32_t kMagic = ((127u - 15u) + (23u - 10u) + 1u) << 23;
  const std::uint32_t bits = FloatBits(value);
  const std::uint32_t sign = bits & 0x80000000u;
  const std::uint32_t magnitude = bits ^ sign;
  const std::uint32_t special = magnitude > kInfinity ? 0x7e00u : 0x7c00u;
  const std::uint32_t subnormal = FloatBits(BitsFloat(magnitude) + BitsFloat(kMagic)) - kMagic;
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  const std::uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + odd) >> 13;
  const std::uint32_t narrowed =
      magnitude >= kOverflow ? special : (magnitude < kSmallestNormal ? subnormal : normal);
  return {static_cast<std::uint16_t>(narrowed | (sign >> 16))};
}

/// Returns the largest finite value of type T.
template <typename T>
float Largest();

template <>
HVD_SPARSE_INLINE float Largest<float>() {
  return BitsFloat(0x7f7fffffu);
}

template <>
HVD_SPARSE_INLINE float Largest<BFloat16>() {
  return BitsFloat(0x7f7f0000u);
}

template <>
HVD_SPARSE_INLINE float Largest<Float16>() {
  return 65504.0f;
}

}  // namespace hvd_sparse
