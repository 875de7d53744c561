#include "csrc/base/verdict.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace hvd_sparse {
namespace {

constexpr std::int32_t kHighestRank = (1 << 29) - 1;

std::int32_t BitsOf(Verdict verdict) {
  std::int32_t bits;
  std::memcpy(&bits, &verdict, sizeof(bits));
  return bits;
}

Verdict OfBits(std::int32_t bits) {
  Verdict verdict;
  std::memcpy(static_cast<void*>(&verdict), &bits, sizeof(bits));
  return verdict;
}

/// Returns verdicts from the worst to the best.
std::vector<Verdict> FromTheWorst() {
  return {Verdict::BadGradient(0),
          Verdict::BadGradient(7),
          Verdict::BadGradient(0, GradientFault::kHoldsNonFinite),
          Verdict::BadGradient(7, GradientFault::kHoldsNonFinite),
          Verdict::BadGradient(0, GradientFault::kBeyondFloat32),
          Verdict::BadGradient(kHighestRank, GradientFault::kBeyondFloat32),
          Verdict::Overflow(),
          Verdict()};
}

TEST(Verdict, HasTheBitsOfTheWireFormat) {
  EXPECT_EQ(BitsOf(Verdict()), 0x7fffffff);
  EXPECT_EQ(BitsOf(Verdict::Overflow()), 0x7ffffffe);
  EXPECT_EQ(BitsOf(Verdict::BadGradient(5)), 5);
  EXPECT_EQ(BitsOf(Verdict::BadGradient(5, GradientFault::kHoldsNonFinite)), 0x20000005);
  EXPECT_EQ(BitsOf(Verdict::BadGradient(5, GradientFault::kBeyondFloat32)), 0x40000005);
}

TEST(Verdict, IsOneOfThree) {
  for (const Verdict verdict : FromTheWorst()) {
    EXPECT_EQ(verdict.IsFinite(), verdict == Verdict());
    EXPECT_EQ(verdict.IsOverflow(), verdict == Verdict::Overflow());
    EXPECT_EQ(verdict.IsBadGradient(), !verdict.IsFinite() && !verdict.IsOverflow());
    EXPECT_TRUE(verdict.IsPossible());
  }
}

TEST(Verdict, OnAGradientNamesItsRankAndFault) {
  for (const GradientFault fault :
       {GradientFault::kUnchecked, GradientFault::kHoldsNonFinite, GradientFault::kBeyondFloat32}) {
    for (const std::int32_t rank : {0, 1, kHighestRank}) {
      const Verdict verdict = Verdict::BadGradient(rank, fault);
      EXPECT_EQ(verdict.rank(), rank);
      EXPECT_EQ(verdict.fault(), fault);
    }
  }
}

TEST(Verdict, KeepsTheWorseOfTwo) {
  const std::vector<Verdict> all = FromTheWorst();
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = 0; b < all.size(); ++b) {
      Verdict noted = all[a];
      noted.Note(all[b]);
      EXPECT_EQ(noted, all[std::min(a, b)]);
      EXPECT_EQ(all[a].Covers(all[b]), a <= b);
    }
  }
}

TEST(Verdict, OfNegativeBitsIsNotPossible) {
  for (const std::int32_t bits : {-1, INT32_MIN}) {
    EXPECT_FALSE(OfBits(bits).IsPossible());
    EXPECT_EQ(OfBits(bits).encoded(), bits);
  }
}

}  // namespace
}  // namespace hvd_sparse
