/// The dense passes of kernels.h, against plain loops.

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

namespace hvd_sparse {
namespace {

/// The exact top-k by sorting: zeros and NaN never, ties to the lower index.
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

// ---- Accumulate ---------------------------------------------------------------------------------

TEST(Accumulate, AddsTheScaledGradientToTheDecayedResidual) {
  for (const std::int64_t size : kSizes) {
    std::vector<float> grad(size), residual(size), expected(size);
    for (std::int64_t i = 0; i < size; ++i) {
      grad[i] = static_cast<float>(i % 101) - 50.0f;
      residual[i] = 0.37f * static_cast<float>(i % 57);
      expected[i] = 0.9f * residual[i];
      expected[i] += 0.3f * grad[i];
    }
    const GradView view{grad.data(), size, DType::kFloat32};
    EXPECT_EQ(CpuKernels().Accumulate(view, 0.9f, 0.3f, residual), 0);
    EXPECT_EQ(residual, expected);
  }
}

template <typename T>
void ExpectAccumulates(DType dtype) {
  constexpr std::int64_t kSize = 333;  // beyond 256, bfloat16 has no odd numbers
  std::vector<T> grad(kSize);
  std::vector<float> residual(kSize), expected(kSize);
  for (std::int64_t i = 0; i < kSize; ++i) {
    grad[i] = Narrow<T>(static_cast<float>(i) - 100.0f);  // exact in every number type
    residual[i] = static_cast<float>(3 * i);
    expected[i] = 2 * residual[i] + 4 * (static_cast<float>(i) - 100.0f);
  }
  EXPECT_EQ(CpuKernels().Accumulate({grad.data(), kSize, dtype}, 2, 4, residual), 0);
  EXPECT_EQ(residual, expected);
}

TEST(Accumulate, ReadsEveryNumberType) {
  ExpectAccumulates<float>(DType::kFloat32);
  ExpectAccumulates<double>(DType::kFloat64);
  ExpectAccumulates<Float16>(DType::kFloat16);
  ExpectAccumulates<BFloat16>(DType::kBFloat16);
}

TEST(Accumulate, KeepsOutAndCountsWhatIsNotFinite) {
  std::vector<float> grad(100, 1.0f), residual(100, 2.0f);
  grad[3] = kNan;
  grad[64] = kInf;
  grad[99] = -kInf;
  grad[50] = residual[50] = kMax;  // finite, but their sum is not
  const GradView view{grad.data(), 100, DType::kFloat32};
  std::vector<float> expected(100, 2.0f);
  for (const int i : {3, 64, 99}) expected[i] = 1.0f;
  expected[50] = 0.5f * kMax;
  EXPECT_EQ(CpuKernels().Accumulate(view, 0.5f, 1.0f, residual), 4);
  EXPECT_EQ(residual, expected);
}

TEST(Accumulate, CountsADecayThatOverflowsAndKeepsTheResidual) {
  std::vector<float> grad(70, 0.0f), residual(70, kMax);
  EXPECT_EQ(CpuKernels().Accumulate({grad.data(), 70, DType::kFloat32}, 4.0f, 1.0f, residual), 70);
  EXPECT_EQ(residual, std::vector<float>(70, kMax));
}

TEST(Accumulate, CountsADoubleBeyondFloat) {
  std::vector<double> grad(3, 1e300);
  std::vector<float> residual(3, 1.0f);
  EXPECT_EQ(CpuKernels().Accumulate({grad.data(), 3, DType::kFloat64}, 1.0f, 1.0f, residual), 3);
  EXPECT_EQ(residual, std::vector<float>(3, 1.0f));
}

TEST(Accumulate, KeepsDenormals) {
  std::vector<float> grad(40, kTiny), residual(40, 2 * kTiny);
  EXPECT_EQ(CpuKernels().Accumulate({grad.data(), 40, DType::kFloat32}, 1, 1, residual), 0);
  EXPECT_EQ(residual, std::vector<float>(40, 3 * kTiny));
}

// ---- Counting and selecting ---------------------------------------------------------------------

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

TEST(SelectAbove, WritesExactlyTheEntriesAboveInOrder) {
  for (const std::int64_t size : kSizes) {
    const std::vector<float> dense = Awkward(size, 1);
    for (const float threshold : {0.0f, kTiny, 20 * kTiny, 0.5f, 1.0f, 3.0f, 1e37f, kMax}) {
      Entries expected;
      for (std::int64_t i = 0; i < size; ++i) {
        if (std::fabs(dense[i]) > threshold) expected.push_back({Index(7 + i), dense[i]});
      }
      SparseBlock out;
      out.Reset(size);
      const auto count = CpuKernels().SelectAbove(dense, threshold, 7, 0, size, &out);
      EXPECT_EQ(count, static_cast<std::int64_t>(expected.size()));
      EXPECT_EQ(CpuKernels().CountAbove(dense, threshold), count);
      EXPECT_EQ(EntriesOf(out, count), expected);
    }
  }
}

TEST(SelectAbove, StopsAtTheLimitAndGoesOnCounting) {
  const std::vector<float> dense = Awkward(1000, 2);
  const auto above = CpuKernels().CountAbove(dense, 0.5f);
  ASSERT_GT(above, 100);
  SparseBlock all, some;
  all.Reset(1000);
  CpuKernels().SelectAbove(dense, 0.5f, 0, 0, 1000, &all);
  for (const std::int64_t limit :
       {std::int64_t{5}, std::int64_t{6}, std::int64_t{64}, above - 1, above, above + 1}) {
    some.Reset(limit + 5);
    std::fill_n(some.indices(), limit + 5, -1);
    std::fill_n(some.values(), limit + 5, -1.0f);
    EXPECT_EQ(CpuKernels().SelectAbove(dense, 0.5f, 0, 5, limit, &some), above);
    const auto fitted = std::min(above, limit - 5);
    EXPECT_EQ(EntriesOf(some, 5 + fitted, 5), EntriesOf(all, fitted));
    for (const std::int64_t untouched : {std::int64_t{4}, limit}) {
      EXPECT_EQ(some.indices()[untouched], -1);
      EXPECT_EQ(some.values()[untouched], -1.0f);
    }
  }
}

TEST(SelectAbove, AppendsSegmentAfterSegment) {
  const std::vector<float> dense = Awkward(500, 3);
  SparseBlock whole, parts;
  whole.Reset(500);
  parts.Reset(500);
  const auto count = CpuKernels().SelectAbove(dense, 1.0f, 0, 0, 500, &whole);
  const Span<const float> view(dense);
  std::int64_t filled = CpuKernels().SelectAbove(view.Sub(0, 123), 1.0f, 0, 0, 500, &parts);
  filled += CpuKernels().SelectAbove(view.Sub(123, 377), 1.0f, 123, filled, 500, &parts);
  EXPECT_EQ(filled, count);
  EXPECT_EQ(EntriesOf(parts, filled), EntriesOf(whole, count));
}

TEST(SelectAbove, NeverSelectsNan) {
  const std::vector<float> dense(200, kNan);
  SparseBlock out;
  out.Reset(200);
  EXPECT_EQ(CpuKernels().SelectAbove(dense, 0.0f, 0, 0, 200, &out), 0);
  EXPECT_EQ(CpuKernels().CountAbove(dense, 0.0f), 0);
}

TEST(Sample, IsSpreadEvenlyAndComplete) {
  std::vector<float> dense(100000), sample;
  std::iota(dense.begin(), dense.end(), 0.0f);
  CpuKernels().Sample(dense, 1000, &sample);
  ASSERT_GE(sample.size(), 1000u);
  ASSERT_LE(sample.size(), 1016u);
  EXPECT_TRUE(std::is_sorted(sample.begin(), sample.end()));
  EXPECT_NEAR(std::accumulate(sample.begin(), sample.end(), 0.0) / sample.size(), 50000, 100);
  CpuKernels().Sample(dense, 200000, &sample);
  EXPECT_EQ(sample, dense);
}

// ---- Exact top-k --------------------------------------------------------------------------------

Entries TopKOf(const std::vector<float>& dense, std::int64_t k, Index offset = 0) {
  SparseBlock out;
  out.Reset(k);
  const TopKCut cut = CpuKernels().FindTopK(dense, k);
  const std::int64_t count = CpuKernels().SelectCut(dense, cut, offset, 0, &out);
  return EntriesOf(out, count);
}

TEST(TopK, EqualsSortingOnAwkwardValues) {
  for (const std::int64_t size : kSizes) {
    const std::vector<float> dense = Awkward(size, 4);
    for (std::int64_t k = 1; k <= size; k = k < 4 ? k + 1 : k * 3) {
      ASSERT_EQ(TopKOf(dense, k, 11), SortedTopK(dense, k, 11)) << "of " << size << ", k " << k;
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

  // The sample sees only the large entries at the front of each stretch that it looks at.
  std::fill(dense.begin(), dense.end(), 0.25f);
  for (std::size_t i = 0; i < dense.size(); i += 2) dense[i] = kTiny;
  for (const std::int64_t k : {300, 5000}) EXPECT_EQ(TopKOf(dense, k), SortedTopK(dense, k));
}

TEST(TopK, FloorGuessedTooHighIsCorrected) {
  // Large entries exactly where the sample looks, too few of them for k.
  std::vector<float> dense(1 << 20, 0.0f), positions(dense.size()), sample;
  std::iota(positions.begin(), positions.end(), 0.0f);
  for (std::size_t i = 0; i < dense.size(); ++i) dense[i] = 1e-3f * static_cast<float>(i % 1009);
  constexpr std::int64_t kK = 100000;
  CpuKernels().Sample(positions, 1 << 14, &sample);
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

TEST(TopK, SelectCutStopsAtTheCapacity) {
  SparseBlock out;
  out.Reset(3);
  EXPECT_EQ(CpuKernels().SelectCut(std::vector<float>(9, 1.0f), {0.5f, 0}, 0, 1, &out), 2);
}

TEST(CpuKernels, NamesAnInstructionSet) {
  const std::string name = CpuInstructionSet();
  EXPECT_TRUE(name == "avx512" || name == "avx2" || name == "baseline") << name;
}

}  // namespace
}  // namespace hvd_sparse
