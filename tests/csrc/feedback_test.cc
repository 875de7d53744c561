/// Error feedback and taking, as specified in kernels.h and candidates.h, compared with plain loops
/// bit for bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "csrc/kernels/half.h"
#include "csrc/kernels/kernels.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/kernel_threads.h"
#include "tests/csrc/taking.h"

namespace hvd_sparse {
namespace {

/// Sizes around those of vectors, chunks and the parts of threads.
const std::vector<std::int64_t> kPassSizes = {0,   1,   31,  32,    127,   128,   129,
                                              511, 512, 513, 65535, 65536, 65537, 200000};

constexpr Index kOffset = 1000;      // of the residual in its bucket
constexpr std::int64_t kFilled = 3;  // entries already in the block

struct Scaling {
  float decay, scale;
};
constexpr Scaling kScalings[] = {{1, 1}, {0.9f, 0.3f}};

/// Distances between non-finite entries: some in every chunk, or in few of them.
constexpr std::int64_t kStrides[] = {97, 7001};

/// Returns awkward values in T, some of them not finite.
template <typename T>
std::vector<T> AwkwardGradient(std::int64_t size, std::int64_t stride) {
  std::vector<T> gradient;
  for (const float value : Awkward(size, 21)) {
    // Large halves would overflow in every chunk.
    const bool narrow = sizeof(T) == 2 && std::fabs(value) > 1e3f && stride > 1000;
    gradient.push_back(Narrow<T>(narrow ? 1e-35f * value : value));
  }
  for (std::int64_t i = 5; i < size; i += stride) {
    gradient[i] = Narrow<T>(i % 2 == 0 ? kNan : -kInf);
  }
  if constexpr (std::is_same_v<T, double>) {
    for (double& value : gradient) value *= 1.0 + 1e-9;                   // between two floats
    for (std::int64_t i = 7; i < size; i += stride) gradient[i] = 1e300;  // beyond all of them
  }
  return gradient;
}

template <typename T>
Feedback FeedbackOf(std::vector<T>& gradient, Scaling scaling, std::vector<float>& residual) {
  const auto size = static_cast<std::int64_t>(gradient.size());
  return {{gradient.data(), size, kDTypeOf<T>}, scaling.decay, scaling.scale, residual};
}

/// Results of one pass.
struct Outcome {
  std::vector<float> residual;
  Entries taken;
  Tally tally;
};

void ExpectEqual(const Outcome& actual, const Outcome& expected) {
  EXPECT_TRUE(SameBits(actual.residual, expected.residual));
  EXPECT_EQ(actual.taken, expected.taken);
  EXPECT_EQ(actual.tally.above, expected.tally.above);
  EXPECT_EQ(actual.tally.taken, expected.tally.taken);
  EXPECT_EQ(actual.tally.not_finite, expected.tally.not_finite);
}

template <typename T>
std::int64_t PlainAccumulate(const std::vector<T>& gradient, Scaling scaling,
                             std::vector<float>* residual) {
  std::int64_t not_finite = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const float before = (*residual)[i];
    const float decayed = scaling.decay * before;
    const float sum = decayed + scaling.scale * Widen(gradient[i]);
    (*residual)[i] = std::isfinite(sum) ? sum : (std::isfinite(decayed) ? decayed : before);
    not_finite += std::isfinite(sum) ? 0 : 1;
  }
  return not_finite;
}

Outcome PlainTake(std::vector<float> residual, float threshold, std::int64_t room) {
  Outcome outcome{std::move(residual), {}, {}};
  for (std::size_t i = 0; i < outcome.residual.size(); ++i) {
    if (!(std::fabs(outcome.residual[i]) > threshold)) continue;
    if (++outcome.tally.above > room) continue;
    outcome.taken.push_back({kOffset + static_cast<Index>(i), outcome.residual[i]});
    outcome.residual[i] = 0;
  }
  outcome.tally.taken = static_cast<std::int64_t>(outcome.taken.size());
  return outcome;
}

/// Runs take(residual, place, block) with a block that has `room`.
template <typename Take>
Outcome RunTake(const std::vector<float>& residual, std::int64_t room, Take take) {
  constexpr float kUntouched = -7;
  Outcome outcome{residual, {}, {}};
  SparseBlock block;
  const std::int64_t limit = kFilled + room;
  block.Reset(limit + 1);
  std::fill_n(block.indices(), limit + 1, -1);
  std::fill_n(block.values(), limit + 1, kUntouched);
  outcome.tally = take(outcome.residual, TakingPlace{room, kOffset, kFilled}, &block);
  outcome.taken = EntriesOf(block, kFilled + outcome.tally.taken, kFilled);
  for (const std::int64_t place : {kFilled - 1, limit}) {
    EXPECT_EQ(block.indices()[place], -1);
    EXPECT_EQ(block.values()[place], kUntouched);
  }
  return outcome;
}

Outcome RunTakeAbove(const std::vector<float>& residual, float threshold, std::int64_t room) {
  return RunTake(residual, room,
                 [&](std::vector<float>& into, const TakingPlace& place, SparseBlock* block) {
                   return TakeAbove(CpuKernels(), into, threshold, place, block);
                 });
}

/// Returns no room, almost none, less than a chunk, just enough, one more, and far more.
std::set<std::int64_t> Rooms(std::int64_t above) {
  std::set<std::int64_t> rooms = {0, 1, 100, above, above + 1, above + 600};
  if (above > 0) rooms.insert(above - 1);
  return rooms;
}

// ---- Error feedback -----------------------------------------------------------------------------

template <typename T>
class FeedbackOfType : public testing::Test {};
TYPED_TEST_SUITE(FeedbackOfType, GradientTypes);

TYPED_TEST(FeedbackOfType, AccumulateEqualsThePlainLoop) {
  for (const std::int64_t size : kPassSizes) {
    std::vector<TypeParam> gradient = AwkwardGradient<TypeParam>(size, kStrides[0]);
    for (const Scaling scaling : kScalings) {
      const std::vector<float> before = Awkward(size, 22);
      std::vector<float> expected = before;
      const std::int64_t not_finite = PlainAccumulate(gradient, scaling, &expected);
      WithOneToThreeThreads([&] {
        std::vector<float> residual = before;
        EXPECT_EQ(CpuKernels().Accumulate(FeedbackOf(gradient, scaling, residual)), not_finite);
        EXPECT_TRUE(SameBits(residual, expected)) << "of " << size;
      });
    }
  }
}

/// Compares taking with a gradient, for all kinds of room, with error feedback followed by taking,
/// and with the plain loops.
template <typename T>
void ExpectFusedEqualsPlain(std::vector<T> gradient, Scaling scaling, float threshold) {
  const auto size = static_cast<std::int64_t>(gradient.size());
  const std::vector<float> before = Awkward(size, 22);
  std::vector<float> accumulated = before;
  const std::int64_t not_finite = PlainAccumulate(gradient, scaling, &accumulated);
  const auto fused = [&](std::vector<float>& residual, const TakingPlace& place,
                         SparseBlock* block) {
    return TakeAbove(CpuKernels(), FeedbackOf(gradient, scaling, residual), threshold, place,
                     block);
  };
  for (const std::int64_t room : Rooms(CpuKernels().CountAbove(accumulated, threshold))) {
    const Outcome taken = PlainTake(accumulated, threshold, room);
    Outcome both = taken;
    both.tally.not_finite = not_finite;
    WithOneToThreeThreads([&] {
      SCOPED_TRACE(testing::Message() << size << " entries, room " << room);
      ExpectEqual(RunTakeAbove(accumulated, threshold, room), taken);
      ExpectEqual(RunTake(before, room, fused), both);
    });
  }
}

TYPED_TEST(FeedbackOfType, TakingEqualsOneAfterTheOtherAndThePlainLoop) {
  for (const std::int64_t size : kPassSizes) {
    for (const std::int64_t stride : kStrides) {
      const std::vector<TypeParam> gradient = AwkwardGradient<TypeParam>(size, stride);
      for (const Scaling scaling : kScalings) {
        for (const float threshold : {0.0f, 1.5f, 2e37f}) {
          ExpectFusedEqualsPlain(gradient, scaling, threshold);
        }
      }
    }
  }
}

TYPED_TEST(FeedbackOfType, ASampleBeforeFeedbackIsTheOneAfterIt) {
  for (const std::int64_t size : kPassSizes) {
    std::vector<TypeParam> gradient = AwkwardGradient<TypeParam>(size, kStrides[0]);
    const std::vector<float> before = Awkward(size, 22);
    for (const Scaling scaling : kScalings) {
      for (const std::int64_t count : {1, 16, 1000, 1000000}) {
        std::vector<float> residual = before, early, late;
        const Feedback feedback = FeedbackOf(gradient, scaling, residual);
        CpuKernels().Sample(feedback, count, 7, &early);
        EXPECT_TRUE(SameBits(residual, before));
        CpuKernels().Accumulate(feedback);
        CpuKernels().Sample({{}, 1, 1, residual}, count, 7, &late);
        EXPECT_TRUE(SameBits(early, late)) << count << " of " << size;
      }
    }
  }
}

/// A velocity in the feedback is the same as a pass for the velocity, and one that adds it.
TYPED_TEST(FeedbackOfType, AVelocityIsUpdatedAndAddedAsByTwoPasses) {
  constexpr float kMomentum = 0.9f, kThreshold = 1.5f;
  for (const std::int64_t size : kPassSizes) {
    std::vector<TypeParam> gradient = AwkwardGradient<TypeParam>(size, kStrides[0]);
    const std::vector<float> before = Awkward(size, 22), moving = Awkward(size, 33);
    for (const Scaling scaling : kScalings) {
      std::vector<float> velocity = moving, residual = before, sample;
      const Scaling with_momentum{kMomentum, scaling.scale};
      std::int64_t not_finite = PlainAccumulate(gradient, with_momentum, &velocity);
      not_finite += PlainAccumulate(velocity, {scaling.decay, 1}, &residual);
      CpuKernels().Sample({{}, 1, 1, residual}, size / 3, 7, &sample);
      const std::int64_t room = CpuKernels().CountAbove(residual, kThreshold);
      Outcome taken = PlainTake(residual, kThreshold, room);
      taken.tally.not_finite = not_finite;

      WithOneToThreeThreads([&] {
        SCOPED_TRACE(testing::Message() << size << " entries");
        std::vector<float> own_velocity = moving, own = before, early;
        const auto feedback = [&](std::vector<float>& into) {
          Feedback all = FeedbackOf(gradient, scaling, into);
          all.velocity = own_velocity;
          all.momentum = kMomentum;
          return all;
        };
        CpuKernels().Sample(feedback(own), size / 3, 7, &early);
        EXPECT_TRUE(SameBits(early, sample));
        EXPECT_TRUE(SameBits(own, before) && SameBits(own_velocity, moving));
        EXPECT_EQ(CpuKernels().Accumulate(feedback(own)), not_finite);
        EXPECT_TRUE(SameBits(own, residual) && SameBits(own_velocity, velocity));

        own_velocity = moving;
        const auto fused = [&](std::vector<float>& into, const TakingPlace& place,
                               SparseBlock* block) {
          return TakeAbove(CpuKernels(), feedback(into), kThreshold, place, block);
        };
        ExpectEqual(RunTake(before, room, fused), taken);
        EXPECT_TRUE(SameBits(own_velocity, velocity));
      });
    }
  }
}

TEST(Accumulate, KeepsOutAndCountsWhatIsNotFinite) {
  std::vector<float> gradient(100, 1.0f), residual(100, 2.0f);
  gradient[3] = kNan;
  gradient[64] = kInf;
  gradient[99] = -kInf;
  gradient[50] = residual[50] = kMax;  // finite, but their sum is not
  for (const float decay : {0.5f, 1.0f}) {
    std::vector<float> into = residual, expected(100, 2.0f * decay + 1.0f);
    for (const int i : {3, 64, 99}) expected[i] = 2.0f * decay;
    expected[50] = decay * kMax;
    EXPECT_EQ(CpuKernels().Accumulate(FeedbackOf(gradient, {decay, 1}, into)), 4);
    EXPECT_EQ(into, expected);
  }
}

TEST(Accumulate, CountsADecayThatOverflowsAndKeepsTheResidual) {
  std::vector<float> gradient(70, 0.0f), residual(70, kMax);
  EXPECT_EQ(CpuKernels().Accumulate(FeedbackOf(gradient, {4, 1}, residual)), 70);
  EXPECT_EQ(residual, std::vector<float>(70, kMax));
}

TEST(Accumulate, CountsADoubleBeyondFloat) {
  std::vector<double> gradient(3, 1e300);
  std::vector<float> residual(3, 1.0f);
  EXPECT_EQ(CpuKernels().Accumulate(FeedbackOf(gradient, {1, 1}, residual)), 3);
  EXPECT_EQ(residual, std::vector<float>(3, 1.0f));
}

TEST(Accumulate, KeepsDenormals) {
  std::vector<float> gradient(40, kTiny), residual(40, 2 * kTiny);
  EXPECT_EQ(CpuKernels().Accumulate(FeedbackOf(gradient, {1, 1}, residual)), 0);
  EXPECT_EQ(residual, std::vector<float>(40, 3 * kTiny));
}

// ---- Taking -------------------------------------------------------------------------------------

TEST(TakeAbove, LeavesEveryValueAtExactlyOnePlace) {
  for (const std::int64_t size : kPassSizes) {
    const std::vector<float> before = Awkward(size, 23);
    for (const float threshold : {0.0f, kTiny, 20 * kTiny, 0.5f, 1.0f, 3.0f, 1e37f, kMax}) {
      for (const std::int64_t room : Rooms(CpuKernels().CountAbove(before, threshold))) {
        WithOneToThreeThreads([&] {
          Outcome outcome = RunTakeAbove(before, threshold, room);
          for (const Entry& entry : outcome.taken) {
            float& place = outcome.residual[static_cast<std::size_t>(entry.index - kOffset)];
            EXPECT_EQ(FloatBits(place), 0u);
            EXPECT_NE(entry.value, 0.0f);
            place = entry.value;
          }
          EXPECT_TRUE(SameBits(outcome.residual, before)) << size << ", room " << room;
        });
      }
    }
  }
}

TEST(TakeAbove, NeverTakesNanAndKeepsItsBits) {
  for (const std::int64_t size : {1, 130, 200000}) {
    std::vector<float> dense(size, kNan);
    for (std::int64_t i = 3; i < size; i += 64) dense[i] = -5.0f;
    WithOneToThreeThreads([&] {
      const Outcome outcome = RunTakeAbove(dense, 0.0f, size);
      ExpectEqual(outcome, PlainTake(dense, 0.0f, size));
      EXPECT_EQ(outcome.tally.above, CpuKernels().CountAbove(dense, 0.0f));
    });
  }
}

TEST(TakeAbove, AppendsSegmentAfterSegment) {
  const std::vector<float> dense = Awkward(500, 24);
  const Outcome whole = PlainTake(dense, 1.0f, 500);
  std::vector<float> residual = dense;
  const Span<float> view(residual);
  SparseBlock block;
  block.Reset(500);
  const auto candidates = CandidatesAt({500, kOffset}, CpuKernels(), view, &block);
  const Tally first = candidates->Take({{}, 1, 1, view.Sub(0, 123)}, 1.0f);
  EXPECT_EQ(candidates->count(), first.taken);
  const Tally second = candidates->Take({{}, 1, 1, view.Sub(123, 377)}, 1.0f);
  EXPECT_EQ(candidates->count(), first.taken + second.taken);
  EXPECT_EQ(EntriesOf(block, first.taken + second.taken), whole.taken);
  EXPECT_TRUE(SameBits(residual, whole.residual));
}

TEST(TakeAbove, WritesNothingWhereTheBlockIsFullAlready) {
  const std::vector<float> dense(1000, 1.0f);
  std::vector<float> residual = dense;
  const Span<float> view(residual);
  SparseBlock block;
  block.Reset(10);
  const auto candidates = CandidatesAt({10}, CpuKernels(), view, &block);
  EXPECT_EQ(candidates->Take({{}, 1, 1, view.Sub(0, 100)}, 0.5f).taken, 10);
  const Tally tally = candidates->Take({{}, 1, 1, view.Sub(100, 900)}, 0.5f);
  EXPECT_EQ(tally.above, 900);
  EXPECT_EQ(tally.taken, 0);
  candidates->TakeCut(view.Sub(100, 900), {0.5f, 0});
  candidates->TakeAt(view.Sub(100, 900), std::vector<Index>{0, 1});
  EXPECT_EQ(candidates->count(), 10);
  candidates->PutBack();
  EXPECT_EQ(residual, dense);
}

// ---- Samples ------------------------------------------------------------------------------------

TEST(Sample, IsSpreadEvenlyAndComplete) {
  std::vector<float> dense(100000), sample;
  std::iota(dense.begin(), dense.end(), 0.0f);
  CpuKernels().Sample({{}, 1, 1, dense}, 1000, 0, &sample);
  ASSERT_GE(sample.size(), 1000u);
  ASSERT_LE(sample.size(), 1016u);
  EXPECT_TRUE(std::is_sorted(sample.begin(), sample.end()));
  EXPECT_NEAR(std::accumulate(sample.begin(), sample.end(), 0.0) / sample.size(), 50000, 100);
  sample.clear();
  CpuKernels().Sample({{}, 1, 1, dense}, 200000, 0, &sample);
  EXPECT_EQ(sample, dense);
}

TEST(Sample, IsAppended) {
  std::vector<float> dense(1000, 2.0f), sample = {1.0f, 1.0f};
  CpuKernels().Sample({{}, 1, 1, dense}, 32, 0, &sample);
  std::vector<float> expected = {1.0f, 1.0f};
  expected.resize(34, 2.0f);
  EXPECT_EQ(sample, expected);
}

}  // namespace
}  // namespace hvd_sparse
