/// Narrow numbers: all bit patterns, and rounding compared with exact arithmetic.

#include "csrc/kernels/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace hvd_sparse {
namespace {

/// Returns the value of a float16 by definition.
double ValueOf(Float16 half) {
  const int exponent = (half.bits >> 10) & 31, fraction = half.bits & 1023;
  const double sign = half.bits & 0x8000 ? -1 : 1;
  if (exponent == 31) {
    return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

bool IsNan(Float16 half) { return (half.bits & 0x7fff) > 0x7c00; }
bool IsNan(BFloat16 half) { return (half.bits & 0x7fff) > 0x7f80; }

/// Expects values between two neighbours to round to the nearer, and the middle to the even one.
template <typename Half>
void ExpectRoundsToNearestEven(std::uint16_t first, std::uint16_t last) {
  for (std::uint32_t b = first; b < last; ++b) {
    const Half low{static_cast<std::uint16_t>(b)}, high{static_cast<std::uint16_t>(b + 1)};
    const auto middle =
        static_cast<float>((double{Widen(low)} + double{Widen(high)}) / 2);  // exact
    const std::uint16_t even = b % 2 == 0 ? low.bits : high.bits;
    const float below = std::nextafter(middle, 0.0f);
    const float above = std::nextafter(middle, std::numeric_limits<float>::infinity());
    ASSERT_EQ(Narrow<Half>(below).bits, low.bits) << b;
    ASSERT_EQ(Narrow<Half>(middle).bits, even) << b;
    ASSERT_EQ(Narrow<Half>(above).bits, high.bits) << b;
    ASSERT_EQ(Narrow<Half>(-middle).bits, even | 0x8000) << b;
  }
}

TEST(Half, WidensEveryFloat16ToItsValue) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const Float16 half{static_cast<std::uint16_t>(bits)};
    if (IsNan(half)) {
      ASSERT_TRUE(std::isnan(Widen(half))) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(Widen(half)), ValueOf(half)) << bits;
    ASSERT_EQ(std::signbit(Widen(half)), (bits & 0x8000) != 0) << bits;
  }
}

TEST(Half, NarrowsBackToTheSameBits) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const Float16 half{static_cast<std::uint16_t>(bits)};
    const BFloat16 brain{static_cast<std::uint16_t>(bits)};
    if (!IsNan(half)) {
      ASSERT_EQ(Narrow<Float16>(Widen(half)).bits, bits);
    }
    if (!IsNan(brain)) {
      ASSERT_EQ(Narrow<BFloat16>(Widen(brain)).bits, bits);
    }
  }
}

TEST(Half, RoundsFloat16ToNearestEven) { ExpectRoundsToNearestEven<Float16>(0, 0x7bff); }

TEST(Half, RoundsBFloat16ToNearestEven) {
  // The first neighbours are subnormal floats, whose middle is a float as well.
  ExpectRoundsToNearestEven<BFloat16>(0, 0x7f7f);
}

TEST(Half, OverflowsToInfinityFromHalfAStepBeyondTheLargest) {
  EXPECT_EQ(Narrow<Float16>(65519.996f).bits, 0x7bff);
  EXPECT_EQ(Narrow<Float16>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Narrow<Float16>(-1e30f).bits, 0xfc00);
  EXPECT_EQ(Narrow<BFloat16>(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(Narrow<Float16>(std::numeric_limits<float>::infinity()).bits, 0x7c00);
}

TEST(Half, KeepsNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(IsNan(Narrow<Float16>(nan)));
  EXPECT_TRUE(IsNan(Narrow<BFloat16>(nan)));
  EXPECT_TRUE(IsNan(Narrow<BFloat16>(BitsFloat(0x7fffffffu))));  // must not round to -0
}

}  // namespace
}  // namespace hvd_sparse
