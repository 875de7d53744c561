/// Steps that a device was given, and that do not come to their end, or do not count: all that was
/// selected returns to the residual, bit for bit, and nobody is left waiting.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/comm/loopback_communicator.h"
#include "csrc/exchange/exchange.h"
#include "tests/csrc/cuda/exchange_steps.h"
#include "tests/csrc/nccl/with_fake_nccl.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

constexpr int kRanks = 3;
constexpr std::int64_t kSingles = 300, kNarrow = 500, kAll = kSingles + kNarrow;

/// A bucket of a rank: a float32 and a bfloat16 gradient, and what error feedback makes of them.
class OwnBucket {
 public:
  explicit OwnBucket(int seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> gaussian;
    std::vector<float> singles;
    std::vector<BFloat16> narrow;
    for (std::int64_t i = 0; i < kAll; ++i) {
      before_.push_back(i % 5 == 0 ? -0.0f : gaussian(random));
      float gradient = gaussian(random);
      if (i < kSingles) {
        singles.push_back(gradient);
      } else {
        narrow.push_back(Narrow<BFloat16>(gradient));
        gradient = Widen(narrow.back());
      }
      accumulated_.push_back((i < kSingles ? 1.0f : 0.5f) * before_.back() + 0.75f * gradient);
    }
    residual_ = std::make_unique<DeviceArray<float>>(before_);
    singles_ = std::make_unique<DeviceArray<float>>(singles);
    narrow_ = std::make_unique<DeviceArray<BFloat16>>(narrow);
  }

  static BucketSpec Spec(int number) {
    BucketSpec spec{
        std::to_string(number), {kSingles, kNarrow}, {400, 400}, {90, 60}, "gaussian", {}, "gtopk"};
    spec.device = kGpu;
    return spec;
  }

  Launch Step() {
    Launch launch;
    launch.gradients = {{singles_->data(), kSingles, DType::kFloat32},
                        {narrow_->data(), kNarrow, DType::kBFloat16}};
    launch.residual = residual_->span();
    launch.states = states_;
    launch.ks = {90, 60};
    launch.decays = {1.0f, 0.5f};
    launch.scale = 0.75f;
    launch.output_scale = 1.0f / kRanks;
    return launch;
  }

  /// All that it had and got is in the residual.
  bool HoldsAll() { return SameBits(residual_->Values(), accumulated_); }
  /// The step has not begun.
  bool IsUntouched() { return SameBits(residual_->Values(), before_); }

 private:
  std::vector<float> before_, accumulated_;
  std::unique_ptr<DeviceArray<float>> residual_, singles_;
  std::unique_ptr<DeviceArray<BFloat16>> narrow_;
  std::vector<SelectionState> states_ = std::vector<SelectionState>(2);
};

/// A rank with so many buckets.
struct OwnRank {
  const std::shared_ptr<LoopbackWorld> world;
  std::unique_ptr<Exchange> exchange;
  std::deque<OwnBucket> buckets;

  OwnRank(const std::shared_ptr<LoopbackWorld>& ranks, int rank, int count)
      : world(ranks),
        exchange(std::make_unique<Exchange>(std::make_unique<LoopbackCommunicator>(world, rank),
                                            SelectOn::kCaller)) {
    for (int b = 0; b < count; ++b) {
      buckets.emplace_back(100 * rank + b);
      exchange->AddBucket(OwnBucket::Spec(b));
    }
  }

  void StartAll() {
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      exchange->Start(static_cast<int>(b), buckets[b].Step());
    }
  }
  void WaitForAll() {
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      while (!exchange->Wait(static_cast<int>(b), 0.02)) {
      }
    }
  }
};

/// What a bucket of a rank may hold in the end.
enum class End {
  kAll,             ///< whatever happened
  kAllOrUntouched,  ///< its turn may not have come
  kCounts,          ///< not all: a result was delivered
};

