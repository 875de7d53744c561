/// float32, float16 and bfloat16 numbers, one after the other.
/// They need no alignment. Values are rounded as RoundValues says.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "csrc/base/types.h"
#include "csrc/wire/codes.h"
#include "csrc/wire/values.h"
#include "csrc/wire/words.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define HVD_SPARSE_F16C __attribute__((target("avx2,f16c")))
#endif

namespace hvd_sparse {

// ---- float16, 8 numbers at once
// ------------------------------------------------------------------

#if defined(__x86_64__)

/// Returns true if the processor converts float16, 8 numbers at once. All that have AVX2 do, but
/// not every virtual machine says so.
inline bool HasF16c() {
  static const bool has = [] {
    unsigned eax, ebx, ecx, edx;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
           (ecx & bit_F16C) != 0;
  }();
  return has;
}

/// Takes a multiple of 8 values that round to finite numbers.
HVD_SPARSE_F16C inline void TakeEights(float* values, std::int64_t count, std::uint8_t* code) {
  const __m128i minus_zero = _mm_set1_epi16(static_cast<short>(0x8000));
  for (std::int64_t i = 0; i < count; i += 8) {
    const __m256 value = _mm256_loadu_ps(values + i);
    const __m128i signed_zeros = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
    const __m128i number =
        _mm_andnot_si128(_mm_cmpeq_epi16(signed_zeros, minus_zero), signed_zeros);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(code + 2 * i), number);
    _mm256_storeu_ps(values + i, _mm256_sub_ps(value, _mm256_cvtph_ps(number)));
  }
}

/// Decodes a multiple of 8 numbers; returns true if all are finite.
template <Into kInto>
HVD_SPARSE_F16C bool DecodeEights(const std::uint8_t* code, std::int64_t count, float* out) {
  const __m128i exponent = _mm_set1_epi16(0x7c00);
  __m128i special = _mm_setzero_si128();
  for (std::int64_t i = 0; i < count; i += 8) {
    const __m128i number = _mm_loadu_si128(reinterpret_cast<const __m128i*>(code + 2 * i));
    special = _mm_or_si128(special, _mm_cmpeq_epi16(_mm_and_si128(number, exponent), exponent));
    __m256 value = _mm256_cvtph_ps(number);
    if (kInto == Into::kSum) value = _mm256_add_ps(_mm256_loadu_ps(out + i), value);
    _mm256_storeu_ps(out + i, value);
  }
  return _mm_movemask_epi8(special) == 0;
}

#else

inline bool HasF16c() { return false; }
inline void TakeEights(float*, std::int64_t, std::uint8_t*) {}
template <Into kInto>
bool DecodeEights(const std::uint8_t*, std::int64_t, float*) {
  return true;
}

#endif

// ---- All three types
// -----------------------------------------------------------------------------

/// The coder of numbers of type T.
template <typename T>
class FloatCoder {
 public:
  static HVD_SPARSE_INLINE bool Take(Span<float> values, std::uint8_t* code) {
    if constexpr (!kIsFloat16) {
      TakeEach(values, code);
      return true;
    }
    constexpr float kTooLarge = 65520;    // becomes infinite
    constexpr std::int64_t kTile = 1024;  // read twice, once from the nearest cache
    bool all = true;
    for (std::int64_t begin = 0; begin < values.size; begin += kTile) {
      const Span<float> tile = values.Sub(begin, std::min(kTile, values.size - begin));
      const float largest = BitsFloat(LargestMagnitude(tile.data, tile.size));
      const std::int64_t eights = largest < kTooLarge ? InEights(tile.size) : 0;
      all = all && largest <= LargestCarried(Values::kFloat16);
      TakeEights(tile.data, eights, code + 2 * begin);
      TakeEach(tile.Sub(eights, tile.size - eights), code + 2 * (begin + eights));
    }
    return all;
  }

  template <Into kInto>
  static HVD_SPARSE_INLINE bool Decode(const std::uint8_t* code, Span<float> out) {
    if constexpr (kIsFloat32 && kInto == Into::kBlock) {
      std::memcpy(out.data, code, sizeof(T) * static_cast<std::size_t>(out.size));
      return true;
    }
    if constexpr (!kIsFloat16) return DecodeEach<kInto>(code, out);
    const std::int64_t eights = InEights(out.size);
    const bool all = DecodeEights<kInto>(code, eights, out.data) || kInto == Into::kBlock;
    return DecodeEach<kInto>(code + 2 * eights, out.Sub(eights, out.size - eights)) && all;
  }

