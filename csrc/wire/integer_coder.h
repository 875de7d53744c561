/// Integers of 8 or 4 bits, in blocks of 64 with a common scale that is a power of two.
///
///     block: exponent e, 1 byte | codes, in the fields of codes.h         value = q 2^e
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

#pragma once

#include <algorithm>
#include <cstdint>

#include "csrc/base/types.h"
#include "csrc/wire/codes.h"
#include "csrc/wire/words.h"

namespace hvd_sparse {

/// The coder of Int8 or Int4.
///
/// Values of a sparse block share a scale by their place in it, so they have to be rounded again
/// once entries before them are gone or new.
template <typename T>
class IntegerCoder {
 public:
  static HVD_SPARSE_INLINE bool Take(Span<float> values, std::uint8_t* code) {
    // Each exponent depends on a whole block, and the processor computes several at once only if
    // they follow each other.
    constexpr std::int64_t kExponents = 16;
    int exponents[kExponents];
    float* block = values.data;
    for (std::int64_t left = values.size / kScaledBlock; left > 0; left -= kExponents) {
      const std::int64_t blocks = std::min(left, kExponents);
      for (std::int64_t b = 0; b < blocks; ++b) exponents[b] = Exponent(block + b * kScaledBlock);
      for (std::int64_t b = 0; b < blocks; ++b) {
        TakeFinite(exponents[b], block, code);
        block += kScaledBlock;
        code += kBytes;
      }
    }
    const std::int64_t rest = values.size % kScaledBlock;
    if (rest > 0) AsWholeBlock({block, rest}, code, TakeWhole{});
    return true;
  }

  template <Into kInto>
  static HVD_SPARSE_INLINE bool Decode(const std::uint8_t* code, Span<float> out) {
    bool valid = true;
    float* block = out.data;
    for (std::int64_t left = out.size / kScaledBlock; left > 0; --left) {
      valid &= DecodeBlock<kInto>(code, block);
      block += kScaledBlock;
      code += kBytes;
    }
    const std::int64_t rest = out.size % kScaledBlock;
    if (rest == 0) return valid;
    LastBlock<T> last(rest);
    if (kInto == Into::kSum) last.CopyFrom(block);
    std::uint8_t padded[kBytes];
    std::fill_n(padded, kBytes, std::uint8_t{0xff});  // is a code
    std::copy_n(code, 1 + last.bytes, padded);
    valid &= DecodeBlock<kInto>(padded, last.values);
    last.CopyTo(block);
    return valid;
  }

  static HVD_SPARSE_INLINE void Round(Span<float> values, float* errors) {
    for (std::int64_t begin = 0; begin < values.size; begin += kScaledBlock) {
      const std::int64_t size = std::min(kScaledBlock, values.size - begin);
      const Span<float> block = values.Sub(begin, size);
      float rest[kScaledBlock];
      std::uint8_t code[kBytes];
      RoundBlock(block, rest, code, block);
      if (errors != nullptr) std::copy_n(rest, size, errors + begin);
    }
  }

  static HVD_SPARSE_INLINE bool Encode(Span<const float> values, std::uint8_t* code) {
    std::uint32_t lost = 0;
    for (std::int64_t begin = 0; begin < values.size; begin += kScaledBlock, code += kBytes) {
      const std::int64_t size = std::min(kScaledBlock, values.size - begin);
      const Span<const float> block = values.Sub(begin, size);
      float rounded[kScaledBlock], rest[kScaledBlock];
      RoundBlock(block, rest, code, {rounded, size});
      for (std::int64_t i = 0; i < size; ++i) lost |= FloatBits(block[i]) ^ FloatBits(rounded[i]);
    }
    return lost == 0;
  }

 private:
  static constexpr std::int64_t kBytes = 1 + 4 * T::kWords;  ///< of a whole block's code
  static constexpr std::uint32_t kField = (1u << T::kBits) - 1;

  static HVD_SPARSE_INLINE int Exponent(const float* block) {
    return ExponentOf<T>(LargestMagnitude(block, kScaledBlock));
  }

