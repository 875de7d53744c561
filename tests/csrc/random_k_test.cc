/// RandomK: the drawn entries follow from the state alone, and every entry is equally likely.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "tests/csrc/segment.h"

namespace hvd_sparse {
namespace {

std::vector<Index> PositionsOf(const Step& step) {
  std::vector<Index> positions;
  for (const Entry& entry : step.taken) positions.push_back(entry.index);
  return positions;
}

std::vector<Index> DrawFrom(Segment* segment, const std::vector<float>& gradient, std::int64_t k) {
  return PositionsOf(segment->Run(gradient, k));
}

TEST(RandomK, DrawsTheSamePositionsForTheSameStateWhateverTheData) {
  constexpr std::int64_t kSize = 10007, kK = 101;
  Segment one("random_k", kSize), other("random_k", kSize);
  Gradients gradients(StudentT3, kSize);
  const std::vector<float> zeros(kSize);
  for (int step = 0; step < 20; ++step) {
    const std::vector<Index> positions = DrawFrom(&one, gradients.Next(), kK);
    EXPECT_EQ(positions, DrawFrom(&other, zeros, kK));
    EXPECT_EQ(one.state.own, static_cast<float>(step + 1));
  }
  // A checkpoint resumes where it was saved.
  Segment restored("random_k", kSize);
  restored.state = one.state;
  EXPECT_EQ(DrawFrom(&restored, zeros, kK), DrawFrom(&one, zeros, kK));
}

TEST(RandomK, DrawsDistinctAscendingPositions) {
  // Segment::Run expects that they ascend and lie inside, and that nothing is lost.
  for (const std::int64_t size : {1, 2, 3, 7, 64, 1000, 65537}) {
    Segment segment("random_k", size);
    const std::vector<float> gradient(size, 1.0f);
    for (const std::int64_t k : {std::int64_t{1}, (size + 2) / 3, size - 1, size}) {
      if (k < 1) continue;
      for (int step = 0; step < 10; ++step) {
        EXPECT_EQ(segment.Run(gradient, k).count(), k) << "of " << size;
      }
    }
  }
}

TEST(RandomK, DrawsOtherPositionsInEveryStepAndForEverySeed) {
  constexpr std::int64_t kSize = 10000, kK = 50;
  const std::vector<float> gradient(kSize, 1.0f);
  std::set<std::vector<Index>> seen;
  for (const double seed : {0.0, 1.0, -1.0, 9007199254740992.0}) {
    Segment segment("random_k", kSize, {{"seed", seed}});
    for (int step = 0; step < 50; ++step) {
      EXPECT_TRUE(seen.insert(DrawFrom(&segment, gradient, kK)).second);
    }
  }
}

TEST(RandomK, GivesEveryEntryTheSameChance) {
  struct Case {
    std::int64_t size, k;
  };
  constexpr int kDraws = 20000;
  for (const Case c : {Case{100, 10}, {97, 10}, {10, 7}, {103, 52}, {64, 1}, {7, 6}}) {
    Segment segment("random_k", c.size);
    const std::vector<float> gradient(c.size, 1.0f);
    std::vector<int> times(c.size);
    for (int draw = 0; draw < kDraws; ++draw) {
      for (const Index i : DrawFrom(&segment, gradient, c.k)) ++times[i];
    }
    const double share = static_cast<double>(c.k) / static_cast<double>(c.size);
    const double expected = kDraws * share, variance = expected * (1 - share);
    double chi_square = 0;
    for (const int count : times) {
      const double error = count - expected;
      chi_square += error * error / variance;
      EXPECT_LT(std::fabs(error), 5 * std::sqrt(variance)) << c.k << " of " << c.size;
    }
    // Mean `size`, standard deviation sqrt(2 size); strata make it smaller, if anything.
    const double size = static_cast<double>(c.size);
    EXPECT_LT(chi_square, size + 5 * std::sqrt(2 * size)) << c.k << " of " << c.size;
  }
}

TEST(RandomK, SegmentsOfABucketDrawIndependently) {
  // Otherwise two segments of one bucket would always send the same positions.
  constexpr std::int64_t kSize = 5000, kK = 50;
  const auto sparsifier = MakeSparsifier("random_k", {});
  std::vector<float> bucket(2 * kSize, 1.0f), zeros(2 * kSize);
  std::vector<Index> positions[2];
  for (Index side = 0; side < 2; ++side) {
    const Index offset = side * kSize;
    const Span<float> residual = Span<float>(bucket).Sub(offset, kSize);
    const std::vector<Feedback> feedback = {
        {{zeros.data() + offset, kSize, DType::kFloat32}, 1, 1, residual}};
    SparseBlock block;
    block.Reset(kK);
    SelectionState state;
    Selection selection(feedback, residual, offset, 0, kK, CpuKernels(), &block);
    sparsifier->Select(kK, &state, &selection);
    for (std::int64_t i = 0; i < kK; ++i) positions[side].push_back(block.indices()[i] - offset);
  }
  EXPECT_NE(positions[0], positions[1]);
}

TEST(RandomK, TheCounterOfDrawsStartsAgainBeforeFloatsEnd) {
  constexpr std::int64_t kSize = 1000, kK = 10;
  Segment segment("random_k", kSize);
  const std::vector<float> gradient(kSize, 1.0f);
  const std::vector<Index> first = DrawFrom(&segment, gradient, kK);
  segment.state.own = 16777214.0f;  // 2^24 - 2
  DrawFrom(&segment, gradient, kK);
  EXPECT_EQ(segment.state.own, 16777215.0f);
  DrawFrom(&segment, gradient, kK);
  EXPECT_EQ(segment.state.own, 0.0f);
  EXPECT_EQ(DrawFrom(&segment, gradient, kK), first);
}

}  // namespace
}  // namespace hvd_sparse
