/// The digits of ternary_coding.h and their bytes, on the CPU and on GPUs.

#ifndef HVD_SPARSE_WIRE_TERNARY_DIGITS_H_
#define HVD_SPARSE_WIRE_TERNARY_DIGITS_H_

#include <cfloat>
#include <cstdint>

#include "csrc/kernels/half.h"

namespace hvd_sparse {

/// The layout of a whole block of ternary values.
struct Ternary {
  static constexpr int kPerByte = 5, kWords = 16;
  static constexpr HVD_SPARSE_INLINE std::int64_t FieldOf(std::int64_t byte, std::int64_t digit) {
    return 4 * digit + byte;
  }
};

/// The bytes of a message before its code.
constexpr std::int64_t kTernaryHeader = 8;

constexpr std::uint8_t kZeroByte = 121;  ///< five digits of zero

/// Returns M for values of which the largest magnitude is given. The larger the sparsity, in [1,
/// 2), the fewer values are sent.
HVD_SPARSE_INLINE float TernaryScale(float sparsity, float largest) {
  return Smaller(sparsity * largest, FLT_MAX);
}

/// Returns the least magnitude that is sent. Zeros are not, though half of the smallest number is
/// rounded to zero.
HVD_SPARSE_INLINE float LeastSent(float scale) { return Larger(0.5f * scale, BitsFloat(1)); }

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_TERNARY_DIGITS_H_
