/// Recursive doubling: the bytes and forms that it sends; the form does not affect the sum.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/collectives/collectives.h"
#include "csrc/collectives/topology.h"
#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kAnnouncement = 8;

struct Outcome {
  SparseBlock block;
  std::int64_t bytes_sent = 0;
};

/// Returns every rank's outcome, each starting from block_of(rank).
std::vector<Outcome> RunAll(int size, std::int64_t capacity, std::int64_t numel,
                            const std::function<SparseBlock(int)>& block_of) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(size));
  OnRanks(size, [&](Communicator& comm) {
    Outcome& mine = outcomes[static_cast<std::size_t>(comm.Rank())];
    mine.block = block_of(comm.Rank());
    CollectiveScratch scratch;
    CollectiveContext ctx{comm, CpuKernels(), scratch, capacity, capacity, "a test", numel};
    RunRecursiveDoubling(&mine.block, ctx);
    mine.bytes_sent = ctx.bytes_sent;
  });
  return outcomes;
}

TEST(RecursiveDoubling, SendsTwiceAsMuchInEveryRoundWhereNoTwoRanksAgree) {
  constexpr std::int64_t kK = 10;
  for (int size : {2, 4, 8, 16}) {
    const auto outcomes =
        RunAll(size, kK, 2 * kK * size, [size](int rank) { return BlockOf(kK, rank, size, 1.0f); });
    std::int64_t expected = 0;
    for (int ranks = 1; ranks < size; ranks *= 2) {
      expected += SparseBlock::MessageBytes(kK * ranks);
    }
    for (const Outcome& outcome : outcomes) {
      ASSERT_EQ(outcome.bytes_sent, expected);
      ASSERT_EQ(outcome.block.count(), kK * size);
    }
  }
}

TEST(RecursiveDoubling, SendsEightKBytesARoundWhereAllRanksAgree) {
  constexpr std::int64_t kK = 10;
  for (int size : {2, 4, 8, 16}) {
    const auto rounds = static_cast<std::int64_t>(std::log2(size));
    for (const Outcome& outcome :
         RunAll(size, kK, 1000, [](int) { return BlockOf(kK, 3, 5, 1.0f); })) {
      ASSERT_EQ(outcome.bytes_sent, rounds * SparseBlock::MessageBytes(kK));
    }
  }
}

TEST(RecursiveDoubling, SendsAPlainArrayPastHalfOfTheBucket) {
  // Sums of two ranks hold 20 entries, which are more than half of 39.
  for (const Outcome& outcome :
       RunAll(8, 10, 39, [](int rank) { return BlockOf(10, rank % 2, 2, 1.0f); })) {
    ASSERT_EQ(outcome.bytes_sent,
              SparseBlock::MessageBytes(10) + 2 * (kAnnouncement + DenseBlock::MessageBytes(39)));
  }
  // 20 of 40 are not more than half.
  for (const Outcome& outcome :
       RunAll(4, 10, 40, [](int rank) { return BlockOf(10, rank, 4, 1.0f); })) {
    ASSERT_EQ(outcome.bytes_sent, SparseBlock::MessageBytes(10) + SparseBlock::MessageBytes(20));
    ASSERT_EQ(outcome.block.count(), 40);
  }
}

TEST(RecursiveDoubling, HasTheSameSumInEitherFormOnAllRanks) {
  // Half of the ranks select the same entries and stay sparse longer than the others, so that sums
  // of different forms meet. Small integers make the sum exact in any order.
  constexpr std::int64_t kNumel = 101;
  const auto block_of = [](int rank) {
    return rank % 4 < 2 ? BlockOf(20, 1, 2, 1.0f) : BlockOf(20 + rank % 3, rank % 5, 4, -3.0f);
  };
  for (int size = 1; size <= 33; ++size) {
    std::map<Index, float> expected;
    for (int rank = 0; rank < size; ++rank) {
      for (const Entry& entry : EntriesOf(block_of(rank))) expected[entry.index] += entry.value;
    }
    for (const std::int64_t numel : {kNumel, std::int64_t{100000}}) {
      for (const Outcome& outcome : RunAll(size, 22, numel, block_of)) {
        Entries entries;
        for (const auto& [index, value] : expected) entries.push_back({Marked(index, true), value});
        ASSERT_EQ(EntriesOf(outcome.block), entries) << size << " ranks, " << numel << " entries";
      }
    }
  }
}

