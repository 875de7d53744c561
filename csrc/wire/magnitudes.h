/// The largest magnitude of an array.

#ifndef HVD_SPARSE_WIRE_MAGNITUDES_H_
#define HVD_SPARSE_WIRE_MAGNITUDES_H_

#include <algorithm>
#include <cstdint>

#include "csrc/base/types.h"
#include "csrc/kernels/half.h"

namespace hvd_sparse {

/// Returns the bits of the largest magnitude among finite values.
HVD_SPARSE_INLINE std::uint32_t LargestMagnitude(const float* values, std::int64_t count) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, static_cast<std::int32_t>(FloatBits(values[i]) & 0x7fffffffu));
  }
  return static_cast<std::uint32_t>(largest);
}

/// Returns the largest magnitude among finite values, or zero.
float LargestOf(Span<const float> values);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_MAGNITUDES_H_
