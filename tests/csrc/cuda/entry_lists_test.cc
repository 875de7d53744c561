/// Entries returned to a residual, compared with the kernels of the CPU; needs no GPU.

#include "csrc/cuda/kernels/entry_lists.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "tests/csrc/entries.h"

namespace hvd_sparse::cuda {
namespace {

using Pairs = std::vector<std::pair<Index, float>>;

void Write(const EntryList& entries, std::vector<float>* residual) {
  for (std::int64_t i = 0; i < entries.count(); ++i) {
    (*residual)[entries.positions[i]] = entries.values[i];
  }
}

/// Returns entries at about half of the positions, some with the survived bit.
Entries SomeEntries(std::int64_t size, int seed) {
  std::mt19937 random(seed);
  const std::vector<float> values = Awkward(size, seed);
  Entries entries;
  for (Index i = 0; i < size; ++i) {
    if (random() % 2 == 0) entries.push_back({Marked(i, random() % 3 != 0), values[i]});
  }
  return entries;
}

Entries WithoutBits(Entries entries) {
  for (Entry& entry : entries) entry.index = Position(entry.index);
  return entries;
}

TEST(EntryLists, UndeliveredIsWhatSettlePutsBack) {
  for (const std::int64_t size : kSizes) {
    const SparseBlock selected = MakeBlock(WithoutBits(SomeEntries(size, 1)));
    for (const int seed : {1, 2}) {
      const SparseBlock reduced = MakeBlock(SomeEntries(seed == 1 ? size : size / 2, seed));
      std::vector<float> expected(size), residual(size);
      CpuKernels().Settle(selected, reduced, expected);
      Write(Undelivered(selected, reduced), &residual);
      EXPECT_TRUE(SameBits(residual, expected));
    }
  }
}

TEST(EntryLists, UndeliveredStandsMalformedBlocks) {
  const SparseBlock selected = MakeBlock({{0, 1}, {2, 3}, {3, 4}});
  const SparseBlock chaos = MakeBlock({{9, 1}, {2, 1}, {2, 1}, {INT32_MAX, 1}, {-1, 1}, {0, 1}});
  EXPECT_LE(Undelivered(selected, chaos).count(), 3);
}

TEST(EntryLists, DroppedIsWhatKeepTopKReturns) {
  for (const std::int64_t size : kSizes) {
    const Entries entries = WithoutBits(SomeEntries(size, 3));
    const auto count = static_cast<std::int64_t>(entries.size());
    for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1}, count / 3, count}) {
      const std::int64_t begin = std::min<std::int64_t>(count, 2);
      SparseBlock block = MakeBlock(entries), same = MakeBlock(entries);
      std::vector<float> expected(size), residual(size);
      CpuKernels().KeepTopK(k, begin, count, &same, expected);
      EntryList before;
      for (std::int64_t i = begin; i < count; ++i) before.Add(entries[i].index, entries[i].value);
      const std::int64_t end = CpuKernels().KeepTopK(k, begin, count, &block);
      Write(Dropped(before, block, begin, end), &residual);
      EXPECT_TRUE(SameBits(residual, expected)) << "of " << count << ", k " << k;
    }
  }
}

TEST(EntryLists, ErrorsAreAddedAsOnTheCpuAndUndone) {
  std::mt19937 random(5);
  const std::vector<float> before = Awkward(200, 6);
  Pairs errors;
  for (int n = 0; n < 500; ++n) {
    errors.emplace_back(static_cast<Index>(random() % 210) - 5, 0.25f * static_cast<float>(n));
  }
  std::vector<float> expected = before, residual = before;
  Pairs undo_of_cpu = {{7, 7}}, undo = {{7, 7}};
  CpuKernels().AddErrors(errors, expected, &undo_of_cpu);
  EntryList places = PlacesOf(errors, 200);
  for (std::int64_t i = 0; i < places.count(); ++i) {
    places.values[i] = residual[places.positions[i]];
  }
  AddErrorsTo(&places, errors, &undo);
  Write(places, &residual);
  EXPECT_TRUE(SameBits(residual, expected));
  EXPECT_EQ(undo, undo_of_cpu);

  undo.erase(undo.begin());
  Write(FirstValues(undo), &residual);
  EXPECT_TRUE(SameBits(residual, before));
}

}  // namespace
}  // namespace hvd_sparse::cuda
