#include "csrc/wire/value_coding.h"

#include <algorithm>
#include <cstring>

#include "csrc/base/error.h"
#include "csrc/kernels/half.h"

namespace hvd_sparse {
namespace {

constexpr std::uint32_t kSign = 0x80000000u, kInfinity = 0x7f800000u;

HVD_SPARSE_INLINE bool IsFinite(float value) { return (FloatBits(value) & kInfinity) != kInfinity; }

/// What a finite value becomes that lies beyond the largest number of the type.
template <typename T>
float Largest(float value);

/// Cutting instead of rounding: the lower half of the bits is the error.
template <>
HVD_SPARSE_INLINE float Largest<BFloat16>(float value) {
  return BitsFloat(FloatBits(value) & 0xffff0000u);
}

/// 65504, or a little less: a difference of two float32 is exact where both are multiples of the
/// last place of the larger one.
template <>
HVD_SPARSE_INLINE float Largest<Float16>(float value) {
  constexpr std::uint32_t k65504 = 0x477fe000u, kExponent = k65504 >> 23;
  const std::uint32_t bits = FloatBits(value);
  const std::uint32_t above = std::max((bits & ~kSign) >> 23, kExponent) - kExponent;
  const std::uint32_t shift = std::min(above, 23u);
  const std::uint32_t cut = above > 23 ? 0 : k65504 >> shift << shift;
  return BitsFloat(cut | (bits & kSign));
}

template <typename T>
HVD_SPARSE_INLINE float Rounded(float value) {
  const float rounded = Widen(Narrow<T>(value));
  const float largest = Largest<T>(value);
  return IsFinite(value) & !IsFinite(rounded) ? largest : rounded;
}

template <typename T>
HVD_SPARSE_INLINE void Round(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = Rounded<T>(values[i]);
}

template <typename T>
HVD_SPARSE_INLINE void RoundWithErrors(float* __restrict values, std::int64_t count,
                                       float* __restrict errors) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = values[i], rounded = Rounded<T>(value);
    const float error = value - rounded;
    errors[i] = IsFinite(value) ? error : 0.0f;
    values[i] = rounded;
  }
}

template <typename T>
HVD_SPARSE_INLINE bool Encode(const float* __restrict values, std::int64_t count,
                              std::uint8_t* __restrict code) {
  std::uint32_t lost = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const T narrow = Narrow<T>(values[i]);
    lost |= FloatBits(Widen(narrow)) ^ FloatBits(values[i]);
    std::memcpy(code + 2 * i, &narrow.bits, sizeof(narrow.bits));
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

[[noreturn]] void RefuseDType() {
  Throw(ErrorKind::kInvalidArgument, "values travel as float32, float16 or bfloat16, not float64");
}

}  // namespace

void RoundValues(DType dtype, float* values, std::int64_t count, float* errors) {
  switch (dtype) {
    case DType::kFloat32:
      if (errors != nullptr) std::fill_n(errors, count, 0.0f);
      return;
    case DType::kFloat16:
      return errors == nullptr ? RoundToFloat16(values, count)
                               : SplitToFloat16(values, count, errors);
    case DType::kBFloat16:
      return errors == nullptr ? RoundToBFloat16(values, count)
                               : SplitToBFloat16(values, count, errors);
    case DType::kFloat64:
      break;
  }
  RefuseDType();
}

bool EncodeValues(DType dtype, const float* values, std::int64_t count, std::uint8_t* code) {
  switch (dtype) {
    case DType::kFloat32:
      std::memcpy(code, values, sizeof(float) * static_cast<std::size_t>(count));
      return true;
    case DType::kFloat16:
      return EncodeFloat16(values, count, code);
    case DType::kBFloat16:
      return EncodeBFloat16(values, count, code);
    case DType::kFloat64:
      break;
  }
  RefuseDType();
}

void DecodeValues(DType dtype, const std::uint8_t* code, std::int64_t count, float* values) {
  switch (dtype) {
    case DType::kFloat32:
      std::memcpy(values, code, sizeof(float) * static_cast<std::size_t>(count));
      return;
    case DType::kFloat16:
      return DecodeFloat16(code, count, values);
    case DType::kBFloat16:
      return DecodeBFloat16(code, count, values);
    case DType::kFloat64:
      break;
  }
  RefuseDType();
}

}  // namespace hvd_sparse
