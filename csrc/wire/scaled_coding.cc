#include "csrc/wire/scaled_coding.h"

#include <algorithm>

#include "csrc/wire/scaled_blocks.h"

namespace hvd_sparse {
namespace {

/// Exponents that are computed before their blocks are coded. Each depends on a whole block, and
/// the processor computes several at once only if they follow each other.
constexpr std::int64_t kExponents = 16;

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

HVD_SPARSE_CLONES bool TakeInt8(Span<float> values, std::uint8_t* code) {
  Take<Int8>(values, code);
  return true;
}
HVD_SPARSE_CLONES bool TakeInt4(Span<float> values, std::uint8_t* code) {
  Take<Int4>(values, code);
  return true;
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
