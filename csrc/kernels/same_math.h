/// Logarithm and exponential with the same bits on all machines.
///
/// The functions of C libraries differ in the last bit between versions, and from a GPU's. These
/// consist of additions, multiplications and divisions, which IEEE 754 rounds alike everywhere (the
/// build forbids fused ones); their error is a few units in the last place.

#pragma once

#include <cstdint>
#include <cstring>

#include "csrc/kernels/clones.h"

namespace hvd_sparse {

/// ln 2 in two parts; products of the upper one with small integers are exact.
constexpr double kUpperLn2 = 6.93147180369123816490e-01, kLowerLn2 = 1.90821492927058770002e-10;

/// Returns the natural logarithm of a finite, normal, positive number.
///
///     x = 2^e m, m about 1;  f = (m - 1) / (m + 1);  ln m = 2 (f + f^3 / 3 + f^5 / 5 + ...)
HVD_SPARSE_INLINE double SameLog(double x) {
  constexpr double kSqrt2 = 1.4142135623730951;
  std::uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  int exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull;
  double mantissa;
  std::memcpy(&mantissa, &bits, sizeof(mantissa));
  if (mantissa > kSqrt2) {
    mantissa *= 0.5;
    ++exponent;
  }
  const double f = (mantissa - 1.0) / (mantissa + 1.0), s = f * f;
  double series = 0;
  for (int odd = 23; odd >= 3; odd -= 2) series = (series + 1.0 / odd) * s;
  const double e = exponent;
  return e * kUpperLn2 + (2.0 * f + (2.0 * f * series + e * kLowerLn2));
}

/// Returns e^x, with x clamped to [-700, 700].
///
///     x = n ln 2 + r, |r| <= ln 2 / 2;  e^x = 2^n (1 + r + r^2 / 2! + ...)
HVD_SPARSE_INLINE double SameExp(double x) {
  constexpr double kLimit = 700, kPerLn2 = 1.4426950408889634;
  const double bounded = x > kLimit ? kLimit : (x > -kLimit ? x : -kLimit);
  const auto n = static_cast<std::int64_t>(bounded * kPerLn2 + (bounded < 0 ? -0.5 : 0.5));
  const double r =
      (bounded - static_cast<double>(n) * kUpperLn2) - static_cast<double>(n) * kLowerLn2;
  double series = 1;
  for (int term = 14; term >= 1; --term) series = 1.0 + series * r / term;
  const auto bits = static_cast<std::uint64_t>(n + 1023) << 52;
  double power;
  std::memcpy(&power, &bits, sizeof(power));
  return series * power;
}

}  // namespace hvd_sparse
