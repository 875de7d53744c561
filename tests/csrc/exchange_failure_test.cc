/// An exchange that fails midway loses nothing: residuals are as error feedback left them.

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/comm/loopback_communicator.h"
#include "csrc/exchange/exchange.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/kernel_threads.h"
#include "tests/csrc/meeting.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

constexpr int kRanks = 3, kBuckets = 3;

/// The failure of rank 0, which loses its peers before some transfer of the second bucket.
struct Failure {
  int transfer = 0;
  std::atomic<int> started{0};  // ranks that have started all buckets
  std::atomic<bool> happened{false};
};

class FailingCommunicator final : public LoopbackCommunicator {
 public:
  FailingCommunicator(std::shared_ptr<LoopbackWorld> world, int rank, Failure* failure)
      : LoopbackCommunicator(std::move(world), rank), failure_(failure) {}

  void Transfer(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) override {
    const bool here = Rank() == 0 && what.find("bucket '1'") != std::string::npos;
    if (here && transfers_++ == failure_->transfer) {
      while (failure_->started < kRanks) std::this_thread::yield();
      failure_->happened = true;
      Throw(ErrorKind::kPeerLost, "rank 2 was lost in ", what);
    }
    LoopbackCommunicator::Transfer(out, in, what);
  }

 private:
  Failure* const failure_;
  int transfers_ = 0;
};

/// A bucket on a rank: a float32 and a float16 gradient, cut by segments elsewhere.
class Memory {
 public:
  Memory(int seed, std::int64_t numel) : singles_(SinglesOf(numel)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> gaussian;
    for (std::int64_t i = 0; i < numel; ++i) {
      const float gradient = i % 7 == 0 ? -0.0f : gaussian(random);
      residual.push_back(i % 5 == 0 ? -0.0f : gaussian(random));
      if (i < singles_) {
        single_.push_back(gradient);
        accumulated.push_back(residual.back() + 0.3f * gradient);
      } else {
        half_.push_back(Narrow<Float16>(gradient));
        accumulated.push_back(0.5f * residual.back() + 0.3f * Widen(half_.back()));
      }
    }
    before = residual;
  }

  static BucketSpec Spec(const std::string& name, std::int64_t numel, const std::string& sparsifier,
                         const std::string& collective) {
    const std::int64_t singles = SinglesOf(numel), half = numel / 2;
    SparsifierOptions options;
    if (sparsifier == "hard_threshold") options = {{"threshold", 0.5}};
    return {
        name,      {singles, numel - singles}, {half, 0, half}, {50, 0, 30}, sparsifier, options,
        collective};
  }

  Launch Step() {
    Launch launch;
    launch.gradients = {{single_.data(), singles_, DType::kFloat32},
                        {half_.data(), static_cast<std::int64_t>(half_.size()), DType::kFloat16}};
    launch.residual = residual;
    launch.states = states_;
    launch.ks = {50, 0, 30};
    launch.decays = {1.0f, 0.5f};
    launch.scale = 0.3f;
    launch.output_scale = 1.0f / kRanks;
    return launch;
  }

  std::vector<float> residual, before, accumulated;

 private:
  static std::int64_t SinglesOf(std::int64_t numel) { return numel * 3 / 5; }

  const std::int64_t singles_;
  std::vector<float> single_;
  std::vector<Float16> half_;
  std::vector<SelectionState> states_ = std::vector<SelectionState>(3);
};

void OnRanks(const std::function<void(int)>& program) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.emplace_back(program, rank);
  for (std::thread& rank : ranks) rank.join();
}

/// Waits for all buckets; returns true if the exchange ended meanwhile.
bool EndsWhileWaiting(Exchange* exchange) {
  try {
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      while (!exchange->Wait(bucket, 1.0)) {
      }
    }
  } catch (const Error&) {
    return true;
  }
  return false;
}

class ExchangeFailure : public testing::TestWithParam<SelectOn> {
 protected:
  /// Expects that no value is lost. A bucket that the exchange's own thread had not yet started is
  /// unchanged; all others are as error feedback left them.
  static void ExpectNothingIsLost(const Memory& memory) {
    if (GetParam() == SelectOn::kEngine && SameBits(memory.residual, memory.before)) return;
    EXPECT_TRUE(SameBits(memory.residual, memory.accumulated));
  }

