/// Values in fields of 32-bit words, as int8, int4 and ternary values are coded.
///
/// In a block of w words, value i is field i / w of word i mod w. So each step of a loop over the
/// words shifts the fields of neighbouring values by as many bits, and is vectorised without moving
/// values between lanes. The last block of a message, if it has fewer values than the others, has
/// bytes instead of words, so that no more bytes are sent than it needs.

#ifndef HVD_SPARSE_WIRE_FIELDS_H_
#define HVD_SPARSE_WIRE_FIELDS_H_

#include <cstdint>

#include "csrc/base/inline.h"

namespace hvd_sparse {

/// Returns the bytes of a block of `count` values.
template <typename Layout>
HVD_SPARSE_INLINE std::int64_t BytesOf(std::int64_t count) {
  return (count + Layout::kPerByte - 1) / Layout::kPerByte;
}

/// Returns the value in a whole block that is part `part` of byte `byte`. The last block of a
/// message has value part * bytes + byte there, where `bytes` are its bytes.
template <typename Layout>
HVD_SPARSE_INLINE std::int64_t PlaceOf(std::int64_t byte, std::int64_t part) {
  return Layout::FieldOf(byte % 4, part) * Layout::kWords + byte / 4;
}

/// The last block of a message, its values where a whole block has the same fields of the same
/// bytes, among zeros.
///
/// `Layout` is a whole block's: it has kWords words, kPerByte values in a byte, and FieldOf(byte,
/// part) tells which field of a word is part `part` of its byte `byte`.
template <typename Layout>
class LastBlock {
 public:
  explicit LastBlock(std::int64_t count) : bytes(BytesOf<Layout>(count)), count_(count) {}

  void CopyFrom(const float* from) {
    ForAll([&](std::int64_t i, std::int64_t place) { values[place] = from[i]; });
  }
  void CopyTo(float* to) const {
    ForAll([&](std::int64_t i, std::int64_t place) { to[i] = values[place]; });
  }

  const std::int64_t bytes;  ///< of the codes of these values
  float values[4 * Layout::kPerByte * Layout::kWords] = {};

 private:
  template <typename Move>
  void ForAll(Move move) const {
    for (std::int64_t i = 0; i < count_; ++i) {
      move(i, PlaceOf<Layout>(i % bytes, i / bytes));
    }
  }

  const std::int64_t count_;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_FIELDS_H_
