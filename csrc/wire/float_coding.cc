#include "csrc/wire/float_coding.h"

#include <algorithm>
#include <cstring>

#include "csrc/wire/magnitudes.h"
#include "csrc/wire/narrow_floats.h"
#include "csrc/wire/values.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace hvd_sparse {
namespace {

/// Returns RoundedBits of a finite value.
HVD_SPARSE_INLINE std::uint32_t FiniteBFloat16Bits(std::uint32_t bits) {
  const std::uint32_t magnitude = bits & ~kSign, odd = magnitude >> 16 & 1u;
  // A magnitude that would be rounded to infinity is cut.
  const std::uint32_t rounded = std::min(magnitude + 0x7fffu + odd, kInfinity - 1) & 0xffff0000u;
  return Signed(rounded, bits & kSign);
}

/// Writes value i as the upper half of `rounded`, and replaces it by its error.
HVD_SPARSE_INLINE void TakeAt(float* values, std::int64_t i, std::uint32_t rounded,
                              std::uint32_t packed, std::uint8_t* code) {
  const auto narrow = static_cast<std::uint16_t>(packed);
  std::memcpy(code + 2 * i, &narrow, sizeof(narrow));
  values[i] -= BitsFloat(rounded);
}

/// Reads number i of a code.
template <typename T>
HVD_SPARSE_INLINE float NumberAt(const std::uint8_t* code, std::int64_t i) {
  T number;
  std::memcpy(&number, code + static_cast<std::int64_t>(sizeof(T)) * i, sizeof(T));
  return Widen(number);
}

template <typename T, bool kAdds>
HVD_SPARSE_INLINE bool Decode(const std::uint8_t* __restrict code, Span<float> out) {
  float* __restrict const at = out.data;
  std::uint32_t special = 0;
  for (std::int64_t i = 0; i < out.size; ++i) {
    const float value = NumberAt<T>(code, i);
    special |= static_cast<std::uint32_t>((FloatBits(value) & kInfinity) == kInfinity);
    at[i] = kAdds ? at[i] + value : value;
  }
  return special == 0;
}

HVD_SPARSE_CLONES void TakeAnyFloat16(Span<float> values, std::uint8_t* __restrict code) {
  float* __restrict const at = values.data;
  for (std::int64_t i = 0; i < values.size; ++i) {
    const std::uint32_t rounded = RoundedBits<Float16>(FloatBits(at[i]));
    TakeAt(at, i, rounded, PackedBits<Float16>(rounded), code);
  }
}
HVD_SPARSE_CLONES bool DecodeAnyFloat16(const std::uint8_t* code, Span<float> out) {
  return Decode<Float16, false>(code, out);
}
HVD_SPARSE_CLONES bool AddAnyFloat16(const std::uint8_t* code, Span<float> sum) {
  return Decode<Float16, true>(code, sum);
}

#if defined(__x86_64__)
#define HVD_SPARSE_F16C __attribute__((target("avx2,f16c")))

/// Returns true if the processor converts float16, 8 numbers at once. All that have AVX2 do, but
/// not every virtual machine says so.
bool HasF16c() {
  static const bool has = [] {
    unsigned eax, ebx, ecx, edx;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
           (ecx & bit_F16C) != 0;
  }();
  return has;
}

/// Takes a multiple of 8 values that round to finite numbers.
HVD_SPARSE_F16C void TakeInstantly(float* values, std::int64_t count, std::uint8_t* code) {
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
template <bool kAdds>
HVD_SPARSE_F16C bool DecodeInstantly(const std::uint8_t* code, std::int64_t count, float* out) {
  const __m128i exponent = _mm_set1_epi16(0x7c00);
  __m128i special = _mm_setzero_si128();
  for (std::int64_t i = 0; i < count; i += 8) {
    const __m128i number = _mm_loadu_si128(reinterpret_cast<const __m128i*>(code + 2 * i));
    special = _mm_or_si128(special, _mm_cmpeq_epi16(_mm_and_si128(number, exponent), exponent));
    __m256 value = _mm256_cvtph_ps(number);
    if (kAdds) value = _mm256_add_ps(_mm256_loadu_ps(out + i), value);
    _mm256_storeu_ps(out + i, value);
  }
  return _mm_movemask_epi8(special) == 0;
}

#else

bool HasF16c() { return false; }
void TakeInstantly(float*, std::int64_t, std::uint8_t*) {}
template <bool kAdds>
bool DecodeInstantly(const std::uint8_t*, std::int64_t, float*) {
  return true;
}

#endif

/// Returns how many of `count` numbers are converted 8 at once.
std::int64_t InEights(std::int64_t count) { return HasF16c() ? count / 8 * 8 : 0; }

template <bool kAdds>
bool DecodeFloat16As(const std::uint8_t* code, Span<float> out) {
  const std::int64_t eights = InEights(out.size);
  const Span<float> rest = out.Sub(eights, out.size - eights);
  const bool all = DecodeInstantly<kAdds>(code, eights, out.data);
  return (kAdds ? AddAnyFloat16 : DecodeAnyFloat16)(code + 2 * eights, rest) && all;
}

}  // namespace

HVD_SPARSE_CLONES bool TakeFloat32(Span<float> values, std::uint8_t* __restrict code) {
  float* __restrict const at = values.data;
  for (std::int64_t i = 0; i < values.size; ++i) {
    std::memcpy(code + 4 * i, at + i, sizeof(float));
    at[i] = 0;
  }
  return true;
}

bool TakeFloat16(Span<float> values, std::uint8_t* code) {
  constexpr float kTooLarge = 65520;    // becomes infinite
  constexpr std::int64_t kTile = 1024;  // read twice, once from the nearest cache
  bool all = true;
  for (std::int64_t begin = 0; begin < values.size; begin += kTile) {
    const Span<float> tile = values.Sub(begin, std::min(kTile, values.size - begin));
    const float largest = LargestOf(tile);
    const std::int64_t eights = largest < kTooLarge ? InEights(tile.size) : 0;
    all = all && largest <= LargestCarried(Values::kFloat16);
    TakeInstantly(tile.data, eights, code + 2 * begin);
    TakeAnyFloat16(tile.Sub(eights, tile.size - eights), code + 2 * (begin + eights));
  }
  return all;
}

HVD_SPARSE_CLONES bool TakeBFloat16(Span<float> values, std::uint8_t* __restrict code) {
  float* __restrict const at = values.data;
  for (std::int64_t i = 0; i < values.size; ++i) {
    const std::uint32_t rounded = FiniteBFloat16Bits(FloatBits(at[i]));
    TakeAt(at, i, rounded, rounded >> 16, code);
  }
  return true;
}

HVD_SPARSE_CLONES bool DecodeFloat32(const std::uint8_t* code, Span<float> out) {
  return Decode<float, false>(code, out);
}
bool DecodeFloat16(const std::uint8_t* code, Span<float> out) {
  return DecodeFloat16As<false>(code, out);
}
HVD_SPARSE_CLONES bool DecodeBFloat16(const std::uint8_t* code, Span<float> out) {
  return Decode<BFloat16, false>(code, out);
}
HVD_SPARSE_CLONES bool AddFloat32(const std::uint8_t* code, Span<float> sum) {
  return Decode<float, true>(code, sum);
}
bool AddFloat16(const std::uint8_t* code, Span<float> sum) {
  return DecodeFloat16As<true>(code, sum);
}
HVD_SPARSE_CLONES bool AddBFloat16(const std::uint8_t* code, Span<float> sum) {
  return Decode<BFloat16, true>(code, sum);
}

}  // namespace hvd_sparse
