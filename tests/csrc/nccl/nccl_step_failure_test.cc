/// Steps given to a device that are ended early or refused: every selected value returns to the
/// residual, bit for bit, and no rank is left waiting.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "tests/csrc/cuda/own_ranks.h"
#include "tests/csrc/meeting.h"
#include "tests/csrc/nccl/with_fake_nccl.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

std::atomic<bool> device_is_done{true};
int groups_before = 0;  // the test

/// Returns true if the device is done: a test said so; or the messages that try the device are not
/// over, a group of each rank; or a rank has ended its communicator, which releases work that
/// waits for messages.
bool DeviceIsDone() {
  static auto* const communicators = OF_FAKE_NCCL(fake_nccl_communicators);
  static auto* const groups = OF_FAKE_NCCL(fake_nccl_groups);
  return device_is_done || groups() - groups_before <= kRanks || communicators() < kRanks;
}

class NcclStepFailure : public WithFakeNccl, public testing::WithParamInterface<const char*> {
 protected:
  static Conditions OfCollective() {
    Conditions conditions;
    conditions.collective = GetParam();
    return conditions;
  }

  /// Breaks each of the groups of messages that three ranks send for two buckets, in turn.
  static void BreakEachGroup(const char* error_says);
};

std::string NameOf(const testing::TestParamInfo<const char*>& one) { return one.param; }

TEST_P(NcclStepFailure, AStepThatAllRefuseReturnsWhatItTookAndWhatRoundingAdded) {
  ExpectARefusalToReturnAll(OfCollective());
}

TEST_P(NcclStepFailure, EndedByARankWhenAllHasArrivedLosesNothing) {
  Meeting arrived(kRanks);
  OnOwnRanks(
      2, End::kAll,
      [&arrived](int rank, OwnRank& own) {
        own.StartAll();
        own.WaitForAll();
        arrived.Attend();
        if (rank == 1) own.exchange->Fail("enough");
        const Error error = Thrown([&] {
          for (;; std::this_thread::yield()) own.exchange->Check();
        });
        EXPECT_TRUE(Says(error, "enough")) << error.what();
      },
      OfCollective());
}

/// Allocating waits for the device, and so for other ranks: see MessageRoom.
TEST_P(NcclStepFailure, NoRankAllocatesBeforeItsMessagesWhileThoseOfAnotherWait) {
  static std::atomic<int> allocations{0}, late{0};
  const auto count = [] {
    ++allocations;
    static auto* const groups = OF_FAKE_NCCL(fake_nccl_groups_of_thread);
    const bool has_tried_alone = groups() <= 1;  // and has not sent yet
    if (has_tried_alone && !FakeNcclIsIdle()) ++late;
    return true;
  };
  allocations = late = 0;
  for (int run = 0; run < 5; ++run) {
    Meeting ready(kRanks);
    OnOwnRanks(
        1, End::kCounts,
        [&](int rank, OwnRank& own) {
          ready.Attend();  // all memory of the test is allocated
          if (rank == 0) emulation::has_memory = count;
          ready.Attend();
          own.StartAll();
          own.WaitForAll();
          own.exchange->Commit("");
          ready.Attend();
          emulation::has_memory = nullptr;
        },
        OfCollective());
  }
  EXPECT_GE(allocations, 5 * kRanks);
  EXPECT_EQ(late, 0);
}

// ---- NCCL meets an error ------------------------------------------------------------------------

void NcclStepFailure::BreakEachGroup(const char* error_says) {
  const std::string collective = GetParam();
  const int of_a_bucket = collective == "allgather" ? 3 : 6;
  for (int groups = 0; groups <= of_a_bucket; ++groups) {
    SCOPED_TRACE(groups);
    OF_FAKE_NCCL(fake_nccl_break_group)(nccl::kSuccess, 0);  // the one before may be left
    Conditions conditions = OfCollective();
    conditions.once_connected = [groups] {
      OF_FAKE_NCCL(fake_nccl_break_group)(nccl::kRemoteError, groups);
    };
    OnOwnRanks(
        2, End::kAllOrUntouched,
        [error_says](int, OwnRank& own) {
          const Error error = Thrown([&own] {
            own.StartAll();
            own.WaitForAll();
          });
          EXPECT_EQ(error.kind(), ErrorKind::kExchangeFailed) << error.what();
          EXPECT_TRUE(Says(error, error_says)) << error.what();
        },
        conditions);
  }
}

/// Some of the work after the message is never given to the device.
TEST_P(NcclStepFailure, InAMessageThatIsBeingGivenLosesNothing) { BreakEachGroup("remote error"); }

