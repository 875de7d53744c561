/// Ranks with buckets on a device, whose steps are ended early or refused: to test that nothing is
/// lost.

#ifndef HVD_SPARSE_TESTS_CSRC_CUDA_OWN_RANKS_H_
#define HVD_SPARSE_TESTS_CSRC_CUDA_OWN_RANKS_H_

#include <gtest/gtest.h>

#include <cstdint>
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
#include "csrc/kernels/half.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/cuda/device_loopback.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/meeting.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {

constexpr int kRanks = 3;
constexpr std::int64_t kSingles = 300, kNarrow = 500, kAll = kSingles + kNarrow;

/// A rank's bucket: a float32 and a bfloat16 gradient, and the expected results of error feedback;
/// every second bucket corrects momentum.
class OwnBucket {
 public:
  explicit OwnBucket(int seed) : corrects_momentum_(seed % 2 == 1) {
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
      float inflow = 0.75f * gradient;
      if (corrects_momentum_) {
        resting_.push_back(gaussian(random));
        inflow += kMomentum * resting_.back();
        moving_.push_back(inflow);
      }
      accumulated_.push_back((i < kSingles ? 1.0f : 0.5f) * before_.back() + inflow);
    }
    velocity_ = std::make_unique<DeviceArray<float>>(resting_);
    residual_ = std::make_unique<DeviceArray<float>>(before_);
    singles_ = std::make_unique<DeviceArray<float>>(singles);
    narrow_ = std::make_unique<DeviceArray<BFloat16>>(narrow);
  }

  static BucketSpec Spec(int number, const std::string& sparsifier, const std::string& collective) {
    BucketSpec spec{std::to_string(number),
                    {kSingles, kNarrow},
                    {400, 400},
                    {90, 60},
                    sparsifier,
                    {},
                    collective};
    if (collective == "shard_sum") spec.wire.values = Values::kInt8;
    if (sparsifier == "hard_threshold") spec.sparsifier_options = {{"threshold", 1.0}};
    spec.device = kGpu;
    return spec;
  }

  Launch Step() {
    Launch launch;
    launch.gradients = {{singles_->data(), kSingles, DType::kFloat32},
                        {narrow_->data(), kNarrow, DType::kBFloat16}};
    launch.residual = residual_->span();
    if (corrects_momentum_) launch.velocity = velocity_->span();
    launch.momentum = kMomentum;
    launch.states = states_;
    launch.ks = {90, 60};
    launch.decays = {1.0f, 0.5f};
    launch.scale = 0.75f;
    launch.output_scale = 1.0f / kRanks;
    return launch;
  }

  /// Returns true if the residual holds all accumulated values, and nothing is masked.
  bool HoldsAll() { return Is(accumulated_, moving_); }
  /// Returns true if the step has not begun.
  bool IsUntouched() { return Is(before_, resting_); }
  /// Returns true if a result was delivered: residual and velocity have each lost entries.
  bool HasDelivered() {
    const bool has_masked = !SameBits(velocity_->Values(), moving_);
    return !SameBits(residual_->Values(), accumulated_) && has_masked == corrects_momentum_;
  }

 private:
  static constexpr float kMomentum = 0.25f;

  bool Is(const std::vector<float>& residual, const std::vector<float>& velocity) {
    return SameBits(residual_->Values(), residual) && SameBits(velocity_->Values(), velocity);
  }

  const bool corrects_momentum_;
  std::vector<float> before_, accumulated_;  // residuals, before and after
  std::vector<float> resting_, moving_;      // velocities, likewise
  std::unique_ptr<DeviceArray<float>> residual_, velocity_, singles_;
  std::unique_ptr<DeviceArray<BFloat16>> narrow_;
  std::vector<SelectionState> states_ = std::vector<SelectionState>(2);
};

/// The conditions under which a test's ranks run.
struct Conditions {
  std::shared_ptr<LoopbackWorld> world = std::make_shared<LoopbackWorld>(kRanks);
  DeviceLoopback::Before before_transfer = nullptr;
  std::string sparsifier = "gaussian", collective = "gtopk";

