/// Topology and collectives on thread ranks: closed forms, bytes and errors. The laws over
/// everything in the registries are tested from Python.

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/collectives/topology.h"
#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

TEST(FoldedCube, EveryGuestHasOneHostInTheCore) {
  for (int size = 1; size <= 64; ++size) {
    int guests = 0;
    for (int rank = 0; rank < size; ++rank) {
      const FoldedCube cube{rank, size};
      ASSERT_LE(cube.Core(), size);
      ASSERT_GT(2 * cube.Core(), size);
      if (!cube.IsGuest()) continue;
      ++guests;
      const FoldedCube host{cube.Host(), size};
      ASSERT_FALSE(host.IsGuest());
      ASSERT_TRUE(host.HasGuest());
      ASSERT_EQ(host.Guest(), rank);
    }
    ASSERT_EQ(guests, size - FoldedCube({0, size}).Core());
  }
}

TEST(BruckRing, EveryBlockArrivesOnce) {
  for (int size = 1; size <= 64; ++size) {
    int held = 1;
    for (int distance = 1; distance < size; distance *= 2) {
      ASSERT_EQ(held, distance);
      const BruckRing ring{0, size};
      ASSERT_EQ(BruckRing({ring.To(distance), size}).From(distance), 0);
      held += ring.BlocksInRound(distance);
    }
    ASSERT_EQ(held, size);
  }
}

TEST(Collectives, EqualIndicesAddUpEverywhere) {
  for (const std::string& name : CollectiveNames()) {
    for (int size : {1, 2, 3, 4, 5, 8, 11, 17}) {
      OnRanks(size, [&](Communicator& comm) {
        SparseBlock block = BlockOf(5, 10, 3, static_cast<float>(comm.Rank()));
        CollectiveScratch scratch;
        CollectiveContext ctx{comm, CpuKernels(), scratch, 5, 5, "a test", 64};
        SendOnAllSums(&ctx);
        FindCollective(name).run(&block, ctx);
        ASSERT_EQ(block.count(), 5);
        for (int i = 0; i < 5; ++i) {
          ASSERT_EQ(Position(block.indices()[i]), 10 + 3 * i);
          ASSERT_TRUE(Survived(block.indices()[i]));
          ASSERT_EQ(block.values()[i], size * (size - 1) / 2.0f + static_cast<float>(size * i));
        }
      });
    }
  }
}

TEST(GTopK, SendsEightKBytesARound) {
  constexpr std::int64_t kK = 100;
  for (int size : {2, 4, 8, 16}) {
    OnRanks(size, [&](Communicator& comm) {
      SparseBlock block = BlockOf(kK, comm.Rank(), 64, 1.0f);
      CollectiveScratch scratch;
      CollectiveContext ctx{comm, CpuKernels(), scratch, kK, kK, "a test"};
      FindCollective("gtopk").run(&block, ctx);
      const auto rounds = static_cast<std::int64_t>(std::log2(size));
      ASSERT_EQ(ctx.bytes_sent, rounds * SparseBlock::MessageBytes(kK));
      ASSERT_EQ(block.count(), kK);
    });
  }
}

TEST(GTopK, SendsSlackTimesAsMuchAfterTheFirstRound) {
  constexpr std::int64_t kK = 10, kKept = 15;
  for (int size : {2, 4, 8, 16}) {
    OnRanks(size, [&](Communicator& comm) {
      SparseBlock block = BlockOf(kK, comm.Rank(), 64, 1.0f);
      CollectiveScratch scratch;
      CollectiveContext ctx{comm, CpuKernels(), scratch, kK, kK, "a test", 640, {1.5}};
      FindCollective("gtopk").run(&block, ctx);
      const auto more = static_cast<std::int64_t>(std::log2(size)) - 1;
      ASSERT_EQ(ctx.bytes_sent,
                SparseBlock::MessageBytes(kK) + more * SparseBlock::MessageBytes(kKept));
      ASSERT_EQ(block.count(), kK);
    });
  }
}