/// All work was given, and runs on data not received. In this test a message may still arrive, as
/// this device does not wait, so the error's text may differ.
TEST_P(NcclStepFailure, InAMessageUnderWayLosesNothing) {
  LetTheDeviceWait();
  BreakEachGroup("");
}

// ---- Waiting for the device ---------------------------------------------------------------------

class NcclStepWait : public NcclStepFailure {
 protected:
  void SetUp() override {
    NcclStepFailure::SetUp();
    device_is_done = false;
    groups_before = OF_FAKE_NCCL(fake_nccl_groups)();
    emulation::device_is_idle = &DeviceIsDone;
  }
};

TEST_P(NcclStepWait, IsInWaitAlone) {
  Meeting waited(kRanks);
  OnOwnRanks(
      3, End::kCounts,
      [&waited](int, OwnRank& own) {
        own.StartAll();
        for (int b = 0; b < 3; ++b) EXPECT_FALSE(own.exchange->Wait(b, 0.05));
        EXPECT_TRUE(Says(Thrown([&] { own.exchange->Commit(""); }), "is in flight"));
        waited.Attend();
        device_is_done = true;
        own.WaitForAll();
        EXPECT_EQ(own.exchange->Stats(2).route, Route::kRounds);
        own.exchange->Commit("");
      },
      OfCollective());
}

TEST_P(NcclStepWait, EndsWithALostRankAndNothingIsLost) {
  ExpectALostRankToEndTheWait(OfCollective());
}

TEST_P(NcclStepWait, EndsAtTheLimitOfTimeAndNothingIsLost) {
  ExpectTheLimitToEndTheWait("after 0.3 s", OfCollective());
}

TEST_P(NcclStepWait, EndsForTheOthersWhenARankClosesItsExchange) {
  Meeting waited(kRanks);
  OnOwnRanks(
      1, End::kAllOrUntouched,
      [&waited](int rank, OwnRank& own) {
        own.StartAll();
        EXPECT_FALSE(own.exchange->Wait(0, 0.05));
        waited.Attend();
        if (rank == 1) {
          own.exchange.reset();
          own.buckets.clear();  // their contents are unspecified
          return;
        }
        const Error error = Thrown([&own] { own.WaitForAll(); });
        EXPECT_TRUE(Says(error, "it was closed while gradients were in flight")) << error.what();
      },
      OfCollective());
}

// ---- Ranks that are about to do different things ------------------------------------------------

/// Returns rank 0's error when rank 1 alters its launch, after `steps` accepted steps.
Error WhereRankOneAlters(const Conditions& conditions, const std::function<void(Launch*)>& alter,
                         int steps = 0) {
  Error first(ErrorKind::kInvalidArgument, "");
  Meeting counted(kRanks);
  const auto program = [&](int rank, OwnRank& own) {
    for (int step = 0; step < steps; ++step) {
      own.StartAll();
      own.WaitForAll();
      own.exchange->Commit("");
    }
    counted.Attend();
    Launch launch = own.buckets[0].Step();
    if (rank == 1) alter(&launch);
    const Error error = Thrown([&] {
      own.exchange->Start(0, std::move(launch));
      own.WaitForAll();
    });
    EXPECT_EQ(error.kind(), ErrorKind::kDisagreement) << error.what();
    if (rank == 0) first = error;
    if (rank == 1) own.buckets.clear();
  };
  OnOwnRanks(1, steps == 0 ? End::kAllOrUntouched : End::kCounts, program, conditions);
  return first;
}

TEST_P(NcclStepFailure, RanksWithOtherKsAreToldBeforeAnyWaitsForADevice) {
  const Error error =
      WhereRankOneAlters(OfCollective(), [](Launch* launch) { launch->ks[0] -= 7; });
  EXPECT_TRUE(Says(error, ", k 143, ")) << error.what();
  EXPECT_TRUE(Says(error, ", k 150, ")) << error.what();
}

TEST_P(NcclStepFailure, RanksThatAskForOtherKsLaterAreToldBeforeAnyWaitsForADevice) {
  const Error error =
      WhereRankOneAlters(OfCollective(), [](Launch* launch) { launch->ks[0] -= 7; }, 1);
  EXPECT_TRUE(Says(error, "asked for")) << error.what();
}

INSTANTIATE_TEST_SUITE_P(Of, NcclStepFailure, testing::Values("allgather", "gtopk", "shard_topk"),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Of, NcclStepWait, testing::Values("allgather", "gtopk", "shard_topk"),
                         NameOf);

}  // namespace
}  // namespace hvd_sparse
