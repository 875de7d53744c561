/// Values in a type of few bits, and the errors that stay behind: those of sparse blocks, and dense
/// messages of all values of an array.
///
/// Each type has one coder for both: float_coder.h, integer_coder.h; dense messages alone may be
/// ternary (ternary_coding.h), and sparse blocks binary (binary_coder.h). Codes need no alignment.
/// The receiver knows the type and the number of values, nothing else.

#pragma once

#include <cstdint>

#include "csrc/base/types.h"
#include "csrc/kernels/kernels.h"
#include "csrc/wire/values.h"

namespace hvd_sparse {

/// Returns the number of values that exceed LargestCarried, of which a message would hold nothing.
std::int64_t CountNotCarried(Values type, Span<const float> values);

/// Returns true if no value is NaN or infinite.
bool AreFinite(const float* values, std::int64_t count);

// ---- Sparse blocks
// -------------------------------------------------------------------------------

/// Rounds values in place to numbers of `type`: to nearest, ties to even. Writes the rounding
/// errors to `errors` unless that is null:
///
///     rounded value + error = value, exactly
///
/// Finite values stay finite: a value beyond the largest number becomes that number, or, beyond
/// 2^29, the largest one whose error is exact: zero beyond LargestCarried. Zeros become +0.0, but
/// for float32. Values that are not finite stay so, with an error of zero; as int8 and int4 they
/// become NaN. To int8 and int4 each kScaledBlock values are rounded together; once rounded they do
/// not change, as long as the same ones stand together. To binary all values are rounded together:
/// see binary_coder.h.
void RoundValues(Values type, float* values, std::int64_t count, float* errors);

/// Writes ValueBytes(type, count) bytes. Returns true if every value is a number of `type`, so that
/// nothing was lost.
bool EncodeValues(Values type, const float* values, std::int64_t count, std::uint8_t* code);

/// Reads values that EncodeValues wrote. Returns false if the bytes are no code of the type; any
/// bytes are one of float32, float16 and bfloat16.
bool DecodeValues(Values type, const std::uint8_t* code, std::int64_t count, float* values);

// ---- Dense messages
// ------------------------------------------------------------------------------

/// The format of dense messages, on which the ranks agree.
struct DenseFormat {
  Values values = Values::kFloat32;
  float scale = 1;  ///< in [1, 2), read for ternary values only: see TakeTernary
};

/// Returns the most bytes that TakeCoded writes for `count` values; it writes exactly these unless
/// the values are ternary.
std::int64_t MostCodeBytes(Values values, std::int64_t count);

/// Moves values, which must be finite, to a code, and leaves the errors in their places:
///
///     value before = decoded value + value after, exactly
///
/// Returns the bytes written. float32 values are moved as they are; other types round like
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
