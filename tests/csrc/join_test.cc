/// A residual that joins a gradient: what both held is in the gradient or in the rest, exactly.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "csrc/kernels/cpu_join.h"
#include "csrc/kernels/half.h"

namespace hvd_sparse::cpu {
namespace {

using Rest = std::vector<std::pair<Index, float>>;

TEST(JoinResidual, ScaledResidualIsAddedToWideGradients) {
  const std::vector<float> residual = {1, -2, 0, 4};
  std::vector<float> floats = {1, 1, 1, 1};
  std::vector<double> doubles = {1, 1, 1, 1};
  Rest rest;
  JoinResidual(residual, 0.25f, 0.125f, 7, {floats.data(), 4, DType::kFloat32}, &rest);
  JoinResidual(residual, 0.25f, 0.125f, 7, {doubles.data(), 4, DType::kFloat64}, &rest);
  EXPECT_EQ(floats, (std::vector<float>{3, -3, 1, 9}));
  EXPECT_EQ(doubles, (std::vector<double>{3, -3, 1, 9}));
  EXPECT_TRUE(rest.empty());
}

template <typename T>
void WhatANarrowTypeCannotHoldIsLeft(DType dtype, float largest) {
  const std::vector<float> residual = {1.0f / 4096, 3, largest, 0};
  std::vector<T> gradient = {Narrow<T>(1), Narrow<T>(1), Narrow<T>(largest), Narrow<T>(-2)};
  Rest rest;
  JoinResidual(residual, 1, 1, 10, {gradient.data(), 4, dtype}, &rest);
  EXPECT_EQ(Widen(gradient[0]), 1);
  EXPECT_EQ(Widen(gradient[1]), 4);
  EXPECT_EQ(Widen(gradient[2]), largest);
  EXPECT_EQ(Widen(gradient[3]), -2);
  ASSERT_EQ(rest, (Rest{{10, 1.0f / 4096}, {12, largest}}));
}

TEST(JoinResidual, WhatANarrowTypeCannotHoldIsLeft) {
  WhatANarrowTypeCannotHoldIsLeft<Float16>(DType::kFloat16, 65504);
  WhatANarrowTypeCannotHoldIsLeft<BFloat16>(DType::kBFloat16, std::ldexp(255.0f, 120));
}

TEST(JoinResidual, AGradientThatIsNotFiniteIsLeftAloneAndSoIsItsResidual) {
  const std::vector<float> residual = {5, 0, 5};
  std::vector<float> gradient = {std::numeric_limits<float>::quiet_NaN(),
                                 std::numeric_limits<float>::infinity(), 1};
  Rest rest;
  JoinResidual(residual, 0.5f, 1, 0, {gradient.data(), 3, DType::kFloat32}, &rest);
  EXPECT_TRUE(std::isnan(gradient[0]));
  EXPECT_TRUE(std::isinf(gradient[1]));
  EXPECT_EQ(gradient[2], 3.5f);
  EXPECT_EQ(rest, (Rest{{0, 2.5f}}));
}

}  // namespace
}  // namespace hvd_sparse::cpu
