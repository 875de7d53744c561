/// Ternary values, as 3LC codes them: -M, 0 or M, five in a byte, and runs of zeros.
///
///     M, float32 | bytes of the code, uint32 | code
///
/// The values are cut into blocks of 320, whose codes are words as in codes.h with 20 fields:
/// field 4 k + p of a word is digit k of its byte p. A byte is 81 d0 + 27 d1 + 9 d2 + 3 d3 + d4,
/// with digits of 0, 1 and 2 for -M, 0 and M. In the sequence of
/// all bytes, a run of 2 to 14 bytes of 121, which are zeros, becomes one byte 243 + (length - 2).
///
/// With M = scale * (largest magnitude), a value u becomes M with its sign if |u| >= M / 2, else
/// zero. Its error u - M is exact in float32 by Sterbenz' lemma: M / 2 <= |u| <= M, since the
/// scale is at least 1. M is at most the largest float32, which the lemma allows, too; and
/// if M / 2 is rounded, M is so small that all numbers are multiples of the smallest one.
///
/// Lim, Andersen, Kaminsky, "3LC: Lightweight and effective traffic compression for distributed
/// machine learning", MLSys 2019 (https://arxiv.org/abs/1802.07389).

#pragma once

#include <cstdint>

#include "csrc/base/types.h"
#include "csrc/wire/codes.h"

namespace hvd_sparse {

/// Returns the most bytes of the code of `count` values.
std::int64_t MostTernaryBytes(std::int64_t count);

/// Writes the code of finite values with M = scale, and replaces each value by its error; returns
/// the bytes written.
std::int64_t TakeTernary(float scale, Span<float> values, std::uint8_t* code);

/// Makes the code of `count` values of their bytes, without runs, which follow the room for the
/// header; returns the bytes written.
std::int64_t ShortenTernary(float scale, std::int64_t count, std::uint8_t* code);

/// Sets `out` to the values at the start of `code`. Returns the bytes of their code, or -1 if it is
/// none that is written.
std::int64_t DecodeTernary(Span<const std::uint8_t> code, Span<float> out);

/// Like DecodeTernary, but adds the values to `sum`.
std::int64_t AddTernary(Span<const std::uint8_t> code, Span<float> sum);

}  // namespace hvd_sparse
