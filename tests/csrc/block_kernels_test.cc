/// The kernels of kernels.h that work on blocks: merge, trim, settle, put back.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "csrc/kernels/kernels.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/kernel_threads.h"
#include "tests/csrc/taking.h"

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
  own.header().verdict = Verdict::BadGradient(5);
  theirs.header().verdict = Verdict::BadGradient(1);
  CpuKernels().Merge(own, theirs, &out);
  EXPECT_EQ(out.header().bucket, 3u);
  EXPECT_EQ(out.header().step, 4u);
  EXPECT_EQ(out.header().verdict, Verdict::BadGradient(5));
}

TEST(Merge, MalformedBlocksAreSafe) {
  const Entries chaos = {{9, 1}, {2, 1}, {2, 1}, {INT32_MAX, 1}, {0, 1}};
  EXPECT_LE(Merged(chaos, {{5, 1}, {1, 1}}).size(), 7u);
  EXPECT_LE(Merged({{5, 1}, {1, 1}}, chaos).size(), 7u);
  EXPECT_LE(Merged(chaos, chaos).size(), 10u);
}

// ---- Trimming -----------------------------------------------------------------------------------

/// Returns the k largest of the entries by sorting, ties to the lower index, zeros included.
Entries SortedTopK(Entries entries, std::int64_t k) {
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::fabs(a.value) > std::fabs(b.value);
  });
  entries.resize(std::min(entries.size(), static_cast<std::size_t>(k)));
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return Position(a.index) < Position(b.index); });
  return entries;
}

Entries Part(const Entries& entries, std::int64_t begin, std::int64_t end) {
  return {entries.begin() + begin, entries.begin() + end};
}

TEST(KeepTopK, EqualsSorting) {
  for (const std::int64_t size : kSizes) {
    const Entries entries = EveryThird(size, 7);
    for (std::int64_t k = 0; k <= size + 1; k = k < 4 ? k + 1 : k * 3) {
      const Entries expected = SortedTopK(entries, k);
      SparseBlock block = MakeBlock(entries);
      const std::int64_t end = CpuKernels().KeepTopK(k, 0, size, &block);
      ASSERT_EQ(EntriesOf(block, end), expected) << "of " << size << ", k " << k;
    }
  }
}

TEST(KeepTopK, ReturnsWhatItDropsAndTouchesNothingElse) {
  for (const std::int64_t size : {10, 64, 200, 1000, 70000}) {
    const Entries entries = EveryThird(size, 7);
    // Taken entries have left zeros; between them lie entries that were not taken.
    std::vector<float> before = Awkward(3 * size, 9);
    for (const Entry& entry : entries) before[Position(entry.index)] = 0;
    for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1}, size / 3, size - 3}) {
      const std::int64_t begin = 2, end = size - 1;
      const Entries kept = SortedTopK(Part(entries, begin, end), k);
      std::vector<float> expected = before, residual = before;
      for (const Entry& entry : Part(entries, begin, end)) {
        expected[Position(entry.index)] = entry.value;
      }
      for (const Entry& entry : kept) expected[Position(entry.index)] = 0;

      SparseBlock block = MakeBlock(entries);
      const std::int64_t new_end = CpuKernels().KeepTopK(k, begin, end, &block, residual);
      ASSERT_EQ(EntriesOf(block, new_end, begin), kept) << "of " << size << ", k " << k;
      EXPECT_EQ(EntriesOf(block, begin), Part(entries, 0, begin));
      EXPECT_TRUE(SameBits(residual, expected)) << "of " << size << ", k " << k;
    }
  }
}

TEST(KeepTopK, KeepsAllWhereTheyAreFewEnough) {
  const Entries entries = EveryThird(100, 7);
  SparseBlock block = MakeBlock(entries);
  std::vector<float> residual(300, 1.0f);
  for (const std::int64_t k : {90, 91, 1000}) {
    EXPECT_EQ(CpuKernels().KeepTopK(k, 10, 100, &block, residual), 100);
  }
  EXPECT_EQ(CpuKernels().KeepTopK(0, 10, 10, &block, residual), 10);
  EXPECT_EQ(EntriesOf(block), entries);
  EXPECT_EQ(residual, std::vector<float>(300, 1.0f));
}

TEST(KeepTopK, KeepsNonFiniteSumsWhereTheyAreSeen) {
  SparseBlock block = MakeBlock({{0, 1}, {1, kNan}, {2, kInf}, {3, 2}});
  ASSERT_EQ(CpuKernels().KeepTopK(2, 0, 4, &block), 2);
  EXPECT_EQ(block.indices()[0], 1);
  EXPECT_EQ(block.indices()[1], 2);
}

TEST(KeepTopK, MalformedBlocksAreSafe) {
  // Blocks of sums have no residual; -1 is the largest position with the survived bit.
  SparseBlock block = MakeBlock({{9, 1}, {2, 3}, {2, 1}, {INT32_MAX, 5}, {-1, 1}, {0, 4}});
  EXPECT_EQ(CpuKernels().KeepTopK(3, 0, 6, &block), 3);
}