  /// Runs three buckets; rank 0 fails before that transfer of the second one.
  static void FailBefore(int transfer, std::int64_t numel, const std::string& sparsifier,
                         const std::string& collective, int local_size = 1) {
    SCOPED_TRACE(testing::Message() << sparsifier << ", " << collective << ", " << transfer);
    auto world = std::make_shared<LoopbackWorld>(kRanks);
    Failure failure;
    failure.transfer = transfer;
    OnRanks([&](int rank) {
      Exchange exchange(std::make_unique<FailingCommunicator>(world, rank, &failure), GetParam(),
                        Nodes::Of(kRanks, local_size));
      std::deque<Memory> memory;
      for (int bucket = 0; bucket < kBuckets; ++bucket) {
        memory.emplace_back(10 * rank + bucket, numel);
        BucketSpec spec = Memory::Spec(std::to_string(bucket), numel, sparsifier, collective);
        spec.nodes_first = local_size > 1;
        exchange.AddBucket(std::move(spec));
      }
      for (int bucket = 0; bucket < kBuckets; ++bucket) {
        exchange.Start(bucket, memory[bucket].Step());
      }
      ++failure.started;
      EXPECT_TRUE(EndsWhileWaiting(&exchange));
      EXPECT_TRUE(failure.happened);
      EXPECT_THROW(exchange.Check(), Error);
      for (int bucket = 0; bucket < kBuckets; ++bucket) {  // each wait reports what ended it
        EXPECT_EQ(Thrown([&] { exchange.Wait(bucket, 1.0); }).kind(), ErrorKind::kPeerLost);
      }
      for (const Memory& bucket : memory) ExpectNothingIsLost(bucket);
    });
  }
};

TEST_P(ExchangeFailure, OfAPeerInAnyTransferLosesNothing) {
  for (const std::string& sparsifier : SparsifierNames()) {
    for (const std::string& collective : CollectiveNames()) {
      // Rank 0 of 3 is a host in a cube: it receives from its guest, swaps, and answers. Owners of
      // shards receive once, and gather in two rounds.
      const int transfers = collective == "allgather" ? 2 : 3;
      for (int transfer = 0; transfer < transfers; ++transfer) {
        FailBefore(transfer, 2000, sparsifier, collective);
      }
    }
  }
}

TEST_P(ExchangeFailure, OfAPeerOnTheSameNodeLosesNothing) {
  for (const std::string& sparsifier : SparsifierNames()) {
    for (int transfer = 0; transfer < 4; ++transfer) {  // two rounds of shards, two of gathering
      FailBefore(transfer, 2000, sparsifier, "gtopk", kRanks);
    }
  }
}

TEST_P(ExchangeFailure, WithKernelThreadsLosesNothing) {
  WithOneToThreeThreads([] { FailBefore(1, 200000, "gaussian", "gtopk"); });
}

TEST_P(ExchangeFailure, OrderedByOneRankAfterAllArrivedLosesNothing) {
  for (const std::string& collective : CollectiveNames()) {
    auto world = std::make_shared<LoopbackWorld>(kRanks);
    Meeting meeting(kRanks);
    OnRanks([&](int rank) {
      Exchange exchange(std::make_unique<LoopbackCommunicator>(world, rank), GetParam());
      std::deque<Memory> memory;
      for (int bucket = 0; bucket < kBuckets; ++bucket) {
        memory.emplace_back(10 * rank + bucket, 2000);
        exchange.AddBucket(Memory::Spec(std::to_string(bucket), 2000, "top_k", collective));
        exchange.Start(bucket, memory[bucket].Step());
      }
      EXPECT_FALSE(EndsWhileWaiting(&exchange));
      for (const Memory& bucket : memory) {
        EXPECT_FALSE(SameBits(bucket.residual, bucket.accumulated));
      }
      meeting.Attend();
      if (rank == 1) exchange.Fail("enough");
      meeting.Attend();
      EXPECT_THROW(exchange.Check(), Error);
      for (const Memory& bucket : memory) {
        EXPECT_TRUE(SameBits(bucket.residual, bucket.accumulated));
      }
    });
  }
}

