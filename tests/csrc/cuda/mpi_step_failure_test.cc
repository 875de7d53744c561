/// Steps over MPI that end while messages are exchanged: every selected value returns to the
/// residual, bit for bit, and no rank is left waiting.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "csrc/base/error.h"
#include "tests/csrc/cuda/own_ranks.h"
#include "tests/csrc/meeting.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

class CudaMpiStepFailure : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    ::setenv("HVD_SPARSE_CUDA_AWARE_MPI", "1", 1);
  }
  void TearDown() override { ::unsetenv("HVD_SPARSE_CUDA_AWARE_MPI"); }
};

/// Calls `act` on the rank that begins the n-th message between devices, counted over all ranks.
DeviceLoopback::Before AtMessage(int n, std::function<void(Communicator& comm)> act) {
  auto begun = std::make_shared<std::atomic<int>>(0);
  return [n, begun, act = std::move(act)](Communicator& comm, const std::string& what) {
    if (what.find("over MPI") != std::string::npos && (*begun)++ == n) act(comm);
  };
}

/// Some of the six messages that three ranks send for the first bucket, and one of the second
/// bucket's.
constexpr int kMessages[] = {0, 1, 2, 3, 5, 8};

/// Expects that a step under `conditions` throws an error of this kind on all ranks, and loses
/// nothing.
void ExpectTheEndOfAll(const Conditions& conditions, ErrorKind kind, const char* said) {
  OnOwnRanks(
      2, End::kAllOrUntouched,
      [kind, said](int, OwnRank& own) {
        const Error error = Thrown([&own] {
          own.StartAll();
          own.WaitForAll();
        });
        EXPECT_EQ(error.kind(), kind) << error.what();
        EXPECT_TRUE(Says(error, said)) << error.what();
      },
      conditions);
}

TEST_F(CudaMpiStepFailure, AStepThatAllRefuseReturnsWhatItTookAndWhatRoundingAdded) {
  ExpectARefusalToReturnAll();
}

TEST_F(CudaMpiStepFailure, ALostRankEndsTheStepOfAllAndNothingIsLost) {
  for (const int n : kMessages) {
    SCOPED_TRACE(n);
    Conditions conditions;
    conditions.before_transfer = AtMessage(n, [](Communicator& comm) {
      comm.Fail(ErrorKind::kPeerLost, Concat("rank ", comm.Rank(), " was lost"));
    });
    ExpectTheEndOfAll(conditions, ErrorKind::kPeerLost, "was lost");
  }
}

TEST_F(CudaMpiStepFailure, AnErrorOfMpiEndsTheStepOfAllAndNothingIsLost) {
  for (const int n : kMessages) {
    SCOPED_TRACE(n);
    Conditions conditions;
    conditions.before_transfer = AtMessage(
        n, [](Communicator&) { Throw(ErrorKind::kExchangeFailed, "MPI_Isend failed: truncated"); });
    ExpectTheEndOfAll(conditions, ErrorKind::kExchangeFailed, "MPI_Isend failed");
  }
}

/// The rank is alive, but sends nothing more.
TEST_F(CudaMpiStepFailure, ARankThatIsWaitedForTooLongEndsTheStepOfAllAndNothingIsLost) {
  for (const int n : {1, 4}) {
    SCOPED_TRACE(n);
    Conditions conditions;
    conditions.world = std::make_shared<LoopbackWorld>(kRanks, 2.0);
    conditions.before_transfer = AtMessage(n, [](Communicator& comm) {
      for (;; std::this_thread::yield()) comm.Check();  // until the others have given up
    });
    ExpectTheEndOfAll(conditions, ErrorKind::kTimeout, "has waited 2 s for rank");
  }
}

TEST_F(CudaMpiStepFailure, ARankThatClosesItsExchangeEndsTheStepOfAllAndNothingIsLost) {
  Meeting started(kRanks);
  OnOwnRanks(2, End::kAllOrUntouched, [&started](int rank, OwnRank& own) {
    if (rank != 1) own.StartAll();
    started.Attend();
    if (rank == 1) {
      own.exchange->Start(0, own.buckets[0].Step());
      own.exchange.reset();
      own.buckets.clear();  // their contents are unspecified
      return;
    }
    const Error error = Thrown([&own] { own.WaitForAll(); });
    EXPECT_TRUE(Says(error, "it was closed while gradients were in flight")) << error.what();
  });
}

}  // namespace
}  // namespace hvd_sparse
