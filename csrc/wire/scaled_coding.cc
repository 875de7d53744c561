#include "csrc/wire/scaled_coding.h"

#include <algorithm>

#include "csrc/kernels/half.h"
#include "csrc/wire/fields.h"
#include "csrc/wire/magnitudes.h"
#include "csrc/wire/values.h"

namespace hvd_sparse {
namespace {

/// A type of integers.
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
  static constexpr std::int64_t FieldOf(std::int64_t byte, std::int64_t part) {
    return kPerByte * byte + part;
  }
};

using Int8 = Integer<8>;
using Int4 = Integer<4>;

constexpr std::uint32_t kRounded = 0x4b000000u;  // the bits of 2^23, which precede a code

/// Exponents that are computed before their blocks are coded. Each depends on a whole block, and
/// the processor computes several at once only if they follow each other.
constexpr std::int64_t kExponents = 16;

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
  return std::clamp(e, T::kLeastExponent, T::kMostExponent);
}

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
    StoreWord(word, code + 4 * j);
  }
}

template <typename T>
HVD_SPARSE_INLINE void TakeBlock(int exponent, float* values, std::uint8_t* code) {
  *code = static_cast<std::uint8_t>(exponent);
  exponent == T::kMostExponent ? TakeWords<T, true>(exponent, values, code + 1)
                               : TakeWords<T, false>(exponent, values, code + 1);
}

template <typename T>
HVD_SPARSE_INLINE void Take(Span<float> values, std::uint8_t* code) {
  int exponents[kExponents];
  const std::int64_t whole = values.size / kScaledBlock;
  float* block = values.data;
  for (std::int64_t left = whole; left > 0; left -= kExponents) {
    const std::int64_t blocks = std::min(left, kExponents);
    for (std::int64_t b = 0; b < blocks; ++b) {
      exponents[b] = ExponentOf<T>(LargestMagnitude(block + b * kScaledBlock, kScaledBlock));
    }
    for (std::int64_t b = 0; b < blocks; ++b) {
      TakeBlock<T>(exponents[b], block, code);
      block += kScaledBlock;
      code += 1 + 4 * T::kWords;
    }
  }
  const std::int64_t rest = values.size % kScaledBlock;
  if (rest == 0) return;
  LastBlock<T> last(rest);
  last.CopyFrom(block);
  std::uint8_t padded[1 + 4 * T::kWords];
  TakeBlock<T>(ExponentOf<T>(LargestMagnitude(last.values, kScaledBlock)), last.values, padded);
  std::copy_n(padded, 1 + last.bytes, code);
  last.CopyTo(block);
}

/// Decodes a whole block. Returns zero if all of it was a code.
template <typename T, bool kAdds>
HVD_SPARSE_INLINE std::uint32_t DecodeBlock(const std::uint8_t* __restrict code,
                                            float* __restrict out) {
  const int exponent = static_cast<std::int8_t>(*code++);
  const float scale = PowerOfTwo(exponent);
  std::uint32_t bad = 0;
  for (std::int64_t j = 0; j < T::kWords; ++j) {
    const std::uint32_t word = LoadWord(code + 4 * j);
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
  return (bad & T::kOnes << (T::kBits - 1)) | static_cast<std::uint32_t>(!in_range);
}

template <typename T, bool kAdds>
HVD_SPARSE_INLINE bool Decode(const std::uint8_t* code, Span<float> out) {
  std::uint32_t bad = 0;
  float* block = out.data;
  for (std::int64_t left = out.size / kScaledBlock; left > 0; --left) {
    bad |= DecodeBlock<T, kAdds>(code, block);
    block += kScaledBlock;
    code += 1 + 4 * T::kWords;
  }
  const std::int64_t rest = out.size % kScaledBlock;
  if (rest == 0) return bad == 0;
  LastBlock<T> last(rest);
  if (kAdds) last.CopyFrom(block);
  std::uint8_t padded[1 + 4 * T::kWords];
  std::fill_n(padded, sizeof(padded), std::uint8_t{0xff});  // is a code
  std::copy_n(code, 1 + last.bytes, padded);
  bad |= DecodeBlock<T, kAdds>(padded, last.values);
  last.CopyTo(block);
  return bad == 0;
}

}  // namespace

HVD_SPARSE_CLONES void TakeInt8(Span<float> values, std::uint8_t* code) {
  Take<Int8>(values, code);
}
HVD_SPARSE_CLONES void TakeInt4(Span<float> values, std::uint8_t* code) {
  Take<Int4>(values, code);
}
HVD_SPARSE_CLONES bool DecodeInt8(const std::uint8_t* code, Span<float> out) {
  return Decode<Int8, false>(code, out);
}
HVD_SPARSE_CLONES bool DecodeInt4(const std::uint8_t* code, Span<float> out) {
  return Decode<Int4, false>(code, out);
}
HVD_SPARSE_CLONES bool AddInt8(const std::uint8_t* code, Span<float> sum) {
  return Decode<Int8, true>(code, sum);
}
HVD_SPARSE_CLONES bool AddInt4(const std::uint8_t* code, Span<float> sum) {
  return Decode<Int4, true>(code, sum);
}

}  // namespace hvd_sparse