TEST_P(ExchangeFailure, AfterAStepThatOneRankHasCommittedLetsAllCommitIt) {
  auto world = std::make_shared<LoopbackWorld>(kRanks);
  Meeting meeting(kRanks);
  OnRanks([&](int rank) {
    Exchange exchange(std::make_unique<LoopbackCommunicator>(world, rank), GetParam());
    Memory memory(rank, 2000);
    exchange.AddBucket(Memory::Spec("0", 2000, "top_k", "gtopk"));
    exchange.Start(0, memory.Step());
    while (!exchange.Wait(0, 1.0)) {
    }
    meeting.Attend();
    if (rank == 1) {
      exchange.Commit("");
      exchange.Fail("enough");
    }
    meeting.Attend();
    if (rank != 1) {
      EXPECT_NO_THROW(exchange.CheckAtEnd());
      EXPECT_NO_THROW(exchange.Commit(""));
    }
    EXPECT_EQ(Thrown([&] { exchange.Check(); }).kind(), ErrorKind::kExchangeFailed);
    EXPECT_FALSE(SameBits(memory.residual, memory.accumulated));  // taken entries are applied
  });
}

TEST_P(ExchangeFailure, OfOneRankThatClosesAmidAStepLosesNothingOnAnyRank) {
  for (const bool waits : {false, true}) {
    auto world = std::make_shared<LoopbackWorld>(kRanks);
    Meeting meeting(kRanks);
    OnRanks([&](int rank) {
      std::deque<Memory> memory;
      auto exchange = std::make_unique<Exchange>(
          std::make_unique<LoopbackCommunicator>(world, rank), GetParam());
      for (int bucket = 0; bucket < kBuckets; ++bucket) {
        memory.emplace_back(10 * rank + bucket, 2000);
        exchange->AddBucket(Memory::Spec(std::to_string(bucket), 2000, "top_k", "gtopk"));
        exchange->Start(bucket, memory[bucket].Step());
      }
      if (waits) {
        EXPECT_FALSE(EndsWhileWaiting(exchange.get()));
        for (const Memory& bucket : memory) {
          EXPECT_FALSE(SameBits(bucket.residual, bucket.accumulated));
        }
      }
      meeting.Attend();
      if (rank == 1) exchange.reset();
      meeting.Attend();
      if (exchange != nullptr) {
        EXPECT_THROW(exchange->Check(), Error);
      }
      exchange.reset();
      for (const Memory& bucket : memory) ExpectNothingIsLost(bucket);
    });
  }
}

TEST_P(ExchangeFailure, LeavesTheBucketsToWhoeverStillSendsThem) {
  auto world = std::make_shared<LoopbackWorld>(1);
  Exchange exchange(std::make_unique<LoopbackCommunicator>(world, 0), GetParam());
  exchange.AddBucket(Memory::Spec("0", 2000, "top_k", "gtopk"));
  exchange.Fail("enough");
  EXPECT_EQ(Thrown([&] { exchange.ClearBuckets(); }).kind(), ErrorKind::kExchangeFailed);
  EXPECT_NO_THROW(exchange.Stats(0));
}

TEST_P(ExchangeFailure, ARefusedStepLosesNothingAndTheNextOneCounts) {
  for (const std::string& sparsifier : SparsifierNames()) {
    auto world = std::make_shared<LoopbackWorld>(kRanks);
    OnRanks([&](int rank) {
      Exchange exchange(std::make_unique<LoopbackCommunicator>(world, rank), GetParam());
      Memory memory(rank, 2000);
      exchange.AddBucket(Memory::Spec("0", 2000, sparsifier, "gtopk"));
      const auto run = [&] {
        exchange.Start(0, memory.Step());
        while (!exchange.Wait(0, 1.0)) {
        }
      };
      run();
      EXPECT_THROW(exchange.Commit("not today"), Error);
      EXPECT_TRUE(SameBits(memory.residual, memory.accumulated)) << sparsifier;
      run();
      EXPECT_NO_THROW(exchange.Commit(""));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(SelectOn, ExchangeFailure,
                         testing::Values(SelectOn::kCaller, SelectOn::kEngine),
                         [](const auto& info) {
                           return info.param == SelectOn::kCaller ? "Caller" : "Engine";
                         });

}  // namespace
}  // namespace hvd_sparse
