/// Blocks on a device are applied to gradients and residuals as on the CPU.

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "csrc/cuda/step/launches.h"
#include "csrc/kernels/half.h"
#include "tests/csrc/cuda/bucket_specs.h"
#include "tests/csrc/cuda/device_blocks.h"

namespace hvd_sparse {
namespace {

cuda::DeviceBlockHeader Refused() {
  cuda::DeviceBlockHeader header;
  header.verdict = Verdict::BadGradient(1);
  return header;
}

using CudaSettle = CudaTest;

TEST_F(CudaSettle, EqualsTheCpu) {
  for (const std::int64_t size : {0, 1, 200, 3000}) {
    const Entries selected = EveryThird(size, 7);
    Entries reduced;
    std::mt19937 random(11);
    for (Index i = 0; i < 3 * size; ++i) {
      if (random() % 3 == 0) reduced.push_back({Marked(i, random() % 2 == 0), 1.0f});
    }
    std::vector<float> expected = Awkward(3 * size, 9);
    for (const Entry& entry : selected) expected[Position(entry.index)] = 0;
    DeviceArray<float> residual(expected);
    CpuKernels().Settle(MakeBlock(selected), MakeBlock(reduced), expected);
    const OwnedBlock own(selected), result(reduced);
    cuda::LaunchSettle({own.block(), result.block(), residual.span()}, nullptr);
    EXPECT_TRUE(SameBits(residual.Values(), expected)) << "of " << size;
  }
}

TEST_F(CudaSettle, AllGoBackWhereTheStepIsRefused) {
  const Entries entries = {{Marked(0, true), 5}, {Marked(2, true), 6}};
  DeviceArray<float> residual(std::vector<float>{0, 1, 0});
  const OwnedBlock selected(entries), reduced(entries, Refused());
  cuda::LaunchSettle({selected.block(), reduced.block(), residual.span()}, nullptr);
  EXPECT_EQ(residual.Values(), (std::vector<float>{5, 1, 6}));
}

TEST_F(CudaSettle, WhatIsDeliveredLeavesTheVelocityAndCanReturn) {
  const Entries entries = {{Marked(0, true), 5}, {Marked(2, true), 6}, {Marked(3, true), 7}};
  const Entries sum = {{Marked(0, false), 5}, {Marked(2, true), 8}, {Marked(4, true), 1}};
  for (const bool is_refused : {false, true}) {
    const OwnedBlock selected(entries),
        reduced(sum, is_refused ? Refused() : cuda::DeviceBlockHeader());
    DeviceArray<float> residual(std::vector<float>(5)), velocity({-1, -2, -3, -4, -5}),
        masked(std::vector<float>(4, 9));
    cuda::LaunchSettle(
        {selected.block(), reduced.block(), residual.span(), velocity.span(), masked.data()},
        nullptr);
    EXPECT_EQ(residual.Values(), (std::vector<float>{5, 0, is_refused ? 6.0f : 0.0f, 7, 0}));
    EXPECT_EQ(velocity.Values(), (std::vector<float>{-1, -2, is_refused ? -3.0f : 0.0f, -4, -5}));
    EXPECT_EQ(masked.Values(), (std::vector<float>{-1, -3, -4, 9}));
  }
}

TEST_F(CudaSettle, MalformedBlocksOfOthersAreSafe) {
  const OwnedBlock selected(Entries{{0, 1}, {2, 3}, {3, 4}});
  const OwnedBlock chaos(Entries{{9, 1}, {2, 1}, {2, 1}, {INT32_MAX, 1}, {-1, 1}, {0, 1}});
  DeviceArray<float> residual(std::vector<float>(4));
  DeviceArray<float> velocity(std::vector<float>(4, 8));
  cuda::LaunchSettle({selected.block(), chaos.block(), residual.span(), velocity.span()}, nullptr);
  EXPECT_EQ(residual.Values()[1], 0.0f);
  EXPECT_EQ(velocity.Values()[1], 8.0f);
}

// ---- Into gradients -----------------------------------------------------------------------------

/// A bucket of three gradients of `before`, `size` and `behind` entries; the middle one is of type
/// T, the others are float32.
template <typename T>
struct Target {
  std::int64_t before, size, behind;
  DeviceArray<T> grad;
  DeviceArray<float> first, last, residual;
  cuda::BucketTables tables;

