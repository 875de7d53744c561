/// Helpers of both packing and unpacking of positions.

#ifndef HVD_SPARSE_WIRE_WORDS_H_
#define HVD_SPARSE_WIRE_WORDS_H_

#include <cstdint>
#include <cstring>

#include "csrc/kernels/clones.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define HVD_SPARSE_AVX512 __attribute__((target("avx512f,popcnt")))
#endif

namespace hvd_sparse {

/// Load and Store move words of 64 bits, the least significant byte first, at any address.
HVD_SPARSE_INLINE std::uint64_t Load(const std::uint8_t* from) {
  std::uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

HVD_SPARSE_INLINE void Store(std::uint64_t word, std::uint8_t* to) {
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

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_WORDS_H_