TEST(Allgather, SendsEveryBlockToEveryOtherRank) {
  for (int size : {1, 2, 3, 4, 7}) {
    OnRanks(size, [&](Communicator& comm) {
      const int k = 10 + comm.Rank();  // counts differ between ranks
      SparseBlock block = BlockOf(k, comm.Rank(), 32, 1.0f);
      CollectiveScratch scratch;
      CollectiveContext ctx{comm, CpuKernels(), scratch, 10, 32, "a test"};
      FindCollective("allgather").run(&block, ctx);
      std::int64_t others = 0, total = 0;
      for (int rank = 0; rank < size; ++rank) {
        total += 10 + rank;
        if (rank != comm.Rank()) others += SparseBlock::MessageBytes(10 + rank);
      }
      ASSERT_EQ(ctx.bytes_received, others);
      ASSERT_EQ(block.count(), total);
    });
  }
}

TEST(ShardTopK, SendsEveryEntryToItsOwnerAndEverySumToAll) {
  constexpr std::int64_t kNumel = 960, kK = 60;
  for (int size : {2, 3, 4, 8, 15}) {
    OnRanks(size, [&](Communicator& comm) {
      SparseBlock block = BlockOf(kK, 3, 16, 1.0f);  // every shard has 60 / P of them
      CollectiveScratch scratch;
      CollectiveContext ctx{comm, CpuKernels(), scratch, kK, kK, "a test", kNumel};
      SendOnAllSums(&ctx);
      FindCollective("shard_topk").run(&block, ctx);
      const std::int64_t part = SparseBlock::MessageBytes(kK / size);
      if (kK % size == 0) {
        ASSERT_EQ(ctx.bytes_sent, 2 * (size - 1) * part);
      }
      ASSERT_EQ(block.count(), kK);
      ASSERT_EQ(block.values()[kK - 1], static_cast<float>(size * kK));
    });
  }
}

TEST(Collectives, EndOnAllRanksOrHoldTheSumWhereCapacitiesDiffer) {
  constexpr std::int64_t kNumel = 24;
  for (const std::string& name : CollectiveNames()) {
    for (int size : {2, 3, 4, 7}) {
      std::atomic<int> finished{0}, failed{0};
      OnRanks(size, [&](Communicator& comm) {
        SparseBlock block = BlockOf(5, 1, 4, 1.0f);
        CollectiveScratch scratch;
        const std::int64_t capacity = comm.Rank() == size - 1 ? kNumel : 5;
        CollectiveContext ctx{comm, CpuKernels(), scratch, 5, capacity, "a test", kNumel};
        SendOnAllSums(&ctx);
        try {
          FindCollective(name).run(&block, ctx);
          ASSERT_EQ(block.count(), 5);
          ASSERT_EQ(block.values()[4], 5.0f * static_cast<float>(size));
          ++finished;
        } catch (const Error& error) {
          EXPECT_TRUE(BlamesAPeer(error)) << error.what();
          comm.Fail(ErrorKind::kExchangeFailed, error.what());
          ++failed;
        }
      });
      EXPECT_EQ(finished + failed, size);
      EXPECT_EQ(failed > 0, name == "recursive_doubling") << name << ", " << size << " ranks";
    }
  }
}

TEST(Collectives, TellTheWorstVerdictToAll) {
  for (const std::string& name : CollectiveNames()) {
    for (int size : {1, 2, 3, 6, 7, 9}) {
      OnRanks(size, [&](Communicator& comm) {
        SparseBlock block = BlockOf(2, 0, 1, 1.0f);
        if (comm.Rank() >= size / 2) block.header().verdict = Verdict::BadGradient(comm.Rank());
        CollectiveScratch scratch;
        CollectiveContext ctx{comm, CpuKernels(), scratch, 2, 2, "a test", 64};
        SendOnAllSums(&ctx);
        FindCollective(name).run(&block, ctx);
        ASSERT_EQ(block.header().verdict, Verdict::BadGradient(size / 2));
      });
    }
  }
}

TEST(Collectives, TrimLeavesWhatTheyCarryAndReturnsTheRest) {
  for (const std::string& name : CollectiveNames()) {
    const Collective& collective = FindCollective(name);
    SparseBlock block = BlockOf(5, 2, 2, 1.0f);  // values 1 to 5, taken from a residual
    std::vector<float> residual(12, 0.5f), expected = residual;
    for (Index i = 2; i <= 10; i += 2) residual[i] = expected[i] = 0;
    collective.Trim(3, residual, CpuKernels(), &block);
    if (name != "gtopk") {  // the others send everything selected
      EXPECT_EQ(block.count(), 5);
    } else {
      ASSERT_EQ(block.count(), 3);
      EXPECT_EQ(block.indices()[0], 6);
      EXPECT_EQ(block.values()[0], 3.0f);
      expected[2] = 1;
      expected[4] = 2;
    }
    EXPECT_EQ(residual, expected) << name;
  }
}