TEST(RecursiveDoubling, KeepsTheSignsOfZeros) {
  const std::vector<Entries> of_ranks = {{{0, -0.0f}, {1, -0.0f}, {2, 0.0f}, {3, 1.0f}, {4, kTiny}},
                                         {{0, -0.0f}, {1, 0.0f}, {2, 0.0f}, {3, -1.0f}, {5, kMax}}};
  for (const std::int64_t numel : {7, 1000}) {
    const auto outcomes = RunAll(
        2, 5, numel, [&](int rank) { return MakeBlock(of_ranks[static_cast<std::size_t>(rank)]); });
    for (const Outcome& outcome : outcomes) {
      std::vector<float> dense(6, -0.0f);
      for (const Entry& entry : EntriesOf(outcome.block)) {
        dense[static_cast<std::size_t>(Position(entry.index))] = entry.value;
      }
      EXPECT_TRUE(SameBits(dense, std::vector<float>{-0.0f, 0.0f, 0.0f, 0.0f, kTiny, kMax}));
    }
  }
}

TEST(RecursiveDoubling, TellsTheWorstVerdictInEitherForm) {
  for (int size : {2, 3, 6, 7}) {
    const auto outcomes = RunAll(size, 10, 15, [size](int rank) {
      SparseBlock block = BlockOf(10, rank % 5, 1, 1.0f);
      if (rank >= size / 2) block.header().verdict = Verdict::BadGradient(rank);
      return block;
    });
    for (const Outcome& outcome : outcomes) {
      ASSERT_EQ(outcome.block.header().verdict, Verdict::BadGradient(size / 2));
    }
  }
}

/// Returns rank 0's error when rank 1 answers its announcement with `answers`.
std::string ErrorOfRank0(std::int64_t numel,
                         const std::vector<std::vector<std::uint8_t>>& answers) {
  std::string error;
  OnRanks(2, [&](Communicator& comm) {
    if (comm.Rank() == 1) {
      for (const auto& answer : answers) {
        const Outgoing out{0, answer.data(), static_cast<std::int64_t>(answer.size())};
        comm.Transfer({&out, 1}, {}, "a broken peer");
      }
      return;
    }
    SparseBlock block = BlockOf(5, 0, 1, 1.0f);
    CollectiveScratch scratch;
    CollectiveContext ctx{comm, CpuKernels(), scratch, 5, 5, "a test", numel};
    try {
      RunRecursiveDoubling(&block, ctx);
    } catch (const Error& thrown) {
      EXPECT_TRUE(BlamesAPeer(thrown));
      error = thrown.what();
    }
  });
  return error;
}

std::vector<std::uint8_t> BytesOf(const void* data, std::int64_t bytes) {
  const auto* first = static_cast<const std::uint8_t*>(data);
  return {first, first + bytes};
}

TEST(RecursiveDoubling, EndsWithAnErrorWhenAPeerSendsSomethingElse) {
  SparseBlock beyond = BlockOf(2, 5, 1, 1.0f);  // positions 5 and 6 of a bucket of 6 entries
  const auto sparse = BytesOf(beyond.message(), beyond.message_bytes());
  DenseBlock sum;
  sum.Reset(6);
  sum.Clear();
  const auto dense = BytesOf(sum.message(), sum.message_bytes());
  sum.Reset(5);
  const auto shorter = BytesOf(sum.message(), sum.message_bytes());
  sum.Reset(6);
  sum.header().bucket = 3;
  const auto other_bucket = BytesOf(sum.message(), sum.message_bytes());
  const std::vector<std::uint8_t> says_sparse = {0x01, 0x00, 's', 'p', 'a', 'r', 's', 'e'};
  const std::vector<std::uint8_t> says_dense = {0x01, 0x00, 0x00, 'd', 'e', 'n', 's', 'e'};
  const std::vector<std::uint8_t> says_nothing(8);

  EXPECT_EQ(ErrorOfRank0(6, {says_dense, dense}), "");
  EXPECT_NE(ErrorOfRank0(6, {says_nothing}).find("does not say in which form"), std::string::npos);
  EXPECT_NE(ErrorOfRank0(6, {{1, 2}}).find("does not say in which form"), std::string::npos);
  EXPECT_NE(ErrorOfRank0(6, {says_dense, shorter}).find("no dense sum of 6"), std::string::npos);
  EXPECT_NE(ErrorOfRank0(6, {says_dense, sparse}).find("no dense sum of 6"), std::string::npos);
  EXPECT_NE(ErrorOfRank0(6, {says_dense, other_bucket}).find("the ranks disagree"),
            std::string::npos);
  EXPECT_NE(ErrorOfRank0(6, {says_sparse, dense}).find("no block"), std::string::npos);
  EXPECT_NE(ErrorOfRank0(6, {says_sparse, sparse}).find("do not ascend within [0, 6)"),
            std::string::npos);
  auto overflowing = dense;
  std::memcpy(overflowing.data() + overflowing.size() - sizeof(kInf), &kInf, sizeof(kInf));
  EXPECT_NE(ErrorOfRank0(6, {says_dense, overflowing}).find("not all of them finite"),
            std::string::npos);
}

}  // namespace
}  // namespace hvd_sparse
