/// Split and allgather: the bytes that it sends; balancing does not affect the result.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/collectives/collectives.h"
#include "csrc/collectives/digest.h"
#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

/// A rank that keeps its scratch memory from step to step.
class Rank {
 public:
  Rank(Communicator* comm, std::int64_t k, std::int64_t numel)
      : comm_(*comm), k_(k), numel_(numel) {}

  /// Runs a step; returns the bytes sent.
  std::int64_t Step(SparseBlock* block) {
    block->header().step = steps_++;
    CollectiveContext ctx{comm_, CpuKernels(), scratch_, k_, k_, "a test", numel_};
    RunSplitAllgather(block, ctx);
    return ctx.bytes_sent;
  }

 private:
  Communicator& comm_;
  const std::int64_t k_, numel_;
  CollectiveScratch scratch_;
  std::uint64_t steps_ = 0;
};

/// Returns the k largest of the sums; ties by lower index. Integers make them exact in any order.
Entries TopKOfTheSum(const std::vector<Entries>& ranks, std::size_t k) {
  std::map<Index, float> sums;
  for (const Entries& entries : ranks) {
    for (const Entry& entry : entries) sums[entry.index] += entry.value;
  }
  Entries all;
  for (const auto& [index, value] : sums) all.push_back({Marked(index, true), value});
  std::stable_sort(all.begin(), all.end(), [](const Entry& a, const Entry& b) {
    return std::fabs(a.value) > std::fabs(b.value);
  });
  if (all.size() > k) all.resize(k);
  std::sort(all.begin(), all.end(),
            [](const Entry& a, const Entry& b) { return Position(a.index) < Position(b.index); });
  return all;
}

TEST(SplitAllgather, SendsAPthOfEveryBlockTwiceToEveryOtherRank) {
  constexpr std::int64_t kShare = 50;
  for (int size : {2, 3, 4, 8, 9}) {
    OnRanks(size, [size](Communicator& comm) {
      const std::int64_t k = kShare * size, others = size - 1;
      Rank rank(&comm, k, 10 * k);
      const auto digest = 4 * DigestLength(DigestPositions(k, size));
      const std::int64_t each_step = others * (2 * SparseBlock::MessageBytes(kShare) + digest);
      const std::int64_t regions = others * 4 * others;
      for (int step = 0; step < 130; ++step) {
        SparseBlock block = BlockOf(k, 3, 7, 1.0f);  // the same entries on every rank
        const bool finds_regions = step % 64 == 0;
        ASSERT_EQ(rank.Step(&block), each_step + (finds_regions ? regions : 0)) << step;
        ASSERT_EQ(block.count(), k);
      }
    });
  }
}

TEST(SplitAllgather, FindsRegionsOfEqualCountsWhereEntriesCrowd) {
  // All entries are in a thousandth of the bucket; regions of equal size would give one owner all.
  constexpr std::int64_t kK = 4000;
  OnRanks(4, [](Communicator& comm) {
    Rank rank(&comm, kK, 4000000);
    SparseBlock block = BlockOf(kK, 2000000, 1, 1.0f);
    const std::int64_t sent = rank.Step(&block);
    ASSERT_LT(sent, 3 * (2 * SparseBlock::MessageBytes(kK / 4) + 400));
  });
}

TEST(SplitAllgather, IsExactForAwkwardCountsAndTies) {
  for (int size : {1, 2, 3, 5, 6, 7, 8, 9, 16, 17, 33, 40}) {
    for (int k : {1, 3, 40}) {
      std::vector<std::vector<Entries>> steps;
      for (int step = 0; step < 3; ++step) {
        std::vector<Entries>& blocks = steps.emplace_back();
        for (int rank = 0; rank < size; ++rank) {
          std::mt19937 random(static_cast<unsigned>(1000 * step + rank));
          Entries& entries = blocks.emplace_back();
          const bool none = rank % 4 == 1 || (step == 0 && rank % 2 == 0);
          for (Index i = 0; !none && i < 60 && entries.size() < 40; ++i) {
            if (random() % 2 == 0) entries.push_back({i, static_cast<float>(random() % 5) - 2});
          }
        }
      }
      OnRanks(size, [&](Communicator& comm) {
        CollectiveScratch scratch;
        for (std::size_t step = 0; step < steps.size(); ++step) {
          SparseBlock block = MakeBlock(steps[step][static_cast<std::size_t>(comm.Rank())]);
          block.header().step = step;
          CollectiveContext ctx{comm, CpuKernels(), scratch, k, 40, "a test", 60};
          RunSplitAllgather(&block, ctx);
          const auto wanted = size == 1 ? 40u : static_cast<unsigned>(k);
          ASSERT_EQ(EntriesOf(block), TopKOfTheSum(steps[step], wanted)) << size << " ranks";
        }
      });
    }
  }
}

/// A communicator that changes a rank's messages of some round.
class TamperingCommunicator final : public LoopbackCommunicator {
 public:
  using Change = std::function<void(std::vector<std::uint8_t>*)>;

  TamperingCommunicator(std::shared_ptr<LoopbackWorld> world, int rank, std::string where,
                        Change change)
      : LoopbackCommunicator(std::move(world), rank),
        where_(std::move(where)),
        change_(std::move(change)) {}

