/// What kernels.h does with blocks: merge, trim, settle, scatter.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "csrc/kernels/half.h"
#include "csrc/kernels/kernels.h"
#include "tests/csrc/entries.h"

namespace hvd_sparse {
namespace {

Entries Merged(const Entries& own, const Entries& theirs) {
  const SparseBlock a = MakeBlock(own), b = MakeBlock(theirs);
  SparseBlock out;
  CpuKernels().Merge(a, b, &out);
  return EntriesOf(out);
}

TEST(Merge, AddsWhatMeetsAndKeepsTheRest) {
  EXPECT_EQ(Merged({{1, 1}, {5, 2}}, {{0, 4}, {5, 8}, {9, 16}}),
            (Entries{{0, 4}, {1, 1}, {5, 10}, {9, 16}}));
  EXPECT_EQ(Merged({}, {{3, 1}}), (Entries{{3, 1}}));
  EXPECT_EQ(Merged({{3, 1}}, {}), (Entries{{3, 1}}));
  EXPECT_EQ(Merged({}, {}), Entries{});
}

TEST(Merge, KeepsOwnSurvivedBitsAndDropsTheirs) {
  EXPECT_EQ(Merged({{Marked(1, true), 1}, {3, 1}, {Marked(5, true), 1}},
                   {{Marked(1, true), 1}, {Marked(3, true), 1}, {Marked(4, true), 1}}),
            (Entries{{Marked(1, true), 2}, {3, 2}, {4, 1}, {Marked(5, true), 1}}));
}

TEST(Merge, IsCommutativeToTheBit) {
  std::mt19937 random(6);
  for (const std::int64_t size : kSizes) {
    Entries blocks[2];
    for (int side = 0; side < 2; ++side) {
      const std::vector<float> values = Awkward(size, 10 + side);
      for (std::int64_t i = 0; i < size; ++i) {
        if (random() % 3 == 0) blocks[side].push_back({static_cast<Index>(i), values[i]});
      }
    }
    EXPECT_EQ(Merged(blocks[0], blocks[1]), Merged(blocks[1], blocks[0]));
  }
  // Zeros of either sign, alone and together.
  const Entries a = {{0, 0.0f}, {1, -0.0f}, {2, -0.0f}, {3, 5.0f}, {4, -0.0f}};
  const Entries b = {{0, -0.0f}, {1, 0.0f}, {2, -0.0f}, {3, -5.0f}};
  EXPECT_EQ(Merged(a, b), Merged(b, a));
  EXPECT_EQ(Merged(a, {}), a);
}

TEST(Merge, OutHasTheHeaderOfOwn) {
  SparseBlock own = MakeBlock({{1, 1}}), theirs = MakeBlock({{2, 1}}), out;
  own.header().bucket = 3;
  own.header().step = 4;
  own.header().bad_rank = 5;
  theirs.header().bad_rank = 1;
  CpuKernels().Merge(own, theirs, &out);
  EXPECT_EQ(out.header().bucket, 3u);
  EXPECT_EQ(out.header().step, 4u);
  EXPECT_EQ(out.header().bad_rank, 5);
}

TEST(Merge, MalformedBlocksAreSafe) {
  const Entries chaos = {{9, 1}, {2, 1}, {2, 1}, {INT32_MAX, 1}, {0, 1}};
  EXPECT_LE(Merged(chaos, {{5, 1}, {1, 1}}).size(), 7u);
  std::vector<float> grad(4), residual(4);
  const SparseBlock block = MakeBlock(chaos);
  const GradView view{grad.data(), 4, DType::kFloat32};
  CpuKernels().Scatter(block, 1, 0, view, residual, nullptr);
  CpuKernels().Settle(block, block, residual);
}

TEST(KeepTopK, EqualsSorting) {
  for (const std::int64_t size : kSizes) {
    std::vector<float> values = Awkward(size, 7);
    Entries entries;
    for (std::int64_t i = 0; i < size; ++i) {
      entries.push_back({Marked(static_cast<Index>(3 * i), i % 5 == 0), values[i]});
    }
    for (std::int64_t k = 0; k <= size + 1; k = k < 4 ? k + 1 : k * 3) {
      Entries expected = entries;
      std::stable_sort(expected.begin(), expected.end(), [](const Entry& a, const Entry& b) {
        return std::fabs(a.value) > std::fabs(b.value);
      });
      expected.resize(std::min(expected.size(), static_cast<std::size_t>(k)));
      std::sort(expected.begin(), expected.end(), [](const Entry& a, const Entry& b) {
        return Position(a.index) < Position(b.index);
      });
      SparseBlock block = MakeBlock(entries);
      CpuKernels().KeepTopK(k, &block);
      ASSERT_EQ(EntriesOf(block), expected) << "of " << size << ", k " << k;
    }
  }
}

TEST(KeepTopK, KeepsNonFiniteSumsWhereTheyAreSeen) {
  SparseBlock block = MakeBlock({{0, 1}, {1, kNan}, {2, kInf}, {3, 2}});
  CpuKernels().KeepTopK(2, &block);
  ASSERT_EQ(block.count(), 2);
  EXPECT_EQ(block.indices()[0], 1);
  EXPECT_EQ(block.indices()[1], 2);
}

TEST(Settle, ZeroesWhatWasDeliveredAndNothingElse) {
  const SparseBlock selected = MakeBlock({{1, 10}, {3, 30}, {4, 40}, {7, 70}});
  const SparseBlock reduced =
      MakeBlock({{Marked(0, true), 1}, {Marked(1, true), 1}, {3, 1}, {Marked(7, true), 1}});
  std::vector<float> residual = {5, 10, 5, 30, 40, 5, 5, 70};
  CpuKernels().Settle(selected, reduced, residual);
  EXPECT_EQ(residual, (std::vector<float>{5, 0, 5, 30, 40, 5, 5, 0}));
}

TEST(PutBack, UndoesSettleToTheBit) {
  std::vector<float> residual = Awkward(2000, 8);
  const std::vector<float> before = residual;
  SparseBlock selected, reduced;
  selected.Reset(2000);
  selected.Finish(CpuKernels().SelectAbove(residual, 0.5f, 0, 0, 2000, &selected));
  reduced.CopyFrom(selected);
  for (std::int64_t i = 0; i < reduced.count(); i += 2) {
    reduced.indices()[i] = Marked(reduced.indices()[i], true);
  }
  CpuKernels().Settle(selected, reduced, residual);
  EXPECT_NE(std::memcmp(residual.data(), before.data(), 8000), 0);
  CpuKernels().PutBack(selected, residual);
  EXPECT_EQ(std::memcmp(residual.data(), before.data(), 8000), 0);
}

// ---- Scatter ------------------------------------------------------------------------------------

TEST(Scatter, WritesThePartThatBelongsToTheGradient) {
  const SparseBlock reduced =
      MakeBlock({{1, 1}, {Marked(4, true), 2}, {6, 4}, {Marked(9, true), 8}, {10, 16}});
  std::vector<float> grad(6, 99.0f), residual(6, 1.0f);
  std::vector<std::pair<Index, float>> undo;
  const GradView view{grad.data(), 6, DType::kFloat32};
  EXPECT_EQ(CpuKernels().Scatter(reduced, 0.5f, 4, view, residual, &undo), 0);
  EXPECT_EQ(grad, (std::vector<float>{1, 0, 2, 0, 0, 4}));
  EXPECT_EQ(residual, std::vector<float>(6, 1.0f));
  EXPECT_TRUE(undo.empty());

  std::vector<double> wide(6, 99.0);
  EXPECT_EQ(
      CpuKernels().Scatter(reduced, 0.5f, 4, {wide.data(), 6, DType::kFloat64}, residual, &undo),
      0);
  EXPECT_EQ(wide, (std::vector<double>{1, 0, 2, 0, 0, 4}));
}

template <typename Half>
void ExpectLossGoesIntoTheResidual(DType dtype, float loss_scale) {
  const std::vector<float> values = {1.0f, 1.0001f, -3.14159f, 1e-6f, 0.0f};
  SparseBlock reduced;
  reduced.Reset(5);
  for (Index i = 0; i < 5; ++i) {
    reduced.indices()[i] = 100 + 2 * i;
    reduced.values()[i] = values[i];
  }
  reduced.Finish(5);
  std::vector<Half> grad(10);
  std::vector<float> residual(10, 0.125f);
  const std::vector<float> before = residual;
  std::vector<std::pair<Index, float>> undo;
  EXPECT_EQ(CpuKernels().Scatter(reduced, 2.0f, 100, {grad.data(), 10, dtype}, residual, &undo,
                                 loss_scale),
            0);
  for (Index i = 0; i < 10; ++i) {
    const float wanted = i % 2 == 0 ? 2.0f * values[i / 2] : 0.0f;
    EXPECT_EQ(grad[i].bits, Narrow<Half>(wanted).bits);
    EXPECT_EQ(residual[i], 0.125f + loss_scale * (wanted - Widen(grad[i])));
  }
  ASSERT_GE(undo.size(), 2u);
  for (auto it = undo.rbegin(); it != undo.rend(); ++it) residual[it->first - 100] = it->second;
  EXPECT_EQ(residual, before);
}

TEST(Scatter, ReturnsWhatRoundingLosesToTheResidual) {
  for (const float loss_scale : {1.0f, 0.25f}) {
    ExpectLossGoesIntoTheResidual<Float16>(DType::kFloat16, loss_scale);
    ExpectLossGoesIntoTheResidual<BFloat16>(DType::kBFloat16, loss_scale);
  }
}

TEST(Scatter, CountsWhatIsNotFiniteInTheNarrowType) {
  const SparseBlock reduced = MakeBlock({{0, 1e5f}, {1, 1}, {2, kInf}, {3, kNan}});
  std::vector<Float16> grad(4);
  std::vector<float> wide(4), residual(4, 1.0f);
  std::vector<std::pair<Index, float>> undo;
  EXPECT_EQ(CpuKernels().Scatter(reduced, 1, 0, {grad.data(), 4, DType::kFloat16}, residual, &undo),
            3);
  EXPECT_EQ(CpuKernels().Scatter(reduced, 1, 0, {wide.data(), 4, DType::kFloat32}, residual, &undo),
            2);
  EXPECT_EQ(residual, std::vector<float>(4, 1.0f));
}

TEST(Scatter, EmptyGradientAndEmptyBlock) {
  std::vector<float> residual;
  std::vector<std::pair<Index, float>> undo;
  EXPECT_EQ(CpuKernels().Scatter(MakeBlock({{5, 1}}), 1, 5, {nullptr, 0, DType::kFloat32}, residual,
                                 &undo),
            0);
  std::vector<float> grad(3, 9.0f);
  CpuKernels().Scatter(MakeBlock({}), 1, 0, {grad.data(), 3, DType::kFloat32}, residual, &undo);
  EXPECT_EQ(grad, std::vector<float>(3, 0.0f));
}

}  // namespace
}  // namespace hvd_sparse
