/// Of which deaths the user of a process has been told, where it has several exchanges.

#include "csrc/comm/lifeline_verdict.h"

#include <gtest/gtest.h>

namespace hvd_sparse {
namespace {

constexpr char kDied[] = "has died (host h, pid 7)";

TEST(LifelineVerdict, WhoeverWasToldOfADeathByOneExchangeKnowsItInAll) {
  LifelineVerdict one(3, "generator"), other(3, "discriminator"), late(3, "critic");
  one.Lost(2, kDied);
  other.Lost(2, kDied);
  EXPECT_TRUE(one.UnacknowledgedDeath());
  EXPECT_TRUE(other.UnacknowledgedDeath());
  one.Acknowledge();
  EXPECT_FALSE(one.UnacknowledgedDeath());
  EXPECT_FALSE(other.UnacknowledgedDeath());
  late.Lost(2, kDied);  // by a connection that took longer to break
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
  one.Failed(1, ErrorKind::kExchangeFailed, "a bug in the user's code");
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
