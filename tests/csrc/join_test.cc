/// Joining residual and velocity with a gradient that is summed dense: every value is in the
/// gradient or in the rest, exactly, and the next velocity is right.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "csrc/kernels/cpu_kernels.h"
#include "csrc/kernels/half.h"

namespace hvd_sparse::cpu {
namespace {

using Entries = std::vector<std::pair<Index, float>>;

void Join(const UnsentParts& parts, GradView gradient, ResidualEntries* after) {
  CpuKernels().Join(parts, gradient, {}, after);
}

/// Returns an UnsentParts with only a residual.
UnsentParts Unsent(const std::vector<float>& residual, float decay, float scale) {
  UnsentParts parts;
  parts.residual = residual;
  parts.decay = decay;
  parts.scale = scale;
  return parts;
}

TEST(JoinResidual, ScaledResidualIsAddedToWideGradients) {
  const std::vector<float> residual = {1, -2, 0, 4};
  std::vector<float> floats = {1, 1, 1, 1};
  std::vector<double> doubles = {1, 1, 1, 1};
  ResidualEntries after;
  const UnsentParts parts = Unsent(residual, 0.25f, 0.125f);
  Join(parts, {floats.data(), 4, DType::kFloat32}, &after);
  EXPECT_TRUE(after.entries.empty());
  Join(parts, {doubles.data(), 4, DType::kFloat64}, &after);
  EXPECT_TRUE(after.entries.empty());
  EXPECT_EQ(floats, (std::vector<float>{3, -3, 1, 9}));
  EXPECT_EQ(doubles, (std::vector<double>{3, -3, 1, 9}));
}

template <typename T>
void WhatANarrowTypeCannotHoldIsLeft(DType dtype, float largest) {
  const std::vector<float> residual = {1.0f / 4096, 3, largest, 0};
  std::vector<T> gradient = {Narrow<T>(1), Narrow<T>(1), Narrow<T>(largest), Narrow<T>(-2)};
  ResidualEntries after;
  Join(Unsent(residual, 1, 1), {gradient.data(), 4, dtype}, &after);
  EXPECT_EQ(Widen(gradient[0]), 1);
  EXPECT_EQ(Widen(gradient[1]), 4);
  EXPECT_EQ(Widen(gradient[2]), largest);
  EXPECT_EQ(Widen(gradient[3]), -2);
  ASSERT_EQ(after.entries, (Entries{{0, 1.0f / 4096}, {2, largest}}));
}

TEST(JoinResidual, WhatANarrowTypeCannotHoldIsLeft) {
  WhatANarrowTypeCannotHoldIsLeft<Float16>(DType::kFloat16, 65504);
  WhatANarrowTypeCannotHoldIsLeft<BFloat16>(DType::kBFloat16, std::ldexp(255.0f, 120));
}

TEST(JoinResidual, AGradientThatIsNotFiniteIsLeftAloneAndSoIsItsResidual) {
  const std::vector<float> residual = {5, 0, 5};
  std::vector<float> gradient = {std::numeric_limits<float>::quiet_NaN(),
                                 std::numeric_limits<float>::infinity(), 1};
  ResidualEntries after;
  Join(Unsent(residual, 0.5f, 1), {gradient.data(), 3, DType::kFloat32}, &after);
  EXPECT_TRUE(std::isnan(gradient[0]));
  EXPECT_TRUE(std::isinf(gradient[1]));
  EXPECT_EQ(gradient[2], 3.5f);
  EXPECT_EQ(after.entries, (Entries{{0, 2.5f}}));
}

TEST(JoinVelocity, ItGoesAlongAndItsNextIsOfTheGradientAsItCame) {
  const std::vector<float> residual = {4, 0, -8}, velocity = {2, -2, 6};
  for (const bool has_residual : {false, true}) {
    std::vector<float> gradient = {1, 1, 3}, next(3, 77.0f);
    UnsentParts parts = Unsent(residual, 0.5f, 2);
    if (!has_residual) parts.residual = {};
    parts.velocity = velocity;
    parts.momentum = 0.5f;
    parts.next = next;
    ResidualEntries after;
    Join(parts, {gradient.data(), 3, DType::kFloat32}, &after);
    EXPECT_EQ(gradient, has_residual ? (std::vector<float>{2.5f, 0.5f, 2.5f})
                                     : (std::vector<float>{1.5f, 0.5f, 4.5f}));
    EXPECT_EQ(next, (std::vector<float>{3, 1, 9}));
    EXPECT_TRUE(after.entries.empty());
  }
}

template <typename T>
void AGainIsOfTheGradientAlone(DType dtype) {
  const std::vector<float> residual = {4, 0, -8}, velocity = {2, -2, 6};
  for (const bool has_residual : {false, true}) {
    std::vector<T> gradient = {Narrow<T>(4), Narrow<T>(4), Narrow<T>(12)};
    std::vector<float> next(3, 77.0f);
    UnsentParts parts = Unsent(residual, 0.5f, 2);
    if (!has_residual) parts.residual = {};
    parts.velocity = velocity;
    parts.momentum = 0.5f;
    parts.gain = 0.25f;
    parts.next = next;
    ResidualEntries after;
    Join(parts, {gradient.data(), 3, dtype}, &after);
    std::vector<float> sums;
    for (const T value : gradient) sums.push_back(Widen(value));
    EXPECT_EQ(sums, has_residual ? (std::vector<float>{2.5f, 0.5f, 2.5f})
                                 : (std::vector<float>{1.5f, 0.5f, 4.5f}));
    EXPECT_EQ(next, (std::vector<float>{3, 1, 9}));
    EXPECT_TRUE(after.entries.empty());
  }
}

TEST(JoinVelocity, AGainIsOfTheGradientAlone) {
  AGainIsOfTheGradientAlone<float>(DType::kFloat32);
  AGainIsOfTheGradientAlone<double>(DType::kFloat64);
  AGainIsOfTheGradientAlone<Float16>(DType::kFloat16);
  AGainIsOfTheGradientAlone<BFloat16>(DType::kBFloat16);
}

TEST(JoinVelocity, WhatANarrowTypeCannotHoldOfTheGradientTimesItsGainIsLeft) {
  const std::vector<float> velocity = {0};
  std::vector<float> next(1);
  std::vector<Float16> gradient = {Narrow<Float16>(1 + 1.0f / 1024)};
  UnsentParts parts;
  parts.velocity = velocity;
  parts.gain = 0.625f;
  parts.next = next;
  parts.scale = 2;
  ResidualEntries after;
  Join(parts, {gradient.data(), 1, DType::kFloat16}, &after);
  EXPECT_EQ(Widen(gradient[0]), 0.625f + 1.0f / 2048);  // of 0.625 + 1.25 / 2048
  EXPECT_EQ(after.entries, (Entries{{0, 1.0f / 4096}}));
  EXPECT_EQ(next, (std::vector<float>{1.25f + 2.5f / 2048}));
}

TEST(JoinVelocity, WhatANarrowTypeCannotHoldOfEitherIsLeft) {
  const std::vector<float> residual = {1.0f / 8192}, velocity = {1.0f / 4096};
  std::vector<float> next(1);
  std::vector<Float16> gradient = {Narrow<Float16>(1)};
  UnsentParts parts = Unsent(residual, 1, 1);
  parts.velocity = velocity;
  parts.momentum = 0.5f;
  parts.next = next;
  ResidualEntries after;
  Join(parts, {gradient.data(), 1, DType::kFloat16}, &after);
  EXPECT_EQ(Widen(gradient[0]), 1);
  EXPECT_EQ(after.entries, (Entries{{0, 1.0f / 4096}}));
  EXPECT_EQ(next, (std::vector<float>{1 + 1.0f / 8192}));
}

}  // namespace
}  // namespace hvd_sparse::cpu
