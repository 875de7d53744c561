/// What becomes of the entries of a step, where blocks lie on a device: as on the CPU.

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "csrc/cuda/block_settle.h"
#include "csrc/cuda/scatter.h"
#include "csrc/kernels/half.h"
#include "tests/csrc/cuda/device_blocks.h"

namespace hvd_sparse {
namespace {

cuda::DeviceBlockHeader Refused() {
  cuda::DeviceBlockHeader header;
  header.bad_rank = 1;
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
    cuda::LaunchSettle(OwnedBlock(selected).block(), OwnedBlock(reduced).block(), residual.span(),
                       nullptr);
    EXPECT_TRUE(SameBits(residual.Values(), expected)) << "of " << size;
  }
}

TEST_F(CudaSettle, AllGoBackWhereTheStepIsRefused) {
  const Entries entries = {{Marked(0, true), 5}, {Marked(2, true), 6}};
  DeviceArray<float> residual(std::vector<float>{0, 1, 0});
  const OwnedBlock selected(entries), reduced(entries, Refused());
  cuda::LaunchSettle(selected.block(), reduced.block(), residual.span(), nullptr);
  EXPECT_EQ(residual.Values(), (std::vector<float>{5, 1, 6}));
}

TEST_F(CudaSettle, MalformedBlocksOfOthersAreSafe) {
  const OwnedBlock selected(Entries{{0, 1}, {2, 3}, {3, 4}});
  const OwnedBlock chaos(Entries{{9, 1}, {2, 1}, {2, 1}, {INT32_MAX, 1}, {-1, 1}, {0, 1}});
  DeviceArray<float> residual(std::vector<float>(4));
  cuda::LaunchSettle(selected.block(), chaos.block(), residual.span(), nullptr);
  EXPECT_EQ(residual.Values()[1], 0.0f);
}

template <typename T>
class CudaApply : public CudaTest {};
TYPED_TEST_SUITE(CudaApply, GradientTypes);

TYPED_TEST(CudaApply, EqualsTheCpu) {
  for (const std::int64_t size : {1, 4097}) {
    Entries entries = EveryThird(size / 2 + 1, 32);  // beyond the gradient, too
    for (Entry& entry : entries) {                   // that a narrow type can hold
      entry.value = std::fmod(entry.value, 1000.0f);
    }
    const std::vector<TypeParam> dirty(size, Narrow<TypeParam>(-3.0f));
    const std::vector<float> before = Awkward(size, 33);
    for (const std::int64_t shift : {0, 1}) {
      std::vector<TypeParam> expected = dirty;
      std::vector<float> left = before;
      DeviceArray<TypeParam> grad(dirty, shift);
      DeviceArray<float> residual(before);
      std::vector<std::pair<Index, float>> undo;
      constexpr DType kType = kDTypeOf<TypeParam>;
      const Index offset = size > 1000 ? 500 : 0;
      EXPECT_EQ(CpuKernels().Scatter(MakeBlock(entries), 0.7f, offset,
                                     {expected.data(), size, kType}, left, &undo, 0.25f),
                0);
      const OwnedBlock reduced(entries);
      const cuda::Applying applying{reduced.block(), 0.7f, offset, {grad.data(), size, kType},
                                    residual.span(), 0.25f};
      cuda::LaunchCheckFits(applying, nullptr);
      cuda::LaunchApply(applying, nullptr);
      const std::vector<TypeParam> written = grad.Values();
      EXPECT_EQ(std::memcmp(written.data(), expected.data(), sizeof(TypeParam) * size), 0);
      EXPECT_TRUE(SameBits(residual.Values(), left));
      EXPECT_EQ(BlockOnCpu(reduced.block()).header.flags, 0u);
    }
  }
}

TYPED_TEST(CudaApply, NothingIsWrittenWhereTheStepIsRefused) {
  const std::vector<TypeParam> before(100, Narrow<TypeParam>(-3.0f));
  DeviceArray<TypeParam> grad(before);
  const OwnedBlock reduced(Entries{{3, 1}}, Refused());
  const cuda::Applying applying{
      reduced.block(), 1, 0, {grad.data(), 100, kDTypeOf<TypeParam>}, {}, 1};
  cuda::LaunchApply(applying, nullptr);
  const std::vector<TypeParam> after = grad.Values();
  EXPECT_EQ(std::memcmp(after.data(), before.data(), sizeof(TypeParam) * 100), 0);
}

TYPED_TEST(CudaApply, WhatAGradientCannotHoldRefusesTheStep) {
  DeviceArray<TypeParam> grad(std::vector<TypeParam>(10));
  const OwnedBlock reduced(Entries{{2, 1}, {4, kMax}, {12, kMax}});
  cuda::Applying applying{reduced.block(), 2, 5, {grad.data(), 5, kDTypeOf<TypeParam>}, {}, 1};
  cuda::LaunchCheckFits(applying, nullptr);  // places 5 to 9: neither 4 nor 12
  EXPECT_FALSE(BlockOnCpu(reduced.block()).header.IsRefused());
  applying.offset = 0;
  cuda::LaunchCheckFits(applying, nullptr);
  EXPECT_EQ(BlockOnCpu(reduced.block()).header.flags,
            static_cast<std::uint32_t>(cuda::kSumNotFinite));
}

}  // namespace
}  // namespace hvd_sparse