  /// Takes values of a whole block. `kClamps`: q may lie beyond the largest code.
  template <bool kClamps>
  static HVD_SPARSE_INLINE void TakeWords(int exponent, float* __restrict values,
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
  static HVD_SPARSE_INLINE void TakeFinite(int exponent, float* values, std::uint8_t* code) {
    *code = static_cast<std::uint8_t>(exponent);
    exponent == T::kMostExponent ? TakeWords<true>(exponent, values, code + 1)
                                 : TakeWords<false>(exponent, values, code + 1);
  }

  struct TakeWhole {
    HVD_SPARSE_INLINE void operator()(float* values, std::uint8_t* code) const {
      TakeFinite(Exponent(values), values, code);
    }
  };

  /// Like TakeWhole, but values that are not finite have a code of zero and no error.
  static void TakeSpecial(float* values, std::uint8_t* code) {
    bool is_special[kScaledBlock];
    for (std::int64_t i = 0; i < kScaledBlock; ++i) {
      is_special[i] = !IsFiniteNumber(values[i]);
      if (is_special[i]) values[i] = 0;
    }
    TakeWhole{}(values, code);
    for (std::int64_t i = 0; i < kScaledBlock; ++i) {
      std::uint8_t* const at = WordOf(code, i);
      if (is_special[i]) Store(Load<std::uint32_t>(at) & ~(kField << ShiftOf(i)), at);
    }
  }

  /// Sets values to NaN whose codes in a whole block are zero.
  static void MarkSpecial(const std::uint8_t* code, float* values) {
    for (std::int64_t i = 0; i < kScaledBlock; ++i) {
      const auto word = Load<std::uint32_t>(WordOf(code, i));
      if ((word >> ShiftOf(i) & kField) == 0) values[i] = BitsFloat(kNaN);
    }
  }

  template <typename Byte>
  static Byte* WordOf(Byte* code, std::int64_t i) {
    return code + 1 + 4 * (i % T::kWords);
  }
  static int ShiftOf(std::int64_t i) { return static_cast<int>(T::kBits * (i / T::kWords)); }

  /// Decodes a whole block; returns false if it is none.
  template <Into kInto>
  static HVD_SPARSE_INLINE bool DecodeBlock(const std::uint8_t* __restrict code,
                                            float* __restrict out) {
    const int exponent = static_cast<std::int8_t>(*code);
    const float scale = PowerOfTwo(exponent);
    std::uint32_t zeros = 0;
    for (std::int64_t j = 0; j < T::kWords; ++j) {
      const std::uint32_t word = Load<std::uint32_t>(code + 1 + 4 * j);
      zeros |= (word - T::kOnes) & ~word;  // has the first bit of a field that is zero
#pragma GCC unroll 8
      for (int f = 0; f < T::kFields; ++f) {
        const std::uint32_t field = word >> (T::kBits * f) & kField;
        const float value = (BitsFloat(kRounded | field) - T::kRounder) * scale;
        float* const at = out + j + f * T::kWords;
        *at = kInto == Into::kSum ? *at + value : value;
      }
    }
    const bool in_range = T::kLeastExponent <= exponent && exponent <= T::kMostExponent;
    const bool has_zeros = (zeros & T::kOnes << (T::kBits - 1)) != 0;
    if constexpr (kInto != Into::kBlock) return in_range && !has_zeros;
    if (in_range && has_zeros) MarkSpecial(code, out);
    return in_range;
  }

  struct TakeAny {
    HVD_SPARSE_INLINE void operator()(float* values, std::uint8_t* code) const {
      const std::uint32_t largest = LargestMagnitude(values, kScaledBlock);
      if (largest >= kInfinity) return TakeSpecial(values, code);
      TakeFinite(ExponentOf<T>(largest), values, code);
    }
  };

  /// Calls take(values, code) for the last block of a message as if it were a whole one.
  template <typename TakeBlock>
  static HVD_SPARSE_INLINE void AsWholeBlock(Span<float> values, std::uint8_t* code,
                                             TakeBlock take) {
    LastBlock<T> last(values.size);
    std::uint8_t padded[kBytes];
    last.CopyFrom(values.data);
    take(last.values, padded);
    std::copy_n(padded, 1 + last.bytes, code);
    last.CopyTo(values.data);
  }

  /// Rounds at most kScaledBlock values. Writes their code, and their errors to `rest`, which has
  /// room for a whole block.
  static HVD_SPARSE_INLINE void RoundBlock(Span<const float> values, float* rest,
                                           std::uint8_t* code, Span<float> rounded) {
    std::copy_n(values.data, values.size, rest);
    if (values.size == kScaledBlock) {
      TakeAny{}(rest, code);
    } else {
      AsWholeBlock({rest, values.size}, code, TakeAny{});
    }
    Decode<Into::kBlock>(code, rounded);
  }
};

}  // namespace hvd_sparse
