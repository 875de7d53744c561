/// The verdict: which steps a failure ends, and which deaths the user of a process with several
/// exchanges has been told of.

#include "csrc/comm/lifeline_verdict.h"

#include <gtest/gtest.h>

namespace hvd_sparse {
namespace {

constexpr char kDied[] = "has died (host h, pid 7)";
constexpr double kShort = 1e-9;  // seconds of grace

TEST(LifelineVerdict, AFailureEndsItsStepAndThoseAfterIt) {
  LifelineVerdict verdict(3, "exchange");
  verdict.Committed(4);
  EXPECT_TRUE(verdict.CanCommit(5));
  EXPECT_TRUE(verdict.Failed(1, ErrorKind::kExchangeFailed, "enough", 5));
  EXPECT_FALSE(verdict.Current(kShort));
  EXPECT_FALSE(verdict.AtEnd());
  EXPECT_TRUE(verdict.Current(0));  // as when nothing can be in flight any more
  EXPECT_TRUE(verdict.CanCommit(5));
  EXPECT_FALSE(verdict.CanCommit(6));
  verdict.Committed(5);
  EXPECT_TRUE(verdict.AtEnd());
  ASSERT_TRUE(verdict.Current(kShort));
  EXPECT_EQ(verdict.Current(kShort)->message, "rank 1 ended the exchange: enough");
}

TEST(LifelineVerdict, OfSeveralFailuresThatAfterTheFewestStepsCounts) {
  LifelineVerdict verdict(3, "exchange");
  EXPECT_TRUE(verdict.Failed(1, ErrorKind::kExchangeFailed, "first", 1));
  EXPECT_FALSE(verdict.Failed(2, ErrorKind::kExchangeFailed, "second", 1));
  EXPECT_FALSE(verdict.AtEnd());
  EXPECT_TRUE(verdict.Failed(2, ErrorKind::kTimeout, "third", 0));
  ASSERT_TRUE(verdict.AtEnd());
  EXPECT_EQ(verdict.AtEnd()->message, "rank 2 ended the exchange: third");
  EXPECT_FALSE(verdict.CanCommit(1));
  verdict.Committed(1);
  EXPECT_EQ(verdict.AtEnd()->message, "rank 2 ended the exchange: third");
}

TEST(LifelineVerdict, ADeathEndsAStepThatAFailureDoesNot) {
  LifelineVerdict verdict(3, "exchange");
  verdict.Failed(1, ErrorKind::kExchangeFailed, "enough", 1);
  verdict.Lost(2, kDied);
  EXPECT_TRUE(verdict.AtEnd());
  EXPECT_TRUE(verdict.Current(kShort));
  EXPECT_FALSE(verdict.CanCommit(1));
}

TEST(LifelineVerdict, WhoeverWasToldOfADeathByOneExchangeKnowsItInAll) {
  LifelineVerdict one(3, "generator"), other(3, "discriminator"), late(3, "critic");
  one.Lost(2, kDied);
  other.Lost(2, kDied);
  EXPECT_TRUE(one.UnacknowledgedDeath());
  EXPECT_TRUE(other.UnacknowledgedDeath());
  one.Acknowledge();
  EXPECT_FALSE(one.UnacknowledgedDeath());
  EXPECT_FALSE(other.UnacknowledgedDeath());
  late.Lost(2, kDied);  // over a connection that took longer to break
  EXPECT_FALSE(late.UnacknowledgedDeath());
}

TEST(LifelineVerdict, ADeathInAnExchangeThatWasBuiltLaterIsAnother) {
  LifelineVerdict before(3, "before");
  before.Lost(2, kDied);
  before.Acknowledge();
  const Clock::time_point told = Clock::now();
  while (Clock::now() == told) {
  }
  LifelineVerdict after(2, "after");
  after.Lost(1, kDied);
  EXPECT_TRUE(after.UnacknowledgedDeath());
}

TEST(LifelineVerdict, WhatIsNoDeathIsKnownInItsOwnExchangeAlone) {
  LifelineVerdict one(3, "generator"), other(3, "discriminator");
  one.Failed(1, ErrorKind::kExchangeFailed, "a bug in the user's code", 0);
  one.Acknowledge();
  one.Lost(1, kDied);
  other.Lost(1, kDied);
  EXPECT_FALSE(one.UnacknowledgedDeath());
  EXPECT_TRUE(other.UnacknowledgedDeath());
}

TEST(LifelineVerdict, NobodyIsToldOfADeathThatIsYetToCome) {
  LifelineVerdict verdict(3, "exchange");
  verdict.Acknowledge();
  verdict.Lost(2, kDied);
  EXPECT_TRUE(verdict.UnacknowledgedDeath());
}

}  // namespace
}  // namespace hvd_sparse