  Target(std::int64_t before, const std::vector<T>& values, std::int64_t behind,
         const std::vector<float>& residual, std::int64_t shift = 0)
      : before(before),
        size(static_cast<std::int64_t>(values.size())),
        behind(behind),
        grad(values, shift),
        first(std::vector<float>(before, -3)),
        last(std::vector<float>(behind, -3)),
        residual(residual),
        tables(cuda::BucketLayout(SpecOf({{before + size + behind, 1}}, {before, size, behind}))) {
    cuda::DeviceLaunch launch;
    launch.gradients = launch.outputs = {{first.data(), before, DType::kFloat32},
                                         {grad.data(), size, kDTypeOf<T>},
                                         {last.data(), behind, DType::kFloat32}};
    launch.decays = {1, 1, 1};
    launch.ks = {1};
    tables.Update(launch, nullptr);
  }

  cuda::ApplyArgs ArgsFor(const OwnedBlock& reduced, float scale, float loss_scale) {
    return {tables.view(), reduced.block(), scale, residual.span(), loss_scale};
  }
};

template <typename T>
class CudaApply : public CudaTest {};
TYPED_TEST_SUITE(CudaApply, GradientTypes);

TYPED_TEST(CudaApply, EqualsTheCpu) {
  for (const std::int64_t size : {1, 4097}) {
    constexpr std::int64_t kBehind = 70;
    const std::int64_t before = size > 1000 ? 500 : 0;
    Entries entries = EveryThird((before + size + kBehind) / 3, 32);  // in all gradients
    for (Entry& entry : entries) {                                    // a narrow type can hold it
      entry.value = std::fmod(entry.value, 1000.0f);
    }
    const std::vector<TypeParam> dirty(size, Narrow<TypeParam>(-3.0f));
    const std::vector<float> residual = Awkward(before + size + kBehind, 33);
    for (const std::int64_t shift : {0, 1}) {
      std::vector<TypeParam> expected = dirty;
      std::vector<float> first(before), last(kBehind), left = residual;
      const Span<float> rest = left;
      std::vector<std::pair<Index, float>> undo;
      const auto scatter = [&](std::int64_t offset, GradView view) {
        EXPECT_EQ(CpuKernels().Scatter(MakeBlock(entries), 0.7f, static_cast<Index>(offset), view,
                                       rest.Sub(offset, view.numel), &undo, 0.25f),
                  0);
      };
      scatter(0, {first.data(), before, DType::kFloat32});
      scatter(before, {expected.data(), size, kDTypeOf<TypeParam>});
      scatter(before + size, {last.data(), kBehind, DType::kFloat32});

      Target<TypeParam> target(before, dirty, kBehind, residual, shift);
      const OwnedBlock reduced(entries);
      const cuda::ApplyArgs args = target.ArgsFor(reduced, 0.7f, 0.25f);
      cuda::LaunchCheckFits(args, nullptr);
      cuda::LaunchApply(args, nullptr);
      const std::vector<TypeParam> written = target.grad.Values();
      EXPECT_EQ(std::memcmp(written.data(), expected.data(), sizeof(TypeParam) * size), 0);
      EXPECT_TRUE(SameBits(target.first.Values(), first));
      EXPECT_TRUE(SameBits(target.last.Values(), last));
      EXPECT_TRUE(SameBits(target.residual.Values(), left));
      EXPECT_EQ(BlockOnCpu(reduced.block()).header.flags, 0u);
    }
  }
}

TYPED_TEST(CudaApply, NothingIsWrittenWhereTheStepIsRefused) {
  const std::vector<TypeParam> before(100, Narrow<TypeParam>(-3.0f));
  Target<TypeParam> target(0, before, 5, std::vector<float>(105));
  const OwnedBlock reduced(Entries{{3, 1}, {101, 1}}, Refused());
  cuda::LaunchApply(target.ArgsFor(reduced, 1, 1), nullptr);
  const std::vector<TypeParam> after = target.grad.Values();
  EXPECT_EQ(std::memcmp(after.data(), before.data(), sizeof(TypeParam) * 100), 0);
  EXPECT_EQ(target.last.Values(), std::vector<float>(5, -3));
}

TYPED_TEST(CudaApply, WhatAGradientCannotHoldRefusesTheStep) {
  Target<TypeParam> target(5, std::vector<TypeParam>(5), 2, std::vector<float>(12));
  const OwnedBlock fitting(Entries{{2, 1}, {4, 70000}, {5, 2}, {12, kMax}, {INT32_MAX, kMax}});
  cuda::LaunchCheckFits(target.ArgsFor(fitting, 2, 1), nullptr);  // 12 lies beyond the bucket
  EXPECT_FALSE(BlockOnCpu(fitting.block()).header.IsRefused());
  const OwnedBlock too_large(Entries{{9, kMax}});
  cuda::LaunchCheckFits(target.ArgsFor(too_large, 2, 1), nullptr);
  EXPECT_EQ(BlockOnCpu(too_large.block()).header.flags,
            static_cast<std::uint32_t>(cuda::kSumNotFinite));
}

}  // namespace
}  // namespace hvd_sparse