/// Runs a program on each rank, with so many buckets.
void OnOwnRanks(int count, End end, const std::function<void(int rank, OwnRank&)>& program) {
  auto world = std::make_shared<LoopbackWorld>(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      OwnRank own(world, rank, count);
      program(rank, own);
      for (OwnBucket& bucket : own.buckets) {
        const bool is_untouched = end == End::kAllOrUntouched && bucket.IsUntouched();
        EXPECT_EQ(bucket.HoldsAll() || is_untouched, end != End::kCounts) << "rank " << rank;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// All ranks have come here.
void Meet(std::atomic<int>* met) {
  for (++*met; *met < kRanks;) std::this_thread::yield();
}

bool NcclIsIdle() {
  static auto* const is_idle = OF_FAKE_NCCL(fake_nccl_is_idle);
  return is_idle() != 0;
}

std::atomic<bool> device_is_done{true};
/// What waits for messages on the device is freed when a rank ends its communicator.
bool DeviceIsDone() {
  static auto* const communicators = OF_FAKE_NCCL(fake_nccl_communicators);
  return device_is_done || communicators() < kRanks;
}

class NcclStepFailure : public WithFakeNccl {
 protected:
  void TearDown() override {
    emulation::device_is_idle = nullptr;
    OF_FAKE_NCCL(fake_nccl_break_group)(nccl::kSuccess, 0);
    OF_FAKE_NCCL(fake_nccl_run_behind)(0);
    ::unsetenv("HVD_SPARSE_TIMEOUT");
    EXPECT_EQ(OF_FAKE_NCCL(fake_nccl_communicators)(), 0);
    WithFakeNccl::TearDown();
  }
};

TEST_F(NcclStepFailure, AStepThatAllRefuseReturnsWhatItTookAndWhatRoundingAdded) {
  OnOwnRanks(2, End::kAll, [](int, OwnRank& own) {
    own.StartAll();
    own.WaitForAll();
    EXPECT_FALSE(own.buckets[0].HoldsAll());
    const Error refused = Thrown([&] { own.exchange->Commit("not today"); });
    EXPECT_EQ(refused.kind(), ErrorKind::kNonFinite);
  });
}

TEST_F(NcclStepFailure, EndedByARankWhenAllHasArrivedLosesNothing) {
  std::atomic<int> arrived{0};
  OnOwnRanks(2, End::kAll, [&arrived](int rank, OwnRank& own) {
    own.StartAll();
    own.WaitForAll();
    Meet(&arrived);
    if (rank == 1) own.exchange->Fail("enough");
    const Error error = Thrown([&] {
      for (;; std::this_thread::yield()) own.exchange->Check();
    });
    EXPECT_TRUE(Says(error, "enough")) << error.what();
  });
}

// ---- NCCL meets an error ------------------------------------------------------------------------

/// Of the six groups of messages that three ranks give for a bucket, some in turn; and one of the
/// second bucket's.
void BreakEachGroup(const char* error_says) {
  for (const int groups : {0, 2, 3, 5, 8}) {
    SCOPED_TRACE(groups);
    std::atomic<int> ready{0};
    OnOwnRanks(2, End::kAllOrUntouched, [&](int rank, OwnRank& own) {
      if (rank == 0) OF_FAKE_NCCL(fake_nccl_break_group)(nccl::kRemoteError, groups);
      Meet(&ready);
      const Error error = Thrown([&own] {
        own.StartAll();
        own.WaitForAll();
      });
      EXPECT_EQ(error.kind(), ErrorKind::kExchangeFailed) << error.what();
      EXPECT_TRUE(Says(error, error_says)) << error.what();
    });
  }
}

/// Some of the work behind the message is never given to the device.
TEST_F(NcclStepFailure, InAMessageThatIsBeingGivenLosesNothing) { BreakEachGroup("remote error"); }

/// All of it was, and runs on what has not been received: here also where a message does come,
/// since this device does not wait. So what is said of it may differ.
TEST_F(NcclStepFailure, InAMessageUnderWayLosesNothing) {
  OF_FAKE_NCCL(fake_nccl_run_behind)(1);
  emulation::device_is_idle = &NcclIsIdle;
  BreakEachGroup("");
}

// ---- Waiting for the device ---------------------------------------------------------------------

class NcclStepWait : public NcclStepFailure {
 protected:
  void SetUp() override {
    NcclStepFailure::SetUp();
    device_is_done = false;
    emulation::device_is_idle = &DeviceIsDone;
  }
};

TEST_F(NcclStepWait, IsInWaitAlone) {
  std::atomic<int> waited{0};
  OnOwnRanks(3, End::kCounts, [&waited](int, OwnRank& own) {
    own.StartAll();
    for (int b = 0; b < 3; ++b) EXPECT_FALSE(own.exchange->Wait(b, 0.05));
    EXPECT_TRUE(Says(Thrown([&] { own.exchange->Commit(""); }), "is in flight"));
    Meet(&waited);
    device_is_done = true;
    own.WaitForAll();
    EXPECT_EQ(own.exchange->Stats(2).route, Route::kStep);
    own.exchange->Commit("");
  });
}

TEST_F(NcclStepWait, EndsWithALostRankAndNothingIsLost) {
  std::atomic<int> waited{0};
  OnOwnRanks(2, End::kAllOrUntouched, [&waited](int rank, OwnRank& own) {
    own.StartAll();
    EXPECT_FALSE(own.exchange->Wait(0, 0.05));
    Meet(&waited);
    if (rank == 0) own.world->Fail(ErrorKind::kPeerLost, "rank 2 was lost");
    const Error error = Thrown([&own] { own.WaitForAll(); });
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
    EXPECT_TRUE(Says(error, "rank 2 was lost")) << error.what();
  });
}

TEST_F(NcclStepWait, EndsAtTheLimitOfTimeAndNothingIsLost) {
  ::setenv("HVD_SPARSE_TIMEOUT", "0.3", 1);
  OnOwnRanks(1, End::kAllOrUntouched, [](int, OwnRank& own) {
    own.StartAll();
    const Error error = Thrown([&own] { own.WaitForAll(); });
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
    EXPECT_TRUE(Says(error, "after 0.3 s")) << error.what();
  });
}

TEST_F(NcclStepWait, EndsForTheOthersWhenARankClosesItsExchange) {
  std::atomic<int> waited{0};
  OnOwnRanks(1, End::kAllOrUntouched, [&waited](int rank, OwnRank& own) {
    own.StartAll();
    EXPECT_FALSE(own.exchange->Wait(0, 0.05));
    Meet(&waited);
    if (rank == 1) {
      own.exchange.reset();
      own.buckets.clear();  // of which nobody promises anything
      return;
    }
    const Error error = Thrown([&own] { own.WaitForAll(); });
    EXPECT_TRUE(Says(error, "it was closed while gradients were in flight")) << error.what();
  });
}

// ---- Ranks that are about to do different things ------------------------------------------------

Error WhereRankOneAlters(const std::function<void(Launch*)>& alter) {
  Error first(ErrorKind::kInvalidArgument, "");
  OnOwnRanks(1, End::kAllOrUntouched, [&](int rank, OwnRank& own) {
    Launch launch = own.buckets[0].Step();
    if (rank == 1) alter(&launch);
    const Error error = Thrown([&] {
      own.exchange->Start(0, std::move(launch));
      own.WaitForAll();
    });
    EXPECT_EQ(error.kind(), ErrorKind::kDisagreement) << error.what();
    if (rank == 0) first = error;
    if (rank == 1) own.buckets.clear();
  });
  return first;
}

TEST_F(NcclStepFailure, RanksWithOtherKsAreToldBeforeAnyWaitsForADevice) {
  const Error error = WhereRankOneAlters([](Launch* launch) { launch->ks[0] -= 7; });
  EXPECT_TRUE(Says(error, "asked for")) << error.what();
}

TEST_F(NcclStepFailure, RanksWithOtherRoutesAreToldBeforeAnyWaitsForADevice) {
  std::vector<float> velocity(kAll);
  const Error error = WhereRankOneAlters([&velocity](Launch* launch) {
    launch->velocity = velocity;
    launch->momentum = 0.5f;
  });
  EXPECT_TRUE(Says(error, "bucket '0' takes the route '")) << error.what();
  EXPECT_TRUE(Says(error, "'device rounds' on rank 1")) << error.what();
}

}  // namespace
}  // namespace hvd_sparse
