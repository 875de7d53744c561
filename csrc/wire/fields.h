/// Values in fields of 32-bit words, as int8, int4 and ternary values are coded.
///
/// In a block of w words, value i is field i / w of word i mod w. So each step of a loop over the
/// words shifts the fields of neighbouring values by as many bits, and is vectorised without moving
/// values between lanes. Only the last block of a message has fewer words than the others.

#ifndef HVD_SPARSE_WIRE_FIELDS_H_
#define HVD_SPARSE_WIRE_FIELDS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "csrc/base/inline.h"

namespace hvd_sparse {

HVD_SPARSE_INLINE std::uint32_t LoadWord(const std::uint8_t* from) {
  std::uint32_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

HVD_SPARSE_INLINE void StoreWord(std::uint32_t word, std::uint8_t* to) {
  std::memcpy(to, &word, sizeof(word));
}

/// The last block of a message, which has few values, as one of `kWords` words of `kFields`: its
/// values lie where a whole block has the same fields of the same words, among zeros.
template <int kFields, int kWords>
struct LastBlock {
  explicit LastBlock(std::int64_t count) : count(count), words((count + kFields - 1) / kFields) {}

  /// Returns the number of values in a field.
  std::int64_t InField(std::int64_t field) const {
    return std::clamp<std::int64_t>(count - field * words, 0, words);
  }

  void CopyFrom(const float* from) {
    for (std::int64_t f = 0; f < kFields; ++f) {
      std::copy_n(from + f * words, InField(f), values + f * kWords);
    }
  }

  void CopyTo(float* to) const {
    for (std::int64_t f = 0; f < kFields; ++f) {
      std::copy_n(values + f * kWords, InField(f), to + f * words);
    }
  }

  const std::int64_t count, words;
  float values[kFields * kWords] = {};
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_FIELDS_H_
