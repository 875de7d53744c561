/// A residual that joins a dense gradient on a GPU: what is sent and what stays has the bits of the
/// CPU.

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
constexpr float kDecay = 0.7f, kScale = 0.3f;

/// Gradient and residual after a step, as bits; before, they hold the same each time.
template <typename T>
Seen AfterJoining(Device device) {
  std::mt19937 random(5);
  std::normal_distribution<float> gaussian;
  std::vector<T> values(kSize);
  std::vector<float> owed(kSize);
  for (T& value : values) value = Narrow<T>(gaussian(random));
  for (float& value : owed) value = gaussian(random);
  if constexpr (sizeof(T) < sizeof(float)) {  // beyond the type; not finite, so left alone
    owed[1] = -2 * Largest<T>();
    values[2] = Narrow<T>(kInf);
    values[3] = Narrow<T>(std::nanf(""));
  }
  Memory<T> gradient(device, values);
  Memory<float> residual(device, owed);
  const Kernels& kernels = KernelsFor(device);
  const std::unique_ptr<Rest> rest = kernels.NewRest();
  Seen seen;
  for (int step = 0; step < 2; ++step) {  // the second time what was left joins
    kernels.Join({residual.data(), kSize}, kDecay, kScale, {gradient.data(), kSize, kDTypeOf<T>}, 0,
                 rest.get());
    seen.Add(residual.Values());
    kernels.PutRest(*rest, {residual.data(), kSize}, 0);
    seen.Add(gradient.Values());
    seen.Add(residual.Values());
  }
  return seen;
}

class JoinOnDevice : public CudaTest {};

TEST_F(JoinOnDevice, WhatIsSentAndWhatStaysHasTheBitsOfTheCpu) {
  EXPECT_TRUE(AfterJoining<float>(kGpu).bits == AfterJoining<float>({}).bits);
  EXPECT_TRUE(AfterJoining<double>(kGpu).bits == AfterJoining<double>({}).bits);
  EXPECT_TRUE(AfterJoining<Float16>(kGpu).bits == AfterJoining<Float16>({}).bits);
  EXPECT_TRUE(AfterJoining<BFloat16>(kGpu).bits == AfterJoining<BFloat16>({}).bits);
}

TEST_F(JoinOnDevice, OfAWideGradientNothingIsLeftAndASumThatIsNotFiniteIsSeenInIt) {
  const float largest = Largest<float>();
  Memory<float> gradient(kGpu, {largest, kInf, 1}), residual(kGpu, {largest, 1, 2});
  const Kernels& kernels = KernelsFor(kGpu);
  const std::unique_ptr<Rest> rest = kernels.NewRest();
  kernels.Join({residual.data(), 3}, 1, 1, {gradient.data(), 3, DType::kFloat32}, 0, rest.get());
  EXPECT_EQ(gradient.Values(), (std::vector<float>{kInf, kInf, 3}));
  EXPECT_EQ(residual.Values(), (std::vector<float>{largest, 1, 2}));  // for the refused step
  EXPECT_FALSE(kernels.PutRest(*rest, {residual.data(), 3}, 0));
  EXPECT_EQ(residual.Values(), std::vector<float>(3));
}

TEST_F(JoinOnDevice, AResidualDecays) {
  Memory<float> residual(kGpu, {1, -2, 0});
  KernelsFor(kGpu).Decay({residual.data(), 3}, 0.5f, 0);
  EXPECT_EQ(residual.Values(), (std::vector<float>{0.5f, -1, 0}));
}

}  // namespace
}  // namespace hvd_sparse
