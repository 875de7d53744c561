/// Counting, the exact top-k and taking at positions, compared with plain loops.

#include "csrc/kernels/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/half.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/kernel_threads.h"
#include "tests/csrc/taking.h"

namespace hvd_sparse {
namespace {

/// Returns the exact top-k by sorting: never zeros or NaN, ties to the lower index.
Entries SortedTopK(const std::vector<float>& dense, std::int64_t k, Index offset = 0) {
  std::vector<Index> order;
  for (std::size_t i = 0; i < dense.size(); ++i) {
    if (std::fabs(dense[i]) > 0) order.push_back(static_cast<Index>(i));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](Index a, Index b) { return std::fabs(dense[a]) > std::fabs(dense[b]); });
  order.resize(std::min(order.size(), static_cast<std::size_t>(k)));
  std::sort(order.begin(), order.end());
  Entries entries;
  for (Index i : order) entries.push_back({offset + i, dense[i]});
  return entries;
}

// ---- Counting ----------------------------------------------------------------------------------

TEST(Moments, AreThoseOfThePopulation) {
  EXPECT_EQ(CpuKernels().ComputeMoments(Span<const float>()).stddev, 0);
  for (const std::int64_t size : {1, 2, 15, 16, 17, 1000}) {
    std::vector<float> dense(size);
    for (std::int64_t i = 0; i < size; ++i) dense[i] = static_cast<float>(i);
    const Moments moments = CpuKernels().ComputeMoments(dense);
    const double n = static_cast<double>(size);
    EXPECT_DOUBLE_EQ(moments.mean, (n - 1) / 2);
    EXPECT_NEAR(moments.stddev, std::sqrt((n * n - 1) / 12), 1e-9 * n);
  }
}

TEST(Moments, SquaresOfLargeFloatsDoNotOverflow) {
  const std::vector<float> dense = {kMax, -kMax, kMax, -kMax};
  EXPECT_DOUBLE_EQ(CpuKernels().ComputeMoments(dense).stddev, static_cast<double>(kMax));
}

TEST(CountAbove, CountsMagnitudesAndNeverNan) {
  for (const std::int64_t size : kSizes) {
    std::vector<float> dense = Awkward(size, 1);
    for (std::int64_t i = 9; i < size; i += 50) dense[i] = kNan;
    for (const float threshold : {0.0f, kTiny, 20 * kTiny, 0.5f, 1.0f, 3.0f, 1e37f, kMax}) {
      EXPECT_EQ(CpuKernels().CountAbove(dense, threshold),
                std::count_if(dense.begin(), dense.end(),
                              [&](float x) { return std::fabs(x) > threshold; }));
    }
  }
}

// ---- Exact top-k --------------------------------------------------------------------------------

/// Returns the entries that an exact top-k takes. Expects all others to stay, bit for bit.
Entries TopKOf(const std::vector<float>& dense, std::int64_t k, Index offset = 0) {
  constexpr std::int64_t kFilled = 2;
  std::vector<float> residual = dense;
  SparseBlock out;
  out.Reset(kFilled + k);
  const TopKCut cut = CpuKernels().FindTopK(dense, k);
  const std::int64_t count = TakeCut(CpuKernels(), residual, cut, {k, offset, kFilled}, &out);
  const Entries taken = EntriesOf(out, kFilled + count, kFilled);
  for (const Entry& entry : taken) {
    float& place = residual[static_cast<std::size_t>(entry.index - offset)];
    EXPECT_EQ(FloatBits(place), 0u);
    place = entry.value;
  }
  EXPECT_TRUE(SameBits(residual, dense));
  return taken;
}

TEST(TopK, EqualsSortingOnAwkwardValues) {
  for (const std::int64_t size : kSizes) {
    const std::vector<float> dense = Awkward(size, 4);
    for (std::int64_t k = 1; k <= size; k = k < 4 ? k + 1 : k * 3) {
      const Entries expected = SortedTopK(dense, k, 11);
      WithOneToThreeThreads(
          [&] { ASSERT_EQ(TopKOf(dense, k, 11), expected) << "of " << size << ", k " << k; });
    }
    if (size > 0) {
      ASSERT_EQ(TopKOf(dense, size), SortedTopK(dense, size));
    }
  }
}

TEST(TopK, EqualsSortingWhereASampleGuessesTheFloor) {
  std::mt19937 random(5);
  std::normal_distribution<float> gaussian;
  std::vector<float> dense(300000);
  for (float& value : dense) value = gaussian(random);
  for (const std::int64_t k : {1, 300, 5000}) EXPECT_EQ(TopKOf(dense, k), SortedTopK(dense, k));

  // The sample sees only the large entries at the front of each stretch that it reads.
  std::fill(dense.begin(), dense.end(), 0.25f);
  for (std::size_t i = 0; i < dense.size(); i += 2) dense[i] = kTiny;
  for (const std::int64_t k : {300, 5000}) EXPECT_EQ(TopKOf(dense, k), SortedTopK(dense, k));
}

TEST(TopK, FloorGuessedTooHighIsCorrected) {
  // Large entries lie exactly at the sample's places, but are fewer than k.
  std::vector<float> dense(1 << 20, 0.0f), positions(dense.size()), sample;
  std::iota(positions.begin(), positions.end(), 0.0f);
  for (std::size_t i = 0; i < dense.size(); ++i) dense[i] = 1e-3f * static_cast<float>(i % 1009);
  constexpr std::int64_t kK = 100000;
  CpuKernels().Sample({{}, 1, 1, positions}, 1 << 12, 0, &sample);
  for (const float position : sample) dense[static_cast<std::size_t>(position)] = 1e6f;
  EXPECT_EQ(TopKOf(dense, kK), SortedTopK(dense, kK));
}

TEST(TopK, TiesGoToTheLowerIndex) {
  EXPECT_EQ(TopKOf({1, -1, 1, -1}, 2), (Entries{{0, 1}, {1, -1}}));
  EXPECT_EQ(TopKOf({1, -1, 2, -1}, 2), (Entries{{0, 1}, {2, 2}}));
}

TEST(TopK, NeverKeepsZerosOrNan) {
  EXPECT_EQ(TopKOf({0, 5, -0.0f, kNan}, 4), (Entries{{1, 5}}));
  EXPECT_EQ(TopKOf(std::vector<float>(100, 0.0f), 100), Entries{});
  EXPECT_EQ(TopKOf(std::vector<float>(100, kNan), 10), Entries{});
}

TEST(TopK, OrdersDenormals) {
  EXPECT_EQ(TopKOf({kTiny, 3 * kTiny, 0, -2 * kTiny}, 2),
            (Entries{{1, 3 * kTiny}, {3, -2 * kTiny}}));
}

TEST(TopK, TakeCutStopsWhereTheRoomEndsAndLeavesTheRest) {
  std::vector<float> residual(9, 1.0f);
  SparseBlock out;
  out.Reset(3);
  EXPECT_EQ(TakeCut(CpuKernels(), residual, {0.5f, 0}, {2, 0, 1}, &out), 2);
  EXPECT_EQ(EntriesOf(out, 3, 1), (Entries{{0, 1}, {1, 1}}));
  EXPECT_EQ(residual, (std::vector<float>{0, 0, 1, 1, 1, 1, 1, 1, 1}));
}

TEST(TakeAt, TakesWhateverIsAtThePositions) {
  const std::vector<float> before = {1, -0.0f, kNan, 4, 0, kTiny};
  std::vector<float> residual = before;
  const std::vector<Index> positions = {1, 2, 4, 5};
  SparseBlock out;
  out.Reset(6);
  WithOneToThreeThreads([&] {
    residual = before;
    EXPECT_EQ(TakeAt(CpuKernels(), residual, positions, {4, 100, 2}, &out), 4);
    EXPECT_EQ(EntriesOf(out, 6, 2),
              (Entries{{101, -0.0f}, {102, kNan}, {104, 0.0f}, {105, kTiny}}));
    EXPECT_TRUE(SameBits(residual, std::vector<float>{1, 0, 0, 4, 0, 0}));
  });
  EXPECT_EQ(TakeAt(CpuKernels(), residual, std::vector<Index>{}, {4, 100, 2}, &out), 0);
  EXPECT_TRUE(SameBits(residual, std::vector<float>{1, 0, 0, 4, 0, 0}));
}

TEST(CpuKernels, NamesAnInstructionSet) {
  const std::string name = CpuInstructionSet();
  EXPECT_TRUE(name == "avx512" || name == "avx2" || name == "baseline") << name;
}

}  // namespace
}  // namespace hvd_sparse
