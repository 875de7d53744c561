#include "csrc/kernels/compact.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hvd_sparse::cpu {

#if defined(__x86_64__)

namespace {

constexpr std::int64_t kLanesOfVector = 16;

__attribute__((target("avx512f,popcnt"))) void CompactAvx512(Index* indices, float* values,
                                                             std::int64_t count, std::uint32_t cut,
                                                             Compaction* at) {
  const __m512i magnitude_bits = _mm512_set1_epi32(0x7fffffff);
  const __m512i cuts = _mm512_set1_epi32(static_cast<int>(cut));
  Compaction now = *at;
  for (; now.read + kLanesOfVector <= count; now.read += kLanesOfVector) {
    const __m512i value = _mm512_loadu_si512(values + now.read);
    const __m512i index = _mm512_loadu_si512(indices + now.read);
    const __m512i magnitude = _mm512_and_si512(value, magnitude_bits);
    const unsigned above = _mm512_cmpgt_epu32_mask(magnitude, cuts);
    unsigned equal = _mm512_cmpeq_epu32_mask(magnitude, cuts);
    while (__builtin_popcount(equal) > now.ties) equal &= ~(1u << (31 - __builtin_clz(equal)));
    now.ties -= __builtin_popcount(equal);
    const unsigned keep = above | equal;
    // What a full store writes beyond the kept entries has been read already.
    const auto mask = static_cast<__mmask16>(keep);
    _mm512_storeu_si512(values + now.written, _mm512_maskz_compress_epi32(mask, value));
    _mm512_storeu_si512(indices + now.written, _mm512_maskz_compress_epi32(mask, index));
    now.written += __builtin_popcount(keep);
  }
  *at = now;
}

}  // namespace

void CompactVectors(Index* indices, float* values, std::int64_t count, std::uint32_t cut,
                    Compaction* at) {
  static const bool available = __builtin_cpu_supports("avx512f");
  if (available) CompactAvx512(indices, values, count, cut, at);
}

#else

void CompactVectors(Index*, float*, std::int64_t, std::uint32_t, Compaction*) {}

#endif

}  // namespace hvd_sparse::cpu