  void Transfer(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) override {
    if (what.find(where_) == std::string::npos)
      return LoopbackCommunicator::Transfer(out, in, what);
    std::vector<std::vector<std::uint8_t>> messages;
    for (const Outgoing& message : out) {
      const auto* first = static_cast<const std::uint8_t*>(message.data);
      messages.emplace_back(first, first + message.bytes);
      change_(&messages.back());
    }
    std::vector<Outgoing> changed;
    for (std::int64_t i = 0; i < out.size; ++i) {
      const auto& message = messages[static_cast<std::size_t>(i)];
      changed.push_back({out[i].peer, message.data(), static_cast<std::int64_t>(message.size())});
    }
    LoopbackCommunicator::Transfer(changed, in, what);
  }

 private:
  const std::string where_;
  const Change change_;
};

/// Returns 40,000 entries at the same places on all ranks; only the last third are large.
SparseBlock LargeAtTheEnd() {
  SparseBlock block = BlockOf(40000, 0, 1, 1000.0f);
  for (Index i = 0; i < 40000 * 2 / 3; ++i) block.values()[i] = 1;
  return block;
}

/// Returns rank 0's error of 3 when rank 2, which has all the large entries, changes its messages.
std::string ErrorOfRank0(const std::string& where, const TamperingCommunicator::Change& change) {
  auto world = std::make_shared<LoopbackWorld>(3);
  std::string error;
  const auto run = [&](Communicator& comm) {
    SparseBlock block = LargeAtTheEnd();
    CollectiveScratch scratch;
    CollectiveContext ctx{comm, CpuKernels(), scratch, 13000, 40000, "a test", 40000};
    try {
      RunSplitAllgather(&block, ctx);
    } catch (const Error& thrown) {
      EXPECT_TRUE(BlamesAPeer(thrown));
      comm.Fail(ErrorKind::kExchangeFailed, thrown.what());
      if (comm.Rank() == 0) error = thrown.what();
    }
  };
  std::vector<std::thread> others;
  others.emplace_back([&] {
    LoopbackCommunicator honest(world, 1);
    run(honest);
  });
  others.emplace_back([&] {
    TamperingCommunicator tampering(world, 2, where, change);
    run(tampering);
  });
  LoopbackCommunicator honest(world, 0);
  run(honest);
  for (std::thread& other : others) other.join();
  return error;
}

/// Returns a change of the i-th number of a message.
TamperingCommunicator::Change Set(std::size_t i, std::uint32_t number) {
  return [=](std::vector<std::uint8_t>* message) {
    std::memcpy(message->data() + 4 * i, &number, sizeof(number));
  };
}

TEST(SplitAllgather, EndsWithAnErrorWhenAPeerSendsSomethingElse) {
  const auto expect = [](const std::string& where, const TamperingCommunicator::Change& change,
                         const std::string& message) {
    const std::string error = ErrorOfRank0(where, change);
    if (message.empty()) {
      EXPECT_EQ(error, "") << where;
    } else {
      EXPECT_NE(error.find(message), std::string::npos) << where << ": " << error;
    }
  };
  const auto none = [](std::vector<std::uint8_t>*) {};
  const auto longer = [](std::vector<std::uint8_t>* message) { message->push_back(0); };
  const auto shorter = [](std::vector<std::uint8_t>* message) { message->pop_back(); };
  const auto empty = [](std::vector<std::uint8_t>* message) {
    message->resize(SparseBlock::MessageBytes(0));
    const std::int32_t count = 0;
    std::memcpy(message->data() + 4, &count, sizeof(count));
  };
  expect("regions", none, "");
  expect("regions", Set(0, 0x80000001u), "rank 2 sent regions that do not ascend");
  expect("regions", Set(0, 0x7fffffffu), "rank 2 sent regions that do not ascend");
  expect("regions", shorter, "sent 7 bytes instead of 8");
  expect("regions", longer, "expected at most");
  expect("owners", Set(0, 1), "no block");
  expect("owners", Set(2, 9), "the ranks disagree");
  expect("digests", Set(0, 50000), "rank 2 sent a claim of 50000 entries in a bucket");
  expect("digests", Set(1, 0), "rank 2 sent a digest whose magnitudes do not descend");
  expect("counts", Set(0, 40000), "rank 2 sent a claim of 40000 entries");
  expect("balance", empty, "sent 0 of");
  expect(", gather", Set(1, 1000000), "corrupt");
}

TEST(SplitAllgather, BalancesWhatOneOwnerKeeps) {
  // Entries are spread evenly, but after the first step only the last region has large ones.
  for (int size : {3, 4, 7}) {
    const std::int64_t count = 10000 * size;

    std::vector<Entries> blocks(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      for (Index i = 0; i < count; ++i) {
        const bool in_last_region = i >= count * (size - 1) / size;
        const auto noise = static_cast<float>((i * 7 + rank) % 13);
        blocks[rank].push_back(
            {i * 3 + (in_last_region ? rank % 3 : 0), in_last_region ? 1000 + noise : noise});
      }
    }
    constexpr std::int64_t kK = 10000;
    const Entries expected = TopKOfTheSum(blocks, kK);
    auto world = std::make_shared<LoopbackWorld>(size);
    std::atomic<int> moves{0};
    OnRanks(size, [&](Communicator& its) {
      TamperingCommunicator comm(world, its.Rank(), "balance",
                                 [&](std::vector<std::uint8_t>*) { ++moves; });
      SparseBlock block = MakeBlock(blocks[comm.Rank()]);
      CollectiveScratch scratch;
      CollectiveContext ctx{comm, CpuKernels(), scratch, kK, count, "a test", 3 * count};
      RunSplitAllgather(&block, ctx);
      ASSERT_EQ(EntriesOf(block), expected) << size << " ranks";
    });
    ASSERT_EQ(moves, size - 1);  // the last owner sends a slice to everybody
  }
}

}  // namespace
}  // namespace hvd_sparse