TEST(Collectives, NameThoseThatExist) {
  try {
    FindCollective("carrier pigeon");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_STREQ(
        error.what(),
        "collective must be one of allgather, gtopk, recursive_doubling, shard_sum, "
        "shard_topk, bulyan, krum, median, multi_krum, trimmed_mean; got 'carrier pigeon'");
  }
}

/// Returns entries of value 1 + 2^-10, which bfloat16 rounds to 1, at these positions.
SparseBlock RoughBlock(const std::vector<Index>& positions) {
  SparseBlock block = BlockOf(static_cast<std::int64_t>(positions.size()), 0, 1, 0);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    block.indices()[i] = positions[i];
    block.values()[i] = 1 + 0x1p-10f;
  }
  return block;
}

TEST(CollectiveContext, NarrowNotesTheErrorsOfTheRankThatKeepsThem) {
  auto world = std::make_shared<LoopbackWorld>(2);
  LoopbackCommunicator comm(world, 0);
  CollectiveScratch scratch;
  CollectiveContext ctx{comm, CpuKernels(), scratch, 5, 5, "a test"};
  ctx.wire = {false, Values::kBFloat16};
  SparseBlock kept = RoughBlock({1, 4, 9}), left = RoughBlock({2, 4});
  kept.values()[1] = 3;  // a bfloat16
  ctx.Narrow(&kept, true);
  ctx.Narrow(&left, false);
  EXPECT_EQ(kept.values()[0], 1);
  EXPECT_EQ(left.values()[1], 1);
  EXPECT_EQ(scratch.rounding_errors, (RoundingErrors{{1, 0x1p-10f}, {9, 0x1p-10f}}));
}

TEST(CollectiveContext, ErrorsOfEntriesThatWereDroppedAreForgotten) {
  auto world = std::make_shared<LoopbackWorld>(2);
  LoopbackCommunicator comm(world, 0);
  CollectiveScratch scratch;
  CollectiveContext ctx{comm, CpuKernels(), scratch, 5, 5, "a test"};
  const auto positions = [&] {
    std::vector<Index> left;
    for (const auto& [position, error] : scratch.rounding_errors) left.push_back(position);
    return left;
  };
  scratch.rounding_errors = {{1, 1}, {4, 1}, {9, 1},
                             {0, 1}, {4, 1}, {8, 1}};  // from two calls of Narrow
  SparseBlock block = RoughBlock({0, 4, 8, 9});
  ctx.KeepErrorsOf(block);
  EXPECT_EQ(positions(), (std::vector<Index>{4, 9, 0, 4, 8}));
  block.indices()[1] = Marked(4, true);
  ctx.KeepErrorsOf(block);
  EXPECT_EQ(positions(), (std::vector<Index>{4, 9, 0, 4, 8}));
  ctx.KeepErrorsOf(block, true);
  EXPECT_EQ(positions(), (std::vector<Index>{4, 4}));
  ctx.KeepErrorsOf(RoughBlock({}));
  EXPECT_TRUE(scratch.rounding_errors.empty());
}

TEST(Collectives, CodedMessagesArriveWhereOthersLieBehindThem) {
  // One message of the allgather holds blocks of different lengths and codings.
  for (int size : {2, 3, 5, 8}) {
    OnRanks(size, [&](Communicator& comm) {
      SparseBlock block = BlockOf(7 * comm.Rank(), comm.Rank(), 1 + 40 * comm.Rank(), 1);
      CollectiveScratch scratch;
      CollectiveContext ctx{comm, CpuKernels(), scratch, 10, 100, "a test"};
      ctx.wire = {true, Values::kFloat16};
      block.header().format = ctx.wire.Id();
      const auto& blocks = ctx.AllgatherBlocks(&block, 100, "a round");
      for (int rank = 0; rank < size; ++rank) {
        const auto& theirs = blocks[static_cast<std::size_t>(rank)];
        ASSERT_EQ(theirs.count(), 7 * rank);
        for (int i = 0; i < theirs.count(); ++i) {
          ASSERT_EQ(theirs.indices()[i], rank + i * (1 + 40 * rank));
          ASSERT_EQ(theirs.values()[i], static_cast<float>(1 + i));
        }
      }
    });
  }
}

}  // namespace
}  // namespace hvd_sparse
