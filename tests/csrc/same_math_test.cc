/// Logarithm and exponential equal those of the C library except for the last bits.

#include "csrc/kernels/same_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace hvd_sparse {
namespace {

TEST(SameMath, LogarithmsAreRight) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> exponents(-140, 140), near(0.9, 1.1);
  for (int i = 0; i < 20000; ++i) {
    for (const double x : {std::exp(exponents(random)), near(random)}) {
      EXPECT_NEAR(SameLog(x), std::log(x), 1e-15 * std::fabs(std::log(x)) + 1e-300) << x;
    }
  }
  EXPECT_EQ(SameLog(1.0), 0.0);
}

TEST(SameMath, ExponentialsAreRight) {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> far(-600, 600), near(-1, 1);
  for (int i = 0; i < 20000; ++i) {
    for (const double x : {far(random), near(random)}) {
      EXPECT_NEAR(SameExp(x) / std::exp(x), 1.0, 2e-15) << x;
    }
  }
  EXPECT_EQ(SameExp(0.0), 1.0);
}

TEST(SameMath, WhatIsTooLargeIsBounded) {
  EXPECT_EQ(SameExp(1e300), SameExp(700));
  EXPECT_EQ(SameExp(-1e300), SameExp(-700));
  EXPECT_EQ(SameExp(std::nan("")), SameExp(-700));
}

TEST(SameMath, BitsAreThese) {
  // The values are the same on other machines: they were recorded once.
  EXPECT_EQ(SameLog(3.0), 0x1.193ea7aad030bp+0);
  EXPECT_EQ(SameExp(1.0), 0x1.5bf0a8b14576ap+1);  // one unit in the last place above e
}

}  // namespace
}  // namespace hvd_sparse