  static HVD_SPARSE_INLINE void Round(Span<float> values, float* __restrict errors) {
    float* __restrict const at = values.data;
    if (kIsFloat32 && errors != nullptr) std::fill_n(errors, values.size, 0.0f);
    if (kIsFloat32) return;
    if (errors == nullptr) {
      for (std::int64_t i = 0; i < values.size; ++i) {
        at[i] = BitsFloat(RoundedBits<T>(FloatBits(at[i])));
      }
      return;
    }
    for (std::int64_t i = 0; i < values.size; ++i) {
      const float value = at[i], rounded = BitsFloat(RoundedBits<T>(FloatBits(value)));
      errors[i] = BitsFloat(Choose(IsFiniteNumber(value), FloatBits(value - rounded), 0));
      at[i] = rounded;
    }
  }

  static HVD_SPARSE_INLINE bool Encode(Span<const float> values, std::uint8_t* __restrict code) {
    const float* __restrict const at = values.data;
    if (kIsFloat32) {
      std::memcpy(code, at, sizeof(T) * static_cast<std::size_t>(values.size));
      return true;
    }
    std::uint32_t lost = 0;
    for (std::int64_t i = 0; i < values.size; ++i) {
      const std::uint32_t bits = FloatBits(at[i]);
      lost |= RoundedBits<T>(bits) ^ bits;
      Write(PackedBits<T>(bits), i, code);
    }
    return lost == 0;
  }

 private:
  static constexpr bool kIsFloat16 = std::is_same_v<T, Float16>;
  static constexpr bool kIsFloat32 = std::is_same_v<T, float>;  // of which nothing is lost
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;

  /// Returns how many of `count` numbers are converted 8 at once.
  static std::int64_t InEights(std::int64_t count) { return HasF16c() ? count / 8 * 8 : 0; }

  static HVD_SPARSE_INLINE void Write(std::uint32_t packed, std::int64_t i, std::uint8_t* code) {
    Store(static_cast<Word>(packed), code + static_cast<std::int64_t>(sizeof(Word)) * i);
  }

  /// Returns RoundedBits of a finite value, for bfloat16 in fewer steps.
  static HVD_SPARSE_INLINE std::uint32_t FiniteBits(std::uint32_t bits) {
    if constexpr (!std::is_same_v<T, BFloat16>) return RoundedBits<T>(bits);
    const std::uint32_t magnitude = bits & ~kSign, odd = magnitude >> 16 & 1u;
    // A magnitude that would be rounded to infinity is cut.
    const std::uint32_t rounded = std::min(magnitude + 0x7fffu + odd, kInfinity - 1) & 0xffff0000u;
    return Signed(rounded, bits & kSign);
  }

  static HVD_SPARSE_INLINE void TakeEach(Span<float> values, std::uint8_t* __restrict code) {
    float* __restrict const at = values.data;
    for (std::int64_t i = 0; i < values.size; ++i) {
      const std::uint32_t rounded = FiniteBits(FloatBits(at[i]));
      Write(PackedBits<T>(rounded), i, code);
      at[i] = kIsFloat32 ? 0 : at[i] - BitsFloat(rounded);
    }
  }

  template <Into kInto>
  static HVD_SPARSE_INLINE bool DecodeEach(const std::uint8_t* __restrict code, Span<float> out) {
    float* __restrict const at = out.data;
    std::uint32_t special = 0;
    for (std::int64_t i = 0; i < out.size; ++i) {
      T number;
      std::memcpy(&number, code + static_cast<std::int64_t>(sizeof(T)) * i, sizeof(T));
      const float value = Widen(number);
      special |= static_cast<std::uint32_t>(!IsFiniteNumber(value));
      at[i] = kInto == Into::kSum ? at[i] + value : value;
    }
    return special == 0 || kInto == Into::kBlock;
  }
};

}  // namespace hvd_sparse