// ---- Entries that were taken --------------------------------------------------------------------

TEST(Settle, PutsBackWhatWasNotDeliveredAndNothingElse) {
  const SparseBlock selected = MakeBlock({{1, 10}, {3, 30}, {4, 40}, {7, 70}});
  const SparseBlock reduced =
      MakeBlock({{Marked(0, true), 1}, {Marked(1, true), 1}, {3, 1}, {Marked(7, true), 1}});
  std::vector<float> residual = {5, 0, 5, 0, 0, 5, 5, 0};
  CpuKernels().Settle(selected, reduced, residual);
  EXPECT_EQ(residual, (std::vector<float>{5, 0, 5, 30, 40, 5, 5, 0}));
}

TEST(Settle, EqualsThePlainLoop) {
  for (const std::int64_t size : kSizes) {
    // Positions 3i were selected; the agreed block shares some of them, and has others.
    const Entries selected = EveryThird(size, 7);
    Entries reduced;
    std::mt19937 random(11);
    for (Index i = 0; i < 3 * size; ++i) {
      if (random() % 3 == 0) reduced.push_back({Marked(i, random() % 2 == 0), 1.0f});
    }
    for (const Entries& agreed : {reduced, Entries{}, Part(reduced, 0, reduced.size() / 2)}) {
      std::vector<float> residual = Awkward(3 * size, 9);
      for (const Entry& entry : selected) residual[Position(entry.index)] = 0;
      std::vector<float> expected = residual;
      for (const Entry& entry : selected) expected[Position(entry.index)] = entry.value;
      for (const Entry& entry : agreed) {
        const Index i = Position(entry.index);
        if (i % 3 == 0 && Survived(entry.index)) expected[i] = 0;
      }
      CpuKernels().Settle(MakeBlock(selected), MakeBlock(agreed), residual);
      EXPECT_TRUE(SameBits(residual, expected)) << "of " << size;
    }
  }
}

TEST(Settle, MalformedBlocksOfOthersAreSafe) {
  const SparseBlock selected = MakeBlock({{0, 1}, {2, 3}, {3, 4}});
  const SparseBlock chaos = MakeBlock({{9, 1}, {2, 1}, {2, 1}, {INT32_MAX, 1}, {-1, 1}, {0, 1}});
  std::vector<float> residual(4);
  CpuKernels().Settle(selected, chaos, residual);
  EXPECT_EQ(residual[1], 0.0f);
}

TEST(PutBack, UndoesTakingToTheBit) {
  const std::vector<float> before = Awkward(200000, 8);
  WithOneToThreeThreads([&] {
    for (const std::int64_t limit : {0, 1, 700, 200000}) {
      std::vector<float> residual = before;
      SparseBlock block;
      block.Reset(limit);
      const Tally tally = TakeAbove(CpuKernels(), residual, 0.5f, {limit}, &block);
      const std::int64_t middle = tally.taken / 2;
      CpuKernels().PutBack(block, middle, tally.taken, residual);
      EXPECT_EQ(middle == 0, static_cast<bool>(SameBits(residual, before)));
      CpuKernels().PutBack(block, 0, middle, residual);
      EXPECT_TRUE(SameBits(residual, before));
    }
  });
}

TEST(AddErrors, AddsInOrderAndTellsWhatWasThereBefore) {
  std::vector<float> residual = {1, 2, 3, 4};
  const std::vector<float> before = residual;
  const std::vector<std::pair<Index, float>> errors = {{0, 8}, {3, 8}, {3, 16}, {4, 1}, {-1, 1}};
  std::vector<std::pair<Index, float>> undo = {{7, 7}};
  CpuKernels().AddErrors(errors, residual, &undo);
  EXPECT_EQ(residual, (std::vector<float>{9, 2, 3, 28}));
  EXPECT_EQ(undo, (std::vector<std::pair<Index, float>>{{7, 7}, {0, 1}, {3, 4}, {3, 12}}));
  CpuKernels().Restore(Span<const std::pair<Index, float>>(undo).Sub(1, 3), residual);
  EXPECT_EQ(residual, before);
}

TEST(PutBack, UndoesSettleToTheBit) {
  const std::vector<float> before = Awkward(2000, 8);
  std::vector<float> residual = before;
  SparseBlock selected, reduced;
  selected.Reset(2000);
  selected.Finish(TakeAbove(CpuKernels(), residual, 0.5f, {2000}, &selected).taken);
  reduced.CopyFrom(selected);
  for (std::int64_t i = 0; i < reduced.count(); i += 2) {
    reduced.indices()[i] = Marked(reduced.indices()[i], true);
  }
  CpuKernels().Settle(selected, reduced, residual);
  EXPECT_FALSE(SameBits(residual, before));
  CpuKernels().PutBack(selected, 0, selected.count(), residual);
  EXPECT_TRUE(SameBits(residual, before));
}

}  // namespace
}  // namespace hvd_sparse
