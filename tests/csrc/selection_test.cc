/// A selection in progress keeps each value in one place, whatever a sparsifier does with it.

#include "csrc/sparsifiers/selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/csrc/entries.h"
#include "tests/csrc/kernel_threads.h"

namespace hvd_sparse {
namespace {

constexpr Index kOffset = 700;
constexpr std::int64_t kFilled = 2, kRoom = 500;

/// A segment with gradients of several sizes and number types, each with its own learning rate.
class SelectionTest : public testing::Test {
 protected:
  SelectionTest() {
    Add<float>(3000, 1, 1);
    Add<double>(1, 0.5f, 1);
    Add<Float16>(0, 1, 1);
    Add<BFloat16>(70000, 0.25f, 2);
    Add<Float16>(999, 1, 0.5f);
    size_ = static_cast<std::int64_t>(bucket_.size()) - kOffset;
    std::int64_t begin = 0;
    for (Feedback& part : feedback_) {
      part.residual = residual().Sub(begin, part.grad.numel);
      begin += part.grad.numel;
    }
    std::vector<float> before = bucket_;
    for (const Feedback& part : feedback_) not_finite_ += CpuKernels().Accumulate(part);
    accumulated_.assign(residual().begin(), residual().end());
    bucket_ = before;  // same memory: the parts still point into it
    block_.Reset(kFilled + kRoom);
  }

  Span<float> residual() { return Span<float>(bucket_).Sub(kOffset, size_); }

  Selection Begin() {
    return {feedback_, residual(), kOffset, kFilled, kRoom, CpuKernels(), &block_};
  }

  /// Expects that the residual and the taken entries make up the accumulated segment.
  void ExpectNothingIsLost(const Selection& selection) {
    std::vector<float> together(residual().begin(), residual().end());
    for (const Entry& entry : EntriesOf(block_, kFilled + selection.taken(), kFilled)) {
      float& place = together[static_cast<std::size_t>(entry.index - kOffset)];
      EXPECT_EQ(FloatBits(place), 0u);
      place = entry.value;
    }
    EXPECT_TRUE(SameBits(together, accumulated_));
  }

  std::int64_t Above(float threshold) const {
    return CpuKernels().CountAbove(accumulated_, threshold);
  }

  std::int64_t size_ = 0, not_finite_ = 0;
  std::vector<Feedback> feedback_;
  std::vector<float> accumulated_;
  SparseBlock block_;

 private:
  template <typename T>
  void Add(std::int64_t size, float decay, float scale) {
    const auto seed = static_cast<int>(feedback_.size());
    std::vector<T> gradient;
    for (const float value : Awkward(size, 41 + seed)) gradient.push_back(Narrow<T>(value));
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(gradient.data());
    memory_.emplace_back(bytes, bytes + sizeof(T) * gradient.size());
    feedback_.push_back({{memory_.back().data(), size, kDTypeOf<T>}, decay, scale, {}});
    const std::vector<float> residual = Awkward(size, 51 + seed);
    bucket_.insert(bucket_.end(), residual.begin(), residual.end());
  }

