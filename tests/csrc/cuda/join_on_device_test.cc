/// Joining a dense gradient on a GPU: sums and residuals have the bits of the CPU.

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "csrc/kernels/half.h"
#include "tests/csrc/cuda/exchange_steps.h"

namespace hvd_sparse {
namespace {

constexpr Device kGpu{DeviceType::kCuda, 0};
constexpr std::int64_t kSize = 1000;
constexpr float kDecay = 0.7f, kMomentum = 0.9f, kScale = 0.3f, kGain = 0.6f;

/// Selects the vectors that join a gradient, and its factor.
struct Joined {
  bool residual, velocity;
  float gain = 1;
};

/// Returns gradient, residual and velocity after two steps, as bits; the initial values are fixed.
template <typename T>
StepBits AfterJoining(Device device, Joined joined) {
  std::mt19937 random(5);
  std::normal_distribution<float> gaussian;
  std::vector<T> values(kSize);
  std::vector<float> unsent(kSize), moving(kSize);
  for (T& value : values) value = Narrow<T>(gaussian(random));
  for (float& value : unsent) value = gaussian(random);
  for (float& value : moving) value = gaussian(random);
  if constexpr (sizeof(T) < sizeof(float)) {  // beyond the type; not finite, left alone
    unsent[1] = -2 * Largest<T>();
    values[2] = Narrow<T>(kInf);
    values[3] = Narrow<T>(std::nanf(""));
  }
  Memory<T> gradient(device, values);
  Memory<float> residual(device, unsent), velocity(device, moving);
  Memory<float> next(device, std::vector<float>(kSize));
  const Kernels& kernels = KernelsFor(device);
  const std::unique_ptr<ResidualAfterJoin> after = kernels.NewResidualAfterJoin();
  UnsentParts parts;
  if (joined.residual) parts.residual = {residual.data(), kSize};
  if (joined.velocity) parts.velocity = {velocity.data(), kSize};
  if (joined.velocity) parts.next = {next.data(), kSize};
  parts.decay = kDecay;
  parts.momentum = kMomentum;
  parts.gain = joined.gain;
  parts.scale = kScale;
  StepBits seen;
  for (int step = 0; step < 2; ++step) {  // in the second step the rest joins
    kernels.Join(parts, {gradient.data(), kSize, kDTypeOf<T>}, 0, after.get());
    seen.Add(residual.Values());
    seen.Add(velocity.Values());
    kernels.SetResidual(*after, {residual.data(), kSize}, 0);
    kernels.Copy({next.data(), kSize}, {velocity.data(), kSize}, 0);
    seen.Add(gradient.Values());
    seen.Add(residual.Values());
    seen.Add(velocity.Values());
  }
  return seen;
}

class JoinOnDevice : public CudaTest {};

template <typename T>
void ExpectTheBitsOfTheCpu() {
  for (const Joined joined : {Joined{true, false}, Joined{false, true}, Joined{true, true},
                              Joined{false, true, kGain}, Joined{true, true, kGain}}) {
    EXPECT_TRUE(AfterJoining<T>(kGpu, joined).bits == AfterJoining<T>({}, joined).bits)
        << joined.residual << joined.velocity << ", gain " << joined.gain;
  }
}

TEST_F(JoinOnDevice, WhatIsSentAndWhatStaysHasTheBitsOfTheCpu) {
  ExpectTheBitsOfTheCpu<float>();
  ExpectTheBitsOfTheCpu<double>();
  ExpectTheBitsOfTheCpu<Float16>();
  ExpectTheBitsOfTheCpu<BFloat16>();
}

TEST_F(JoinOnDevice, OfAWideGradientNothingIsLeftAndASumThatIsNotFiniteIsSeenInIt) {
  const float largest = Largest<float>();
  Memory<float> gradient(kGpu, {largest, kInf, 1}), residual(kGpu, {largest, 1, 2});
  const Kernels& kernels = KernelsFor(kGpu);
  const std::unique_ptr<ResidualAfterJoin> after = kernels.NewResidualAfterJoin();
  UnsentParts parts;
  parts.residual = {residual.data(), 3};
  kernels.Join(parts, {gradient.data(), 3, DType::kFloat32}, 0, after.get());
  EXPECT_EQ(gradient.Values(), (std::vector<float>{kInf, kInf, 3}));
  EXPECT_EQ(residual.Values(), (std::vector<float>{largest, 1, 2}));  // for a refused step
  EXPECT_FALSE(kernels.SetResidual(*after, {residual.data(), 3}, 0));
  EXPECT_EQ(residual.Values(), std::vector<float>(3));
}

TEST_F(JoinOnDevice, AResidualDecays) {
  Memory<float> residual(kGpu, {1, -2, 0});
  KernelsFor(kGpu).Decay({residual.data(), 3}, 0.5f, 0);
  EXPECT_EQ(residual.Values(), (std::vector<float>{0.5f, -1, 0}));
}

}  // namespace
}  // namespace hvd_sparse
