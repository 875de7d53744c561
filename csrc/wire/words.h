/// What codes of positions and values share: words, and the largest magnitude of an array.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "csrc/kernels/clones.h"
#include "csrc/kernels/half.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define HVD_SPARSE_AVX512 __attribute__((target("avx512f,popcnt")))
#endif

namespace hvd_sparse {

/// Load and Store move words, the least significant byte first, at any address.
template <typename Word = std::uint64_t>
HVD_SPARSE_INLINE Word Load(const std::uint8_t* from) {
  Word word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

template <typename Word>
HVD_SPARSE_INLINE void Store(Word word, std::uint8_t* to) {
  std::memcpy(to, &word, sizeof(word));
}

inline bool HasAvx512() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512f");
  return has;
#else
  return false;
#endif
}

/// Returns the bits of the largest magnitude among finite values.
HVD_SPARSE_INLINE std::uint32_t LargestMagnitude(const float* values, std::int64_t count) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, static_cast<std::int32_t>(FloatBits(values[i]) & 0x7fffffffu));
  }
  return static_cast<std::uint32_t>(largest);
}

}  // namespace hvd_sparse
