#include "csrc/wire/value_coding.h"

#include <algorithm>
#include <cstring>

#include "csrc/kernels/cpu_dense.h"
#include "csrc/wire/binary_values.h"
#include "csrc/wire/narrow_floats.h"
#include "csrc/wire/scaled_values.h"

namespace hvd_sparse {
namespace {

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
    case Values::kInt8:
      return RoundToInt8(values, count, errors);
    case Values::kInt4:
      return RoundToInt4(values, count, errors);
    case Values::kBinary:
      return RoundToBinary(values, count, errors);
    case Values::kTernary:
      break;
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
    case Values::kInt8:
      return EncodeInt8(values, count, code);
    case Values::kInt4:
      return EncodeInt4(values, count, code);
    case Values::kBinary:
      return EncodeBinary(values, count, code);
    case Values::kTernary:
      break;
  }
  RefuseType(type);
}

std::int64_t CountNotCarried(Values type, Span<const float> values) {
  const float largest = LargestCarried(type);
  return largest < FLT_MAX ? cpu::CountAbove(values, largest) : 0;
}

bool AreFinite(const float* values, std::int64_t count) { return AllFinite(values, count); }

bool DecodeValues(Values type, const std::uint8_t* code, std::int64_t count, float* values) {
  switch (type) {
    case Values::kFloat32:
      std::memcpy(values, code, sizeof(float) * static_cast<std::size_t>(count));
      return true;
    case Values::kFloat16:
      DecodeFloat16(code, count, values);
      return true;
    case Values::kBFloat16:
      DecodeBFloat16(code, count, values);
      return true;
    case Values::kInt8:
      return DecodeInt8Values(code, count, values);
    case Values::kInt4:
      return DecodeInt4Values(code, count, values);
    case Values::kBinary:
      return DecodeBinary(code, count, values);
    case Values::kTernary:
      break;
  }
  RefuseType(type);
}

}  // namespace hvd_sparse
