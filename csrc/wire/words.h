/// Words of the codes of positions and values.

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

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_WORDS_H_
