/// Dense messages: all values of an array in a type of few bits, and the errors that stay behind.
///
/// Codes need no alignment. The receiver knows the type and the number of values, nothing else.

#ifndef HVD_SPARSE_WIRE_DENSE_CODING_H_
#define HVD_SPARSE_WIRE_DENSE_CODING_H_

#include <cstdint>

#include "csrc/base/types.h"
#include "csrc/kernels/kernels.h"
#include "csrc/wire/values.h"

namespace hvd_sparse {

/// The format of dense messages, on which the ranks agree.
struct DenseFormat {
  Values values = Values::kFloat32;
  float sparsity = 1;  ///< in [1, 2), read for ternary values only: see TakeTernary
};

/// Returns the most bytes that TakeCoded writes for `count` values; it writes exactly these unless
/// the values are ternary.
std::int64_t MostCodeBytes(Values values, std::int64_t count);

/// Moves values, which must be finite, to a code, and leaves the errors in their places:
///
///     value before = decoded value + value after, exactly
///
/// Returns the bytes written. float32 values are moved as they are; float16 and bfloat16 round like
/// RoundValues. Adds the number of values of which the code holds nothing to `not_carried`.
std::int64_t TakeCoded(DenseFormat format, Span<float> values, std::uint8_t* code,
                       std::int64_t* not_carried);

/// Applies error feedback to the residual, then TakeCoded; adds the number of results that were not
/// finite, or are not carried, to `refused`. This takes less time than one after the other, since
/// the processor loads the next few values while it codes some; ternary values are coded in a pass
/// of their own.
std::int64_t AccumulateAndTakeCoded(DenseFormat format, const Feedback& feedback,
                                    std::uint8_t* code, std::int64_t* refused);

/// Sets `out` to the values at the start of a code; returns the bytes of these values.
///
/// Throws ExchangeFailed, having changed any part of `out`, if the code is too short or none that
/// TakeCoded writes, or if a value is not finite.
std::int64_t DecodeInto(Values values, Span<const std::uint8_t> code, Span<float> out);

/// Like DecodeInto, but adds the values: sum[i] += value[i], rounded once.
std::int64_t AddDecoded(Values values, Span<const std::uint8_t> code, Span<float> sum);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_DENSE_CODING_H_