  std::vector<std::vector<std::uint8_t>> memory_;
  std::vector<float> bucket_ = std::vector<float>(kOffset, 7.0f);
};

TEST_F(SelectionTest, TakingKeepsEachValueAtOnePlace) {
  WithOneToThreeThreads([&] {
    const std::vector<float> before(residual().begin(), residual().end());
    for (const float threshold : {0.0f, 1.0f, 1e37f, 3.5e37f}) {
      Selection selection = Begin();
      EXPECT_EQ(selection.TakeAbove(threshold), Above(threshold));
      EXPECT_EQ(selection.taken(), std::min(Above(threshold), kRoom));
      EXPECT_EQ(selection.not_finite(), not_finite_);
      ExpectNothingIsLost(selection);
      std::copy(before.begin(), before.end(), residual().begin());
    }
  });
}

TEST_F(SelectionTest, AnotherTryGivesWhatTheFirstOneWouldHave) {
  Selection selection = Begin();
  for (const float threshold : {2.0f, 0.0f, 3e37f, 3.5e37f}) {
    EXPECT_EQ(selection.TakeAbove(threshold), Above(threshold));
    ExpectNothingIsLost(selection);
    selection.PutBack();
    EXPECT_EQ(selection.taken(), 0);
    EXPECT_TRUE(SameBits(residual(), accumulated_));
  }
  EXPECT_EQ(selection.not_finite(), not_finite_);  // counted once
}

TEST_F(SelectionTest, KeepTopKPutsTheOthersBack) {
  Selection selection = Begin();
  selection.TakeAbove(3e37f);
  const std::int64_t taken = selection.taken();
  ASSERT_GT(taken, 100);
  for (const std::int64_t k : {taken + 1, taken, taken - 1, std::int64_t{50}, std::int64_t{0}}) {
    selection.KeepTopK(k);
    EXPECT_EQ(selection.taken(), std::min(k, taken));
    ExpectNothingIsLost(selection);
  }
}

TEST_F(SelectionTest, TopKAndPositionsDoErrorFeedbackToo) {
  for (const bool top_k : {true, false}) {
    const std::vector<float> before(residual().begin(), residual().end());
    Selection selection = Begin();
    if (top_k) {
      selection.TakeTopK(kRoom);
    } else {
      selection.TakeAt(std::vector<Index>{0, 2999, 3000, 3001, 73000, 73999});
    }
    EXPECT_EQ(selection.taken(), top_k ? kRoom : 6);
    EXPECT_EQ(selection.not_finite(), not_finite_);
    ExpectNothingIsLost(selection);
    std::copy(before.begin(), before.end(), residual().begin());
  }
}

TEST_F(SelectionTest, DenseIsTheSegmentAfterErrorFeedback) {
  Selection selection = Begin();
  EXPECT_TRUE(SameBits(selection.Dense(), accumulated_));
  EXPECT_TRUE(SameBits(selection.Dense(), accumulated_));  // accumulated only once
  EXPECT_EQ(selection.not_finite(), not_finite_);
}

TEST_F(SelectionTest, ASampleIsOfTheSegmentAfterErrorFeedback) {
  Selection selection = Begin();
  const std::vector<float> before(residual().begin(), residual().end());
  const Span<const float> all = selection.Sample(10 * size_, 0);
  EXPECT_TRUE(SameBits(all, accumulated_));
  EXPECT_TRUE(SameBits(residual(), before));
  const std::int64_t early = selection.Sample(1000, 0).size;
  selection.Dense();
  const std::int64_t late = selection.Sample(1000, 0).size;
  for (const std::int64_t size : {early, late}) {
    EXPECT_GE(size, 1000);
    EXPECT_LE(size, 1100);
  }
}

TEST_F(SelectionTest, EntriesBeforeItStayAsTheyAre) {
  std::fill_n(block_.indices(), kFilled, 3);
  std::fill_n(block_.values(), kFilled, 5.0f);
  Selection selection = Begin();
  selection.TakeAbove(0);
  selection.KeepTopK(10);
  selection.PutBack();
  selection.TakeTopK(20);
  EXPECT_EQ(EntriesOf(block_, kFilled), (Entries{{3, 5}, {3, 5}}));
  EXPECT_EQ(residual().data[-1], 7.0f);
}

TEST_F(SelectionTest, AnySequenceOfStepsLosesNothing) {
  std::mt19937 random(61);
  Selection selection = Begin();
  for (int i = 0; i < 300; ++i) {
    if (selection.taken() > 0) {
      if (random() % 2 == 0) {
        selection.KeepTopK(static_cast<std::int64_t>(random() % kRoom));
      } else {
        selection.PutBack();
      }
    } else if (random() % 3 == 0) {
      selection.TakeTopK(1 + static_cast<std::int64_t>(random() % kRoom));
    } else {
      selection.TakeAbove(std::exp2(static_cast<float>(random() % 130)));
    }
    if (i % 10 == 0) ExpectNothingIsLost(selection);
  }
  selection.PutBack();
  EXPECT_TRUE(SameBits(residual(), accumulated_));
}

}  // namespace
}  // namespace hvd_sparse
