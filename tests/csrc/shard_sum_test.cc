/// The shard sum: chunks, many peers, and messages that are no part of a sum.

#include "csrc/collectives/shard_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

/// A rank's value at a position: small integers, whose sums are exact.
float ValueAt(int rank, std::int64_t i) { return static_cast<float>((i * 7 + rank * 3) % 61 - 30); }

/// Sums `numel` values on this rank; returns what was written. `residual` gets what is left.
std::vector<float> SumOn(Communicator& comm, std::int64_t numel, DenseFormat format,
                         std::vector<float>* residual, Aggregation aggregation = {}) {
  ShardSum sum(numel, {}, format, comm.Rank(), comm.Size(), NewCpuDenseWork(), aggregation);
  residual->resize(static_cast<std::size_t>(numel));
  for (std::int64_t i = 0; i < numel; ++i) {
    (*residual)[static_cast<std::size_t>(i)] = ValueAt(comm.Rank(), i);
  }
  const Span<float> values(*residual);
  sum.Prepare();
  sum.Take(values);
  std::vector<float> written(static_cast<std::size_t>(numel), -1.0f);
  CollectiveScratch scratch;
  CollectiveContext ctx{comm, CpuKernels(), scratch, 0, 0, "a test", numel};
  BlockHeader identity;
  sum.Run(
      values,
      [&](Range range, Span<const float> sums) {
        std::copy(sums.begin(), sums.end(), written.begin() + range.begin);
      },
      &identity, &ctx);
  return written;
}

TEST(ShardSum, AddsUpInSeveralChunksAndOnManyRanks) {
  struct Case {
    int size;
    std::int64_t numel;
  };
  // The last two take several chunks, and more peers than a rank sends to at once.
  for (const Case& one : {Case{1, 10}, Case{2, 1}, Case{3, 100'000}, Case{2, 5 << 20},
                          Case{5, 6 << 20}, Case{70, 71'000}}) {
    SCOPED_TRACE(testing::Message() << one.size << " ranks, " << one.numel << " entries");
    OnRanks(one.size, [&](Communicator& comm) {
      std::vector<float> residual;
      const std::vector<float> sums = SumOn(comm, one.numel, {}, &residual);
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < one.numel; ++i) {
        float expected = 0;
        for (int rank = 0; rank < one.size; ++rank) expected += ValueAt(rank, i);
        wrong += sums[static_cast<std::size_t>(i)] != expected ? 1 : 0;
        wrong += residual[static_cast<std::size_t>(i)] != 0 ? 1 : 0;
      }
      EXPECT_EQ(wrong, 0);
    });
  }
}

/// Returns the values of all ranks at a position, ascending.
std::vector<float> Ascending(int size, std::int64_t i) {
  std::vector<float> values;
  for (int rank = 0; rank < size; ++rank) values.push_back(ValueAt(rank, i));
  std::sort(values.begin(), values.end());
  return values;
}

TEST(ShardSum, AveragesByARuleBetweenAnyNumberOfRanks) {
  for (const AggregationRule& rule : AllRules()) {
    for (int size = static_cast<int>(rule.LeastRanks(1)); size < 40; size = size * 3 / 2 + 1) {
      SCOPED_TRACE(testing::Message() << rule.name << ", " << size << " ranks");
      std::vector<std::vector<float>> written(static_cast<std::size_t>(size));
      const std::int64_t numel = size < 8 ? 400'000 : 5'000;  // several chunks, or one
      OnRanks(size, [&](Communicator& comm) {
        std::vector<float> residual;
        const Aggregation aggregation{&rule, 1};
        written[static_cast<std::size_t>(comm.Rank())] =
            SumOn(comm, numel, {}, &residual, aggregation);
        EXPECT_EQ(residual, std::vector<float>(static_cast<std::size_t>(numel), 0.0f));
      });
      for (const std::vector<float>& theirs : written) EXPECT_EQ(theirs, written[0]);
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < numel; ++i) {
        const std::vector<float> values = Ascending(size, i);
        const float average = written[0][static_cast<std::size_t>(i)] / static_cast<float>(size);
        const auto middle = static_cast<std::size_t>(size / 2);
        const float median = (values[middle] + values[values.size() - 1 - middle]) / 2;
        wrong += average < values.front() - 1e-3f || average > values.back() + 1e-3f ? 1 : 0;
        wrong += rule.name == "median" && std::fabs(average - median) > 1e-3f ? 1 : 0;
      }
      EXPECT_EQ(wrong, 0);
    }
  }
}

TEST(ShardSum, PutsBackAllThatWasTaken) {
  const std::int64_t numel = 200'000;
  for (const Values values : {Values::kFloat32, Values::kBFloat16}) {
    ShardSum sum(numel, {17, 100'000}, {values}, 1, 3);
    std::vector<float> residual(static_cast<std::size_t>(numel));
    for (std::int64_t i = 0; i < numel; ++i) {
      residual[static_cast<std::size_t>(i)] = ValueAt(0, i) + 1e-3f * ValueAt(1, 3 * i);
    }
    const std::vector<float> before = residual;
    const Span<float> left(residual);
    sum.Prepare();
    sum.Take(left);
    EXPECT_NE(residual, before);
    sum.PutBack(left);
    EXPECT_EQ(residual, before);
  }
}

TEST(ShardSum, RefusesMessagesThatAreNoPartOfASum) {
  struct Case {
    TamperingCommunicator::Change change;
    const char* says;
  };
  const auto overwrite = [](std::size_t at, std::uint32_t bits) {
    return [=](Incoming* message) {
      std::memcpy(static_cast<std::uint8_t*>(message->data) + at, &bits, sizeof(bits));
    };
  };
  const std::vector<Case> cases = {
      {[](Incoming* message) { message->bytes = 7; }, "are no part of"},
      {[](Incoming* message) { message->bytes -= 4; }, "from rank"},
      {overwrite(offsetof(BlockHeader, magic), 1), "are no part of"},
      {overwrite(offsetof(BlockHeader, count), 3), "are no part of"},
      {overwrite(offsetof(BlockHeader, bucket), 9), "the ranks disagree"},
      {overwrite(offsetof(BlockHeader, step), 9), "the ranks disagree"},
      {overwrite(sizeof(BlockHeader), 0x7fc00000u), "from rank"},
  };
  for (const Case& one : cases) {
    std::atomic<int> told{0};
    OnRanks(2, [&](Communicator& comm) {
      std::vector<float> residual;
      TamperingCommunicator tampered(&comm, one.change);
      const Error error = Thrown([&] { SumOn(tampered, 1000, {}, &residual); });
      EXPECT_TRUE(Says(error, one.says) || Says(error, "it is over")) << error.what();
      told += Says(error, one.says) ? 1 : 0;
      comm.Fail(ErrorKind::kExchangeFailed, "it is over");
    });
    EXPECT_GE(told, 1) << one.says;
  }
}

TEST(ShardSum, TellsAllRanksOfASumThatOverflows) {
  OnRanks(3, [&](Communicator& comm) {
    ShardSum sum(9, {}, {}, comm.Rank(), comm.Size());
    std::vector<float> values(9, 1.0f);
    values[4] = 3e38f;
    sum.Prepare();
    sum.Take(values);
    CollectiveScratch scratch;
    CollectiveContext ctx{comm, CpuKernels(), scratch, 0, 0, "a test", 9};
    BlockHeader identity;
    sum.Run(values, [](Range, Span<const float>) {}, &identity, &ctx);
    EXPECT_EQ(identity.verdict, Verdict::Overflow());
  });
}

}  // namespace
}  // namespace hvd_sparse
