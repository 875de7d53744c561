/// OneSign: the largest entries of the sign with the larger mean, as a plain computation finds
/// them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/csrc/segment.h"

namespace hvd_sparse {
namespace {

/// Sorts by descending magnitude, ties by ascending index.
void SortByMagnitude(Entries* entries) {
  std::stable_sort(entries->begin(), entries->end(), [](const Entry& a, const Entry& b) {
    return std::fabs(a.value) > std::fabs(b.value);
  });
}

void SortByIndex(Entries* entries) {
  std::sort(entries->begin(), entries->end(),
            [](const Entry& a, const Entry& b) { return a.index < b.index; });
}

/// Returns the k largest of a sign among entries in descending order, in the order of indices.
Entries LargestOf(bool negative, std::int64_t k, const Entries& sorted) {
  Entries found;
  for (const Entry& entry : sorted) {
    const bool fits = static_cast<std::int64_t>(found.size()) < k;
    if (fits && std::signbit(entry.value) == negative) found.push_back(entry);
  }
  SortByIndex(&found);
  return found;
}

double SumOf(const Entries& entries) {
  double sum = 0;
  for (const Entry& entry : entries) sum += std::fabs(double{entry.value});
  return sum;
}

/// Drops the smallest entry again and again, until the mean is at most twice the least.
Entries Levelled(Entries entries) {
  SortByMagnitude(&entries);
  std::vector<double> sums = {0};
  for (const Entry& entry : entries) sums.push_back(sums.back() + std::fabs(double{entry.value}));
  const auto is_level = [&] {
    const auto count = static_cast<double>(entries.size());
    return sums[entries.size()] <= 2 * std::fabs(double{entries.back().value}) * count;
  };
  while (!entries.empty() && !is_level()) entries.pop_back();
  SortByIndex(&entries);
  return entries;
}

Entries Expected(const std::vector<float>& values, std::int64_t k) {
  const auto size = static_cast<std::int64_t>(values.size());
  Entries sorted;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != 0) sorted.push_back({static_cast<Index>(i), values[i]});
  }
  SortByMagnitude(&sorted);
  const auto both = static_cast<std::size_t>(std::min(2 * k, size));
  const bool has_more = sorted.size() >= both && 2 * k < size;
  sorted.resize(std::min(sorted.size(), both));
  const double bound = has_more ? std::fabs(sorted.back().value) : 0;
  const Entries plus = LargestOf(false, k, sorted), minus = LargestOf(true, k, sorted);
  const auto rank = [&](const Entries& entries) {
    const auto count = static_cast<std::int64_t>(entries.size());
    return std::pair(SumOf(entries) + bound * static_cast<double>(k - count), count);
  };
  return Levelled(rank(minus) > rank(plus) ? minus : plus);
}

TEST(OneSign, TakesWhatAPlainComputationTakes) {
  for (const auto& [name, draw] : kDistributions) {
    for (const std::int64_t size : {1, 2, 3, 100, 20000}) {
      for (const double density : {0.01, 0.3, 0.5, 1.0}) {
        const std::int64_t k = KOf(density, size);
        SCOPED_TRACE(testing::Message() << name << ", size " << size << ", k " << k);
        Gradients gradients(draw, size);
        Segment segment("one_sign", size);
        for (int step = 0; step < 5; ++step) {
          const Step found = segment.Run(gradients.Next(), k);
          ASSERT_EQ(found.taken, Expected(found.accumulated, k));
        }
      }
    }
  }
}

TEST(OneSign, TakesEqualMagnitudesInTheOrderOfTheirIndices) {
  Segment segment("one_sign", 8);
  const Step found = segment.Run({1, -1, 1, 1, -1, -1, -1, 1}, 3);
  EXPECT_EQ(found.taken, (Entries{{0, 1}, {2, 1}, {3, 1}}));
}

TEST(OneSign, TakesAllThatItCanOfEqualMagnitudesOfOneSign) {
  for (const float value : {3.0f, -3.0f, 0.1f, -0.1f}) {
    std::vector<float> gradient(1000, value);
    Segment segment("one_sign", 1000);
    EXPECT_EQ(segment.Run(gradient, 10).count(), 10);
    gradient[5] = -value;
    EXPECT_EQ(Segment("one_sign", 1000).Run(gradient, 10).count(), 10);
  }
}

TEST(OneSign, AFewLargeEntriesDoNotWinAgainstManyOfTheOtherSign) {
  std::vector<float> gradient(1000, 0.5f);
  for (std::size_t i = 500; i < 1000; ++i) gradient[i] = -2.0f - static_cast<float>(i % 7);
  gradient[7] = 40;
  Segment segment("one_sign", 1000);
  const Step found = segment.Run(gradient, 100);
  EXPECT_EQ(found.count(), 100);
  for (const Entry& entry : found.taken) EXPECT_LT(entry.value, -2.0f);
}

TEST(OneSign, TheOtherSignFollowsInTheNextStep) {
  std::vector<float> gradient(100, 0.0f);
  for (std::size_t i = 0; i < 10; ++i) gradient[i] = i % 2 == 0 ? 3.0f : -2.0f;
  Segment segment("one_sign", 100);
  const Step first = segment.Run(gradient, 5);
  const Step second = segment.Run(std::vector<float>(100, 0.0f), 5);
  EXPECT_EQ(first.count(), 5);
  EXPECT_EQ(second.count(), 5);
  for (const Entry& entry : first.taken) EXPECT_EQ(entry.value, 3.0f);
  for (const Entry& entry : second.taken) EXPECT_EQ(entry.value, -2.0f);
}

TEST(OneSign, LeavesWhatIsFarBelowTheMean) {
  std::vector<float> gradient(100, 1.0f);
  for (std::size_t i = 0; i < 4; ++i) gradient[10 * i] = 100.0f + static_cast<float>(i);
  Segment segment("one_sign", 100);
  EXPECT_EQ(segment.Run(gradient, 50).taken, (Entries{{0, 100}, {10, 101}, {20, 102}, {30, 103}}));
}

TEST(OneSign, DropsNothingOfWhatFallsOffLikeGradients) {
  constexpr std::int64_t kSize = 100000, kK = 1000;
  for (const Draw& draw : {Draw(Gauss), Draw(Laplace), Draw(StudentT3)}) {
    Gradients gradients(draw, kSize);
    Segment segment("one_sign", kSize);
    for (int step = 0; step < 3; ++step) {
      EXPECT_GE(segment.Run(gradients.Next(), kK).count(), 9 * kK / 10);
    }
  }
}

}  // namespace
}  // namespace hvd_sparse