  /// Called on rank 0 between connecting all devices and the test; null: a step connects them.
  std::function<void()> once_connected = nullptr;
};

/// A rank with `count` buckets.
struct OwnRank {
  const std::shared_ptr<LoopbackWorld> world;
  std::deque<OwnBucket> buckets;
  std::unique_ptr<Exchange> exchange;  // closed first: it returns what it took to the buckets

  OwnRank(const Conditions& conditions, int rank, int count)
      : world(conditions.world),
        exchange(std::make_unique<Exchange>(
            std::make_unique<DeviceLoopback>(world, rank, conditions.before_transfer),
            SelectOn::kCaller)) {
    for (int b = 0; b < count; ++b) {
      buckets.emplace_back(100 * rank + b);
      exchange->AddBucket(OwnBucket::Spec(b, conditions.sparsifier, conditions.collective));
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

/// The permitted states of a bucket after a test.
enum class End {
  kAll,             ///< all values, whatever happened
  kAllOrUntouched,  ///< or unchanged: its turn may not have come
  kCounts,          ///< the step counts: a result was delivered
};

/// Runs a program on each rank, with `count` buckets.
inline void OnOwnRanks(int count, End end, const std::function<void(int rank, OwnRank&)>& program,
                       const Conditions& conditions = {}) {
  Meeting connected(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      OwnRank own(conditions, rank, count);
      if (conditions.once_connected) {
        EXPECT_TRUE(own.exchange->ConnectDevices(kGpu));
        connected.Attend();
        if (rank == 0) conditions.once_connected();
        connected.Attend();
      }
      program(rank, own);
      for (OwnBucket& bucket : own.buckets) {
        const bool is_untouched = end == End::kAllOrUntouched && bucket.IsUntouched();
        EXPECT_TRUE(end == End::kCounts ? bucket.HasDelivered() : bucket.HoldsAll() || is_untouched)
            << "rank " << rank;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Expects that a refused step returns what it took, what rounding added, and what was masked.
inline void ExpectARefusalToReturnAll(const Conditions& conditions = {}) {
  const auto program = [](int, OwnRank& own) {
    own.StartAll();
    own.WaitForAll();
    for (OwnBucket& bucket : own.buckets) EXPECT_TRUE(bucket.HasDelivered());
    const Error refused = Thrown([&] { own.exchange->Commit("not today"); });
    EXPECT_EQ(refused.kind(), ErrorKind::kNonFinite);
  };
  OnOwnRanks(2, End::kAll, program, conditions);
}

/// Expects that a lost rank ends the waits of all ranks while devices lag.
inline void ExpectALostRankToEndTheWait(const Conditions& conditions = {}) {
  Meeting waited(kRanks);
  OnOwnRanks(
      2, End::kAllOrUntouched,
      [&waited](int rank, OwnRank& own) {
        own.StartAll();
        EXPECT_FALSE(own.exchange->Wait(0, 0.05));
        waited.Attend();
        if (rank == 0) own.world->Fail(2, ErrorKind::kPeerLost, "rank 2 was lost");
        const Error error = Thrown([&own] { own.WaitForAll(); });
        EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
        EXPECT_TRUE(Says(error, "rank 2 was lost")) << error.what();
      },
      conditions);
}

/// Expects that a limit of 0.3 s ends the wait; the test must unset the limit.
inline void ExpectTheLimitToEndTheWait(const std::string& said, const Conditions& conditions = {}) {
  ::setenv("HVD_SPARSE_TIMEOUT_SECONDS", "0.3", 1);
  OnOwnRanks(
      1, End::kAllOrUntouched,
      [&said](int, OwnRank& own) {
        own.StartAll();
        const Error error = Thrown([&own] { own.WaitForAll(); });
        EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
        EXPECT_TRUE(Says(error, said)) << error.what();
      },
      conditions);
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_CUDA_OWN_RANKS_H_
